import { type DataFrame, EventBusSrv, type LinkModel, LoadingState } from '@grafana/data';
import {
  PanelChrome,
  type PanelContext,
  PanelContextProvider,
  SeriesVisibilityChangeMode,
} from '@grafana/ui';
import { useMemo, useState } from 'react';
import { applyFieldOptions } from '../grafana/fields';
import type { Panel } from '../model/dashboard';
import { isPanelType, unsupportedInPanel } from '../model/supported';
import { PANELS } from '../panels/registry';
import type { DashboardContext } from './context';
import { ErrorBoundary } from './ErrorBoundary';
import { PanelError } from './PanelError';
import { PanelLinks } from './PanelLinks';
import { type PanelData, usePanelData } from './usePanelData';
import { hideSeries, seriesNames, type Shown, toggleSeries } from './visibility';

interface PanelViewProps {
  panel: Panel;
  width: number;
  height: number;
  context: DashboardContext;
}

/** A panel in its frame; says how it stands in `data-state`: loading, done, empty or error. */
export function PanelView({ panel, width, height, context }: PanelViewProps) {
  const problems = useMemo(() => unsupportedInPanel(panel), [panel]);
  return problems.length > 0 ? (
    <Frame {...{ panel, width, height, context }} state="error" isLoading={false}>
      {() => <PanelError message={problems.join('\n')} />}
    </Frame>
  ) : (
    <SupportedPanel {...{ panel, width, height, context }} />
  );
}

function SupportedPanel({ panel, width, height, context }: PanelViewProps) {
  const { theme, timeZone, replace, annotations, cursorSync, onZoom } = context;
  const data = usePanelData(panel, width, context);
  const [shown, setShown] = useState<Shown>();
  const [drawError, setDrawError] = useState<string>();
  const drawn = useMemo(() => {
    const fields = applyFieldOptions(panel, data.frames, { replace, theme, timeZone });
    return hideSeries(fields, shown);
  }, [panel, data.frames, shown, replace, theme, timeZone]);
  const panelContext = useMemo(
    (): PanelContext => ({
      eventsScope: 'tailwatch',
      eventBus: new EventBusSrv(),
      sync: () => cursorSync,
      onToggleSeriesVisibility: (clicked, mode) =>
        setShown((last) => {
          const isAdding = mode === SeriesVisibilityChangeMode.AppendToSelection;
          return toggleSeries(last, seriesNames(drawn), clicked, isAdding);
        }),
    }),
    [cursorSync, drawn],
  );
  const error = data.error ?? drawError;
  const Body = isPanelType(panel.type) ? PANELS[panel.type] : undefined;
  return (
    <Frame
      {...{ panel, width, height, context }}
      state={error ? 'error' : stateOf(panel, data)}
      isLoading={data.isLoading}
    >
      {(innerWidth, innerHeight) => (
        <>
          {error && <PanelError message={error} />}
          {Body && data.timeRange && !data.error && (
            <ErrorBoundary resetOn={drawn} onError={setDrawError}>
              <PanelContextProvider value={panelContext}>
                <Body
                  panel={panel}
                  frames={drawn}
                  width={innerWidth}
                  height={innerHeight}
                  timeRange={data.timeRange}
                  timeZone={timeZone}
                  theme={theme}
                  replace={replace}
                  annotations={annotations}
                  cursorSync={cursorSync}
                  onZoom={onZoom}
                />
              </PanelContextProvider>
            </ErrorBoundary>
          )}
        </>
      )}
    </Frame>
  );
}

type State = 'loading' | 'done' | 'empty' | 'error';

interface FrameProps extends PanelViewProps {
  state: State;
  isLoading: boolean;
  children: (innerWidth: number, innerHeight: number) => React.ReactNode;
}

function Frame({ panel, width, height, context, state, isLoading, children }: FrameProps) {
  const { replace } = context;
  const title = replace(panel.title ?? '', undefined, 'text');
  const links = (panel.links ?? []).map((link): LinkModel => ({
    title: replace(link.title || link.url, undefined, 'text'),
    href: replace(link.url, undefined, 'uriencode'),
    target: link.targetBlank ? '_blank' : undefined,
    origin: panel,
  }));
  return (
    <div data-panel={title} data-panel-id={panel.id} data-state={state} style={{ width, height }}>
      <PanelChrome
        title={title}
        description={panel.description && replace(panel.description)}
        titleItems={links.length > 0 && <PanelLinks links={links} />}
        displayMode={panel.transparent ? 'transparent' : 'default'}
        loadingState={isLoading ? LoadingState.Loading : LoadingState.Done}
        width={width}
        height={height}
      >
        {children}
      </PanelChrome>
    </div>
  );
}

function stateOf(panel: Panel, { timeRange, frames }: PanelData): State {
  if (!timeRange) {
    return 'loading';
  }
  const needsData = panel.type !== 'text';
  return needsData && frames.every(isEmpty) ? 'empty' : 'done';
}

function isEmpty({ fields }: DataFrame): boolean {
  return fields
    .filter(({ type }) => type !== 'time')
    .every(({ values }) => values.every((value) => value === null || Number.isNaN(value)));
}
