import { afterEach, expect, it, vi } from 'vitest';
import { marks, queryAnnotation } from './annotations';

afterEach(() => vi.unstubAllGlobals());

it('joins samples that follow each other and skips zeros', () => {
  const series = {
    metric: { alertname: 'Hot', host: 'a' },
    values: [
      [60, '1'],
      [120, '1'],
      [180, '0'],
      [300, '1'],
    ] as Array<[number, string]>,
  };
  const model = {
    name: 'Alerts',
    titleFormat: '{{alertname}}',
    textFormat: 'on {{host}}',
    tagKeys: 'host, absent',
    iconColor: 'blue',
  };
  const common = { title: 'Hot', text: 'on a', tags: ['a'], color: 'blue' };
  expect(marks(model, series, 60_000)).toEqual([
    { from: 60_000, to: 120_000, ...common },
    { from: 300_000, to: 300_000, ...common },
  ]);
});

it.each([
  ['an hour at its own step', 3_600_000, '30', 'offset 30s'],
  // 604 800 s in 11 000 points, which is all that Prometheus gives
  ['a week at the step that is allowed', 7 * 86_400_000, '54.982', 'offset 54982ms'],
])('asks for %s', async (_, range, step, offset) => {
  const fetched = vi.fn(async (_url: string, { body }: { body: URLSearchParams }) => {
    expect(body.get('step')).toBe(step);
    expect(body.get('query')).toBe(`up ${offset}`);
    expect(Number(body.get('start')) % Number(step)).toBeCloseTo(0);
    return Response.json({ status: 'success', data: { resultType: 'matrix', result: [] } });
  });
  vi.stubGlobal('fetch', fetched);
  const model = { name: 'Begins', expr: 'up offset $__interval', step: '30s' };
  const to = 1_767_225_600_000;
  expect(await queryAnnotation(model, { from: to - range, to }, {})).toEqual([]);
  expect(fetched).toHaveBeenCalledOnce();
});
