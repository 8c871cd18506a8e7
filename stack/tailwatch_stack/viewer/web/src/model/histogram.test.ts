import { describe, expect, it } from 'vitest';
import { perBucketCounts } from './histogram';

const bucket = (le: string, ...values: Array<[number, number]>) => ({
  le,
  points: new Map(values),
});

describe('perBucketCounts', () => {
  it('subtracts the next smaller bucket, sorted by bound', () => {
    const grid = perBucketCounts([
      bucket('+Inf', [1, 10], [2, 20]),
      bucket('0.5', [1, 3], [2, 4]),
      bucket('10', [1, 9], [2, 20]),
    ]);
    expect(grid.times).toEqual([1, 2]);
    expect(grid.rows).toEqual([
      { le: 0.5, above: 0, counts: [3, 4] },
      { le: 10, above: 0.5, counts: [6, 16] },
      { le: Infinity, above: 10, counts: [1, 0] },
    ]);
  });

  it('never counts below zero', () => {
    const { rows } = perBucketCounts([bucket('1', [1, 5]), bucket('2', [1, 4.9])]);
    expect(rows.map(({ counts }) => counts)).toEqual([[5], [0]]);
  });

  it('leaves a hole where a bucket or the one below has no sample, or NaN', () => {
    const { rows } = perBucketCounts([
      bucket('1', [1, 5], [3, NaN]),
      bucket('2', [1, 6], [2, 7], [3, 8]),
    ]);
    expect(rows.map(({ counts }) => counts)).toEqual([
      [5, null, null],
      [1, null, null],
    ]);
  });

  it('refuses a bound that is not a number', () => {
    expect(() => perBucketCounts([bucket('big', [1, 5])])).toThrow('le="big"');
  });
});
