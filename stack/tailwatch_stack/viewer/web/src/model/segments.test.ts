import { describe, expect, it } from 'vitest';
import { toSegments } from './segments';

const state = (value: unknown) => (value === 9 ? null : String(value));
const same = (a: string, b: string) => a === b;

describe('toSegments', () => {
  it('merges equal neighbours and lasts to the end', () => {
    expect(toSegments([0, 10, 20, 30], [1, 1, 2, 2], { end: 35, step: 10 }, state, same)).toEqual([
      { from: 0, to: 20, state: '1', row: 0 },
      { from: 20, to: 35, state: '2', row: 2 },
    ]);
  });

  it('leaves a gap where samples are missing or have no state', () => {
    expect(toSegments([0, 50, 60], [1, 1, 9], { end: 90, step: 10 }, state, same)).toEqual([
      { from: 0, to: 10, state: '1', row: 0 },
      { from: 50, to: 60, state: '1', row: 1 },
    ]);
    expect(toSegments([0, 10, 20], [1, null, 1], { end: 30, step: 10 }, state, same)).toHaveLength(
      2,
    );
  });

  it('can leave equal neighbours apart', () => {
    expect(toSegments([0, 10], [1, 1], { end: 20, step: 10 }, state, () => false)).toHaveLength(2);
  });
});
