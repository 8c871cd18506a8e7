import { expect, it } from 'vitest';
import type { Series } from './client';
import { type Answer, toFrames } from './frames';

const answer = (rest: Partial<Answer>): Answer => ({
  target: { refId: 'A', legendFormat: '{{host}}' },
  expression: 'up',
  series: [],
  oneOfSeveral: false,
  ...rest,
});
const columns = (frames: ReturnType<typeof toFrames>) =>
  frames.map(({ fields }) => Object.fromEntries(fields.map(({ name, values }) => [name, values])));

it('makes a frame per series', () => {
  const frames = toFrames(
    answer({
      step: 15_000,
      series: [
        {
          metric: { host: 'a' },
          values: [
            [10, '1'],
            [25, '+Inf'],
          ],
        },
      ],
    }),
  );
  expect(columns(frames)).toEqual([{ Time: [10_000, 25_000], Value: [1, Infinity] }]);
  expect(frames[0]!.name).toBe('a');
  expect(frames[0]!.fields[0]!.config.interval).toBe(15_000);
});

it('makes one table with a column per label', () => {
  const series: Series[] = [
    { metric: { b: '1' }, value: [10, '2'] },
    { metric: { a: 'x' }, value: [10, 'NaN'] },
  ];
  const target = { refId: 'B', format: 'table' as const };
  expect(columns(toFrames(answer({ target, series, oneOfSeveral: true })))).toEqual([
    { Time: [10_000, 10_000], a: ['', 'x'], b: ['1', ''], 'Value #B': [2, NaN] },
  ]);
});

it('sorts the buckets of a heatmap by their bound', () => {
  const series = ['+Inf', '2', '10'].map((le) => ({ metric: { le }, values: [] }));
  const target = { refId: 'A', format: 'heatmap' as const, legendFormat: '{{le}}' };
  expect(toFrames(answer({ target, series })).map(({ name }) => name)).toEqual(['2', '10', '+Inf']);
});

it('says that native histograms are not supported', () => {
  expect(() => toFrames(answer({ series: [{ metric: {} }] }))).toThrow('native histograms');
});
