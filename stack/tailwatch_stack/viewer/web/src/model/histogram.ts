export interface Bucket {
  /** Upper bound as Prometheus writes it, '+Inf' included. */
  le: string;
  /** Milliseconds since the epoch to value. */
  points: ReadonlyMap<number, number>;
}

export interface BucketRow {
  le: number;
  /** Lower bound: the next smaller bucket's `le`, or 0. */
  above: number;
  /** Per instant of `times`: observations in this bucket alone, null where it or the bucket below has no sample. */
  counts: Array<number | null>;
}

export interface BucketGrid {
  times: number[];
  rows: BucketRow[];
}

/**
 * Turn cumulative `le` buckets into counts per bucket.
 *
 * Rates of neighbouring buckets are read at slightly different moments, so a difference can come
 * out below zero: it counts as none.
 */
export function perBucketCounts(buckets: Bucket[]): BucketGrid {
  const ascending = buckets.toSorted((a, b) => upperBound(a.le) - upperBound(b.le));
  const times = [...new Set(ascending.flatMap(({ points }) => [...points.keys()]))].toSorted(
    (a, b) => a - b,
  );
  const rows = ascending.map(({ le, points }, index) => {
    const below = ascending[index - 1];
    return {
      le: upperBound(le),
      above: below ? upperBound(below.le) : 0,
      counts: times.map((time) => {
        const value = points.get(time) ?? NaN;
        const smaller = below ? (below.points.get(time) ?? NaN) : 0;
        const count = value - smaller;
        return Number.isNaN(count) ? null : Math.max(0, count);
      }),
    };
  });
  return { times, rows };
}

/** @throws Error where `le` is not a number */
export function upperBound(le: string): number {
  const bound = le === '+Inf' ? Infinity : Number(le);
  if (le === '' || Number.isNaN(bound)) {
    throw new Error(`le="${le}" is not a number`);
  }
  return bound;
}
