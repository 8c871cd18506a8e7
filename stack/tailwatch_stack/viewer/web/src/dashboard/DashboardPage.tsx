import type { InterpolateFunction, TimeRange } from '@grafana/data';
import { DashboardCursorSync } from '@grafana/schema';
import {
  Alert,
  InlineSwitch,
  LinkButton,
  RefreshPicker,
  TimeRangePicker,
  useTheme2,
} from '@grafana/ui';
import { useCallback, useMemo, useState } from 'react';
import { PageHeader } from '../app/PageHeader';
import { dataLookup } from '../grafana/dataVariables';
import type { Dashboard, Panel } from '../model/dashboard';
import { interpolate, type Lookup } from '../model/interpolate';
import { dashboardLinks, type DashboardSummary } from '../model/links';
import { intervalLookup } from '../prometheus/query';
import type { DashboardContext } from './context';
import { PanelGrid } from './PanelGrid';
import { useAnnotations } from './useAnnotations';
import { shifted, timeForUrl, useDashboardState, zoomedOut } from './useDashboardState';
import { useVariables } from './useVariables';
import { VariableControls } from './VariableControls';

interface DashboardPageProps {
  dashboard: Dashboard;
  others: DashboardSummary[];
  scrapeIntervalMs: number;
}

export function DashboardPage({ dashboard, others, scrapeIntervalMs }: DashboardPageProps) {
  const theme = useTheme2();
  const state = useDashboardState(dashboard);
  const { timeRange, timeZone, update } = state;
  const models = useMemo(() => dashboard.templating?.list ?? [], [dashboard]);
  const { resolved, error: variableError } = useVariables(models, state.url.choices, timeRange);
  const annotationModels = useMemo(
    () => (dashboard.annotations?.list ?? []).filter(({ builtIn }) => !builtIn),
    [dashboard],
  );
  const [switchedOff, setSwitchedOff] = useState<ReadonlySet<string>>(
    () => new Set(annotationModels.filter(({ enable }) => !enable).map(({ name }) => name)),
  );
  const { marks, error: annotationError } = useAnnotations(
    annotationModels,
    switchedOff,
    timeRange,
    resolved?.variables,
  );
  const setRange = useCallback(
    ({ raw }: TimeRange) => update({ from: timeForUrl(raw.from), to: timeForUrl(raw.to) }),
    [update],
  );
  const onZoom = useCallback(
    (from: number, to: number) =>
      update({ from: String(Math.round(from)), to: String(Math.round(to)) }),
    [update],
  );

  const variables = resolved?.variables;
  const lookup = useMemo(
    () => pageLookup(dashboard, timeRange, variables ?? {}),
    [dashboard, timeRange, variables],
  );
  const replace: InterpolateFunction = useCallback(
    (template, scope, format) => {
      const ofData = dataLookup(scope);
      return interpolate(
        template,
        variables ?? {},
        (name, path) => ofData(name, path) ?? lookup(name, path),
        typeof format === 'string' ? format : undefined,
      );
    },
    [variables, lookup],
  );
  const context: DashboardContext | undefined = variables && {
    variables,
    timeRange,
    timeZone,
    theme,
    scrapeIntervalMs,
    cursorSync: (dashboard.graphTooltip ?? 0) as DashboardCursorSync,
    annotations: marks,
    replace,
    onZoom,
  };
  const problem = variableError ?? annotationError;
  const toggleAnnotation = (name: string) =>
    setSwitchedOff((last) => {
      const next = new Set(last);
      return next.delete(name) ? next : next.add(name);
    });
  return (
    <>
      <PageHeader title={dashboard.title} dashboards={others} current={dashboard.uid}>
        <TimeRangePicker
          value={timeRange}
          timeZone={timeZone}
          onChange={setRange}
          onChangeTimeZone={state.setTimeZone}
          onMoveBackward={() => setRange(shifted(timeRange, -1))}
          onMoveForward={() => setRange(shifted(timeRange, 1))}
          onZoom={() => setRange(zoomedOut(timeRange))}
          isOnCanvas
        />
        <RefreshPicker
          value={state.refresh}
          onRefresh={state.refreshNow}
          onIntervalChanged={(refresh) => update({ refresh })}
          isOnCanvas
        />
      </PageHeader>
      <div
        style={{
          display: 'flex',
          flexWrap: 'wrap',
          alignItems: 'center',
          gap: theme.spacing(1),
          padding: theme.spacing(1, 2),
        }}
      >
        {resolved && (
          <VariableControls
            models={models}
            resolved={resolved}
            onChoose={(name, values) =>
              update({ choices: { ...state.url.choices, [name]: values } })
            }
          />
        )}
        {annotationModels
          .filter(({ hide }) => !hide)
          .map(({ name }) => (
            <InlineSwitch
              key={name}
              label={name}
              showLabel
              value={!switchedOff.has(name)}
              onChange={() => toggleAnnotation(name)}
            />
          ))}
        <div style={{ flex: 1 }} />
        {dashboardLinks(dashboard, others, variables ?? {}, lookup).map(
          ({ title, href, tooltip, newTab }) => (
            <LinkButton
              key={`${title}-${href}`}
              href={href}
              target={newTab ? '_blank' : undefined}
              tooltip={tooltip}
              variant="secondary"
              fill="outline"
              size="sm"
              icon="apps"
            >
              {title}
            </LinkButton>
          ),
        )}
      </div>
      {problem && (
        <div style={{ margin: theme.spacing(0, 2) }}>
          <Alert title={problem} severity="error" />
        </div>
      )}
      {context && <PanelGrid panels={dashboard.panels ?? NO_PANELS} context={context} />}
    </>
  );
}

const NO_PANELS: Panel[] = [];

/** What titles, texts and links may refer to besides the variables. */
function pageLookup(
  dashboard: Dashboard,
  { from, to, raw }: TimeRange,
  variables: DashboardContext['variables'],
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
