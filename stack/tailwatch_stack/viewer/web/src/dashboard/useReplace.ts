import type { InterpolateFunction, TimeRange } from '@grafana/data';
import { useCallback, useMemo } from 'react';
import { dataLookup } from '../grafana/dataVariables';
import type { Dashboard } from '../model/dashboard';
import { interpolate, type Lookup, type Variables } from '../model/interpolate';
import { intervalLookup } from '../prometheus/query';
import { timeForUrl } from './useDashboardState';

/** What puts values into titles, texts and links, and what it looks names up in. */
export function useReplace(
  dashboard: Dashboard,
  timeRange: TimeRange,
  variables: Variables,
): { replace: InterpolateFunction; lookup: Lookup } {
  const lookup = useMemo(
    () => pageLookup(dashboard, timeRange, variables),
    [dashboard, timeRange, variables],
  );
  const replace: InterpolateFunction = useCallback(
    (template, scope, format) => {
      const ofData = dataLookup(scope);
      return interpolate(
        template,
        variables,
        (name, path) => ofData(name, path) ?? lookup(name, path),
        typeof format === 'string' ? format : undefined,
      );
    },
    [variables, lookup],
  );
  return { replace, lookup };
}

/** What a page's texts may refer to besides its variables. */
function pageLookup(
  dashboard: Dashboard,
  { from, to, raw }: TimeRange,
  variables: Variables,
): Lookup {
  const intervals = intervalLookup(0, 0, to.valueOf() - from.valueOf());
  const values: Record<string, () => string> = {
    __from: () => String(from.valueOf()),
    __to: () => String(to.valueOf()),
    __url_time_range: () =>
      new URLSearchParams({ from: timeForUrl(raw.from), to: timeForUrl(raw.to) }).toString(),
    __all_variables: () =>
      Object.keys(variables)
        .map((name) => interpolate(`\${${name}:queryparam}`, variables))
        .join('&'),
  };
  return (name, path) => {
    if (name === '__dashboard') {
      return path === 'uid' ? dashboard.uid : dashboard.title;
    }
    return name.startsWith('__range') ? intervals(name, path) : values[name]?.();
  };
}
