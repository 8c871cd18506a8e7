/** A stretch of time in one state. Milliseconds since the epoch. */
export interface Segment<State> {
  from: number;
  to: number;
  state: State;
  /** Of its first sample. */
  row: number;
}

/**
 * Turn samples into stretches: a state lasts until the next sample, but no longer than a step, so
 * that a gap in the data is a gap in the picture.
 *
 * @param toState null leaves a hole
 * @param step milliseconds between samples; without it a state lasts until the next sample
 * @param isSame says whether neighbours are merged
 */
export function toSegments<State>(
  times: number[],
  values: unknown[],
  { end, step = Infinity }: { end: number; step?: number },
  toState: (value: unknown) => State | null,
  isSame: (a: State, b: State) => boolean,
): Segment<State>[] {
  const segments: Segment<State>[] = [];
  times.forEach((from, index) => {
    const value = values[index];
    const state = value === null || value === undefined ? null : toState(value);
    if (state === null) {
      return;
    }
    const to = Math.min(times[index + 1] ?? end, from + step, end);
    const last = segments.at(-1);
    if (last && last.to === from && isSame(last.state, state)) {
      last.to = to;
    } else if (to > from) {
      segments.push({ from, to, state, row: index });
    }
  });
  return segments;
}
