import { dateMath } from '@grafana/data';
import type { Choices } from './variables';

/** What of a dashboard's state is in the address, under the names that Grafana uses. */
export interface UrlState {
  /** 'now-1h', or milliseconds since the epoch as text. */
  from?: string;
  to?: string;
  /** '' is off. */
  refresh?: string;
  choices: Choices;
}

const VARIABLE = 'var-';

export function readUrlState(search: string): UrlState {
  const parameters = new URLSearchParams(search);
  const choices: Record<string, string[]> = {};
  for (const name of new Set(parameters.keys())) {
    if (name.startsWith(VARIABLE)) {
      choices[name.slice(VARIABLE.length)] = parameters.getAll(name);
    }
  }
  return {
    from: parameters.get('from') ?? undefined,
    to: parameters.get('to') ?? undefined,
    refresh: parameters.get('refresh') ?? undefined,
    choices,
  };
}

/** The query string for a state; other parameters that were there stay. */
export function writeUrlState(state: UrlState, search: string): string {
  const parameters = new URLSearchParams(search);
  for (const name of [...parameters.keys()].filter((key) => key.startsWith(VARIABLE))) {
    parameters.delete(name);
  }
  for (const name of ['from', 'to', 'refresh'] as const) {
    const value = state[name];
    if (value === undefined) {
      parameters.delete(name);
    } else {
      parameters.set(name, value);
    }
  }
  for (const [name, values] of Object.entries(state.choices)) {
    values.forEach((value) => parameters.append(`${VARIABLE}${name}`, value));
  }
  const text = parameters.toString();
  return text ? `?${text}` : '';
}

/** A time as the address has it: digits are milliseconds, `2026-01-31T10:00:00Z` a date. */
export function parseTime(text: string): string | Date {
  if (text.startsWith('now') && dateMath.isValid(text)) {
    return text;
  }
  const date = new Date(/^\d+$/.test(text) ? Number(text) : text);
  if (Number.isNaN(date.valueOf())) {
    throw new Error(`"${text}" is not a time: expected now-1h, milliseconds or an ISO date`);
  }
  return date;
}
