import { type DataFrame, rangeUtil } from '@grafana/data';
import type { Panel, Target } from '../model/dashboard';
import { interpolate, type Lookup, type Variables } from '../model/interpolate';
import { alignToStep, formatDuration, rateIntervalMs, stepMs } from '../model/step';
import { queryInstant, queryRange } from './client';
import { type Answer, toFrames } from './frames';

export interface QueryContext {
  /** Milliseconds since the epoch. */
  from: number;
  to: number;
  /** Of the panel, in pixels. */
  width: number;
  scrapeIntervalMs: number;
  variables: Variables;
}

/** Ask Prometheus everything that a panel asks and give the frames in the queries' order. */
export async function queryPanel(
  panel: Panel,
  context: QueryContext,
  signal?: AbortSignal,
): Promise<DataFrame[]> {
  const targets = (panel.targets ?? []).filter((target) => !target.hide && target.expr);
  const perTarget = await Promise.all(
    targets.map(async (target) => {
      const answers = await queryTarget(panel, target, context, signal);
      return answers.flatMap((answer) =>
        toFrames({ ...answer, target, oneOfSeveral: targets.length > 1 }),
      );
    }),
  );
  return perTarget.flat();
}

type TargetAnswer = Omit<Answer, 'target' | 'oneOfSeveral'>;

async function queryTarget(
  panel: Panel,
  target: Target,
  context: QueryContext,
  signal?: AbortSignal,
): Promise<TargetAnswer[]> {
  const minimum = target.interval || panel.interval;
  const input = {
    from: context.from,
    to: context.to,
    scrapeIntervalMs: context.scrapeIntervalMs,
    maxDataPoints: panel.maxDataPoints ?? Math.max(100, Math.round(context.width)),
    minStepMs: minimum
      ? rangeUtil.intervalToMs(interpolate(minimum, context.variables))
      : undefined,
  };
  const step = stepMs(input) * (target.intervalFactor || 1);
  const lookup = intervalLookup(step, rateIntervalMs(step, input), context.to - context.from);
  const expression = interpolate(target.expr ?? '', context.variables, lookup, 'promql');
  const [from, to] = alignToStep(context.from, context.to, step);
  const instant = async () => ({
    expression,
    series: await queryInstant(expression, context.to, signal),
  });
  const range = async () => ({
    expression,
    step,
    series: await queryRange(expression, { from, to, step }, signal),
  });
  if (!target.instant) {
    return [await range()];
  }
  return target.range ? Promise.all([range(), instant()]) : [await instant()];
}

/** Grafana's interval macros. */
export function intervalLookup(step: number, rateInterval: number, range: number): Lookup {
  const values: Record<string, string> = {
    __interval: formatDuration(step),
    __interval_ms: String(step),
    __rate_interval: formatDuration(rateInterval),
    __rate_interval_ms: String(rateInterval),
    __range: formatDuration(Math.round(range / 1000) * 1000),
    __range_s: String(Math.round(range / 1000)),
    __range_ms: String(range),
  };
  return (name) => values[name];
}
