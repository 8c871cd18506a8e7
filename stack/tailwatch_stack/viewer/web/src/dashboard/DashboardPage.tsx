import type { TimeRange } from '@grafana/data';
import { DashboardCursorSync } from '@grafana/schema';
import { Alert, RefreshPicker, TimeRangePicker, useTheme2 } from '@grafana/ui';
import { useCallback, useMemo } from 'react';
import { PageHeader } from '../app/PageHeader';
import type { AnnotationModel, Dashboard, Panel, VariableModel } from '../model/dashboard';
import type { Variables } from '../model/interpolate';
import { dashboardLinks, type DashboardSummary } from '../model/links';
import { unsupportedAroundPanels } from '../model/supported';
import { AnnotationSwitches } from './AnnotationSwitches';
import { DashboardLinks } from './DashboardLinks';
import { PanelGrid } from './PanelGrid';
import { useAnnotations } from './useAnnotations';
import { shifted, timeForUrl, useDashboardState, zoomedOut } from './useDashboardState';
import { useReplace } from './useReplace';
import { useVariables } from './useVariables';
import { VariableControls } from './VariableControls';

const NO_VARIABLES: Variables = {};
const NO_VARIABLE_MODELS: VariableModel[] = [];
const NO_ANNOTATIONS: AnnotationModel[] = [];
const NO_PANELS: Panel[] = [];

interface DashboardPageProps {
  dashboard: Dashboard;
  others: DashboardSummary[];
  scrapeIntervalMs: number;
}

export function DashboardPage({ dashboard, others, scrapeIntervalMs }: DashboardPageProps) {
  const theme = useTheme2();
  const { url, timeRange, timeZone, refresh, update, refreshNow, setTimeZone } =
    useDashboardState(dashboard);
  const models = dashboard.templating?.list ?? NO_VARIABLE_MODELS;
  const { resolved, error: variableError } = useVariables(models, url.choices, timeRange);
  const variables = resolved?.variables ?? NO_VARIABLES;
  const annotations = useAnnotations(
    dashboard.annotations?.list ?? NO_ANNOTATIONS,
    timeRange,
    resolved?.variables,
  );
  const { replace, lookup } = useReplace(dashboard, timeRange, variables);
  const setRange = ({ raw }: TimeRange) =>
    update({ from: timeForUrl(raw.from), to: timeForUrl(raw.to) });
  const onZoom = useCallback(
    (from: number, to: number) =>
      update({ from: String(Math.round(from)), to: String(Math.round(to)) }),
    [update],
  );
  const problems = useMemo(() => unsupportedAroundPanels(dashboard), [dashboard]);
  const shownProblems = [...problems, variableError, annotations.error].filter(Boolean);
  return (
    <>
      <PageHeader title={dashboard.title} dashboards={others} current={dashboard.uid}>
        <TimeRangePicker
          value={timeRange}
          timeZone={timeZone}
          onChange={setRange}
          onChangeTimeZone={setTimeZone}
          onMoveBackward={() => setRange(shifted(timeRange, -1))}
          onMoveForward={() => setRange(shifted(timeRange, 1))}
          onZoom={() => setRange(zoomedOut(timeRange))}
          isOnCanvas
        />
        <RefreshPicker
          value={refresh}
          onRefresh={refreshNow}
          onIntervalChanged={(interval) => update({ refresh: interval })}
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
            onChoose={(name, values) => update({ choices: { ...url.choices, [name]: values } })}
          />
        )}
        <AnnotationSwitches annotations={annotations} />
        <div style={{ flex: 1 }} />
        <DashboardLinks links={dashboardLinks(dashboard, others, variables, lookup)} />
      </div>
      {shownProblems.map((problem) => (
        <div key={problem} style={{ margin: theme.spacing(0, 2) }}>
          <Alert title={problem ?? ''} severity="error" />
        </div>
      ))}
      {resolved && (
        <PanelGrid
          panels={dashboard.panels ?? NO_PANELS}
          context={{
            variables,
            timeRange,
            timeZone,
            theme,
            scrapeIntervalMs,
            cursorSync: dashboard.graphTooltip ?? DashboardCursorSync.Off,
            annotations: annotations.marks,
            replace,
            onZoom,
          }}
        />
      )}
    </>
  );
}
