const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const INTERVALS = [
  ...[1, 5, 10, 15, 30].map((seconds) => seconds * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * MINUTE),
  ...[1, 2, 3, 6, 12].map((hours) => hours * HOUR),
  ...[1, 2, 7, 14, 28].map((days) => days * DAY),
];

/** Round moments between two times (milliseconds), at most `count` or so, and how to write them. */
export function timeTicks(
  from: number,
  to: number,
  count: number,
): { times: number[]; format: string } {
  const interval = INTERVALS.find((size) => size >= (to - from) / count) ?? 28 * DAY;
  const times: number[] = [];
  for (let time = Math.ceil(from / interval) * interval; time <= to; time += interval) {
    times.push(time);
  }
  const format = interval < MINUTE ? 'HH:mm:ss' : interval < DAY ? 'HH:mm' : 'MM/DD';
  return { times, format };
}
