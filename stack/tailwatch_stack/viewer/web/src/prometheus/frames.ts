import { type DataFrame, FieldType, toDataFrame } from '@grafana/data';
import { upperBound } from '../model/histogram';
import { seriesName } from '../model/legend';
import type { Target } from '../model/dashboard';
import { type Sample, sampleValue, type Series } from './client';

export interface Answer {
  target: Target;
  /** The query with every variable replaced. */
  expression: string;
  series: Series[];
  /** Milliseconds between points; absent for an instant query. */
  step?: number;
  /** Several queries give tables with a value column each, told apart by its name. */
  oneOfSeveral: boolean;
}

/** Turn Prometheus' answer into the frames that Grafana's components draw. */
export function toFrames(answer: Answer): DataFrame[] {
  switch (answer.target.format ?? 'time_series') {
    case 'table':
      return [tableFrame(answer)];
    case 'heatmap':
      return heatmapFrames(answer);
    case 'time_series':
      return answer.series.map((series) => seriesFrame(answer, series));
  }
}

function seriesFrame({ target, expression, step }: Answer, series: Series): DataFrame {
  const name = seriesName(target.legendFormat, series.metric, expression);
  const samples = samplesOf(series);
  return toDataFrame({
    refId: target.refId,
    name,
    fields: [
      {
        name: 'Time',
        type: FieldType.time,
        config: { interval: step },
        values: samples.map(([seconds]) => Math.round(seconds * 1000)),
      },
      {
        name: 'Value',
        type: FieldType.number,
        labels: series.metric,
        config: { displayNameFromDS: name },
        values: samples.map(([, value]) => sampleValue(value)),
      },
    ],
  });
}

function tableFrame({ target, series, oneOfSeveral }: Answer): DataFrame {
  const labels = [...new Set(series.flatMap(({ metric }) => Object.keys(metric)))].toSorted();
  const rows = series.flatMap((one) =>
    samplesOf(one).map((sample) => ({ metric: one.metric, sample })),
  );
  return toDataFrame({
    refId: target.refId,
    fields: [
      {
        name: 'Time',
        type: FieldType.time,
        values: rows.map(({ sample }) => Math.round(sample[0] * 1000)),
      },
      ...labels.map((label) => ({
        name: label,
        type: FieldType.string,
        config: { filterable: true },
        values: rows.map(({ metric }) => metric[label] ?? ''),
      })),
      {
        name: oneOfSeveral ? `Value #${target.refId}` : 'Value',
        type: FieldType.number,
        values: rows.map(({ sample }) => sampleValue(sample[1])),
      },
    ],
  });
}

function heatmapFrames(answer: Answer): DataFrame[] {
  const buckets = answer.series.toSorted(
    (a, b) => upperBound(a.metric.le ?? '') - upperBound(b.metric.le ?? ''),
  );
  return buckets.map((series) => seriesFrame(answer, series));
}

function samplesOf({ value, values }: Series): Sample[] {
  if (values) {
    return values;
  }
  if (value) {
    return [value];
  }
  throw new Error('native histograms are not supported: query their buckets or a quantile');
}
