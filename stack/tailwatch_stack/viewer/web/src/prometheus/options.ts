import type { OptionQuery } from '../model/variables';
import { seriesName } from '../model/legend';
import { labelNames, labelValues, queryInstant } from './client';

/** Answer a variable's query for a time range in milliseconds since the epoch. */
export async function askForOptions(
  query: OptionQuery,
  { from, to }: { from: number; to: number },
  signal?: AbortSignal,
): Promise<string[]> {
  switch (query.kind) {
    case 'label_names':
      return labelNames({ from, to }, signal);
    case 'label_values':
      return labelValues(query.label, { from, to, match: query.match }, signal);
    case 'metrics': {
      const pattern = new RegExp(query.pattern);
      const names = await labelValues('__name__', { from, to }, signal);
      return names.filter((name) => pattern.test(name));
    }
    case 'query_result': {
      const series = await queryInstant(query.query, to, signal);
      return series.map(({ metric, value }) => {
        const [seconds, text] = value ?? [to / 1000, ''];
        return `${seriesName(undefined, metric, '')} ${text} ${seconds * 1000}`.trimStart();
      });
    }
  }
}
