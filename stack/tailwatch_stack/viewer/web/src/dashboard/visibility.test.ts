import { expect, it } from 'vitest';
import { toggleSeries } from './visibility';

const all = ['a', 'b', 'c'];

it('a click shows a series alone, a second one all again', () => {
  const alone = toggleSeries(undefined, all, 'b', false);
  expect(alone).toEqual(new Set(['b']));
  expect(toggleSeries(alone, all, 'a', false)).toEqual(new Set(['a']));
  expect(toggleSeries(alone, all, 'b', false)).toBeUndefined();
});

it('with Ctrl a series is hidden and shown', () => {
  const without = toggleSeries(undefined, all, 'b', true);
  expect(without).toEqual(new Set(['a', 'c']));
  expect(toggleSeries(without, all, 'b', true)).toBeUndefined();
});
