import { rangeUtil } from '@grafana/data';

/** Prometheus refuses a range query with more points than this in one series. */
const MAX_POINTS = 11_000;

export interface StepInput {
  /** Milliseconds since the epoch. */
  from: number;
  to: number;
  /** Points a series may have, usually the panel's width in pixels. */
  maxDataPoints: number;
  /** How often targets are scraped: a smaller step shows nothing more. */
  scrapeIntervalMs: number;
  /** The query's or panel's own minimum step, if it has one. */
  minStepMs?: number;
}

/** Milliseconds between two points, rounded to a readable number as Grafana does. */
export function stepMs(input: StepInput): number {
  const range = input.to - input.from;
  const rounded = rangeUtil.roundInterval(range / input.maxDataPoints);
  return allowedStepMs(Math.max(rounded, input.minStepMs ?? input.scrapeIntervalMs), range);
}

/** The wanted step, or the smallest that Prometheus allows for the range. Milliseconds. */
export function allowedStepMs(wanted: number, range: number): number {
  return Math.max(wanted, Math.ceil(range / MAX_POINTS));
}

/**
 * The window for rate(): holds at least four scrapes, so that one lost scrape leaves a rate, and a
 * scrape more than a step, so that no increase falls between two windows.
 */
export function rateIntervalMs(
  step: number,
  { scrapeIntervalMs, minStepMs }: Pick<StepInput, 'scrapeIntervalMs' | 'minStepMs'>,
): number {
  const scrape = minStepMs ?? scrapeIntervalMs;
  return Math.max(step + scrape, 4 * scrape);
}

/** `[from, to]` moved down to multiples of the step: a refresh then asks for the same instants. */
export function alignToStep(from: number, to: number, step: number): [number, number] {
  return [Math.floor(from / step) * step, Math.floor(to / step) * step];
}

/** A Prometheus duration in the largest unit that divides it. */
export function formatDuration(ms: number): string {
  for (const [unit, size] of UNITS) {
    if (ms >= size && ms % size === 0) {
      return `${ms / size}${unit}`;
    }
  }
  return `${Math.round(ms)}ms`;
}

const UNITS = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['m', 60_000],
  ['s', 1_000],
] as const;
