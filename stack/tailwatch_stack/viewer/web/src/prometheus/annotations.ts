import { rangeUtil } from '@grafana/data';
import type { AnnotationModel } from '../model/dashboard';
import { interpolate, type Variables } from '../model/interpolate';
import { seriesName } from '../model/legend';
import { alignToStep, allowedStepMs, formatDuration } from '../model/step';
import { queryRange, sampleValue, type Series } from './client';

/** A moment, or a stretch of time, that graphs mark. Milliseconds since the epoch. */
export interface AnnotationMark {
  from: number;
  to: number;
  title: string;
  text: string;
  tags: string[];
  color: string;
}

const DEFAULT_STEP = '60s';

/** Ask for the marks of one annotation query. */
export async function queryAnnotation(
  model: AnnotationModel,
  range: { from: number; to: number },
  variables: Variables,
  signal?: AbortSignal,
): Promise<AnnotationMark[]> {
  const wanted = rangeUtil.intervalToMs(model.step || DEFAULT_STEP);
  const step = allowedStepMs(wanted, range.to - range.from);
  const [from, to] = alignToStep(range.from, range.to, step);
  const lookup = (name: string) => (name === '__interval' ? formatDuration(step) : undefined);
  const query = interpolate(model.target?.expr ?? model.expr ?? '', variables, lookup, 'promql');
  const series = await queryRange(query, { from, to, step }, signal);
  return series.flatMap((one) => marks(model, one, step));
}

/** Samples above zero that follow each other at the step's distance are one mark. */
export function marks(model: AnnotationModel, series: Series, step: number): AnnotationMark[] {
  const result: AnnotationMark[] = [];
  const tagKeys = (model.tagKeys ?? '').split(',').map((key) => key.trim());
  for (const [seconds, text] of series.values ?? []) {
    if (!(sampleValue(text) > 0)) {
      continue;
    }
    const time = Math.round(seconds * 1000);
    const last = result.at(-1);
    if (last && time - last.to <= step) {
      last.to = time;
      continue;
    }
    result.push({
      from: time,
      to: time,
      title: seriesName(model.titleFormat || '__auto', series.metric, model.name),
      text: model.textFormat ? seriesName(model.textFormat, series.metric, '') : '',
      tags: tagKeys.flatMap((key) => series.metric[key] ?? []),
      color: model.iconColor ?? 'red',
    });
  }
  return result;
}
