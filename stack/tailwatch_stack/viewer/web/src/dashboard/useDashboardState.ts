import { dateTime, makeTimeRange, rangeUtil, type TimeRange } from '@grafana/data';
import { useCallback, useEffect, useMemo, useState } from 'react';
import type { Dashboard } from '../model/dashboard';
import { parseTime, readUrlState, type UrlState, writeUrlState } from '../model/urlState';

export interface DashboardState {
  url: UrlState;
  timeRange: TimeRange;
  timeZone: string;
  refresh: string;
  /** Change part of the state; the address follows, so that Back undoes it. */
  update: (change: Partial<UrlState>) => void;
  refreshNow: () => void;
  setTimeZone: (timeZone: string) => void;
}

/** Time range, refresh and variables, kept in the address under Grafana's names. */
export function useDashboardState(dashboard: Dashboard): DashboardState {
  const [url, setUrl] = useState(() => readUrlState(location.search));
  const [timeZone, setTimeZone] = useState(dashboard.timezone || 'browser');
  const [tick, setTick] = useState(0);
  const refreshNow = useCallback(() => setTick((count) => count + 1), []);
  const refresh = url.refresh ?? (dashboard.refresh || '');
  const from = url.from ?? dashboard.time?.from ?? 'now-1h';
  const to = url.to ?? dashboard.time?.to ?? 'now';

  const update = useCallback((change: Partial<UrlState>) => {
    const next = { ...readUrlState(location.search), ...change };
    history.pushState(null, '', `${location.pathname}${writeUrlState(next, location.search)}`);
    setUrl(next);
  }, []);
  useEffect(() => {
    const read = () => setUrl(readUrlState(location.search));
    addEventListener('popstate', read);
    return () => removeEventListener('popstate', read);
  }, []);
  useEffect(() => {
    if (!refresh) {
      return;
    }
    // A dashboard in a hidden tab asks nothing, and catches up when it is looked at.
    const onTick = () => document.visibilityState === 'visible' && refreshNow();
    const timer = setInterval(onTick, rangeUtil.intervalToMs(refresh));
    document.addEventListener('visibilitychange', onTick);
    return () => {
      clearInterval(timer);
      document.removeEventListener('visibilitychange', onTick);
    };
  }, [refresh, refreshNow]);
  const timeRange = useMemo(() => toTimeRange(from, to, timeZone), [from, to, timeZone, tick]);
  return { url, timeRange, timeZone, refresh, update, refreshNow, setTimeZone };
}

function toTimeRange(from: string, to: string, timeZone: string): TimeRange {
  const raw = { from: rawTime(from), to: rawTime(to) };
  return rangeUtil.convertRawToRange(raw, timeZone);
}

function rawTime(text: string) {
  const time = parseTime(text);
  return typeof time === 'string' ? time : dateTime(time);
}

/** A time as the address has it. */
export function timeForUrl(time: TimeRange['raw']['from']): string {
  return typeof time === 'string' ? time : String(time.valueOf());
}

/** The range moved by half its length, earlier or later. */
export function shifted({ from, to }: TimeRange, direction: -1 | 1): TimeRange {
  const half = ((to.valueOf() - from.valueOf()) / 2) * direction;
  return makeTimeRange(dateTime(from.valueOf() + half), dateTime(to.valueOf() + half));
}

/** Twice as long a range about the same middle. */
export function zoomedOut({ from, to }: TimeRange): TimeRange {
  const half = (to.valueOf() - from.valueOf()) / 2;
  return makeTimeRange(dateTime(from.valueOf() - half), dateTime(to.valueOf() + half));
}
