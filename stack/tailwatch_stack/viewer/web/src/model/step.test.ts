import { describe, expect, it } from 'vitest';
import { alignToStep, formatDuration, rateIntervalMs, stepMs } from './step';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;

describe('stepMs', () => {
  const input = (range: number, maxDataPoints: number, minStepMs?: number) => ({
    from: 0,
    to: range,
    maxDataPoints,
    scrapeIntervalMs: 15_000,
    minStepMs,
  });

  it('is never below the scrape interval', () => {
    expect(stepMs(input(30 * MINUTE, 1000))).toBe(15_000);
  });

  it('is rounded to a readable number', () => {
    expect(stepMs(input(6 * HOUR, 400))).toBe(MINUTE); // 54 s
    expect(stepMs(input(24 * HOUR, 400))).toBe(5 * MINUTE); // 216 s
  });

  it('takes the minimum step of the query instead of the scrape interval', () => {
    expect(stepMs(input(30 * MINUTE, 1000, MINUTE))).toBe(MINUTE);
    expect(stepMs(input(30 * MINUTE, 1000, 5_000))).toBe(5_000);
  });

  it('keeps to the number of points that Prometheus allows', () => {
    const range = 365 * 24 * HOUR;
    expect(range / stepMs(input(range, 1e9))).toBeLessThanOrEqual(11_000);
  });
});

describe('rateIntervalMs', () => {
  const scrape = { scrapeIntervalMs: 15_000 };

  it('holds four scrapes', () => {
    expect(rateIntervalMs(15_000, scrape)).toBe(60_000);
  });

  it('is a scrape longer than the step', () => {
    expect(rateIntervalMs(300_000, scrape)).toBe(315_000);
  });

  it('counts in minimum steps where the query has one', () => {
    expect(rateIntervalMs(60_000, { ...scrape, minStepMs: 60_000 })).toBe(240_000);
  });
});

it('aligns a range to the step', () => {
  expect(alignToStep(1_000_001, 1_099_999, 15_000)).toEqual([990_000, 1_095_000]);
});

it.each([
  [15_000, '15s'],
  [60_000, '1m'],
  [90_000, '90s'],
  [3_600_000, '1h'],
  [172_800_000, '2d'],
  [1_500, '1500ms'],
])('writes %i ms as %s', (ms, expected) => {
  expect(formatDuration(ms)).toBe(expected);
});
