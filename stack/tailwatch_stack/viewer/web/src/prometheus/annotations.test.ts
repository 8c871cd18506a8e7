import { expect, it } from 'vitest';
import { marks } from './annotations';

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
