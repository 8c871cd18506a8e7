import {
  compareArrayValues,
  compareDataFrameStructures,
  type DataFrame,
  FieldType,
} from '@grafana/data';
import { LegendDisplayMode, TooltipDisplayMode, type VizLegendOptions } from '@grafana/schema';
import { TimeSeries, TooltipPlugin2, type UPlotConfigBuilder, usePanelContext } from '@grafana/ui';
import { useMemo, useRef } from 'react';
import { AnnotationLayer } from './AnnotationLayer';
import { TIME_AXIS_PADDING } from './axes';
import { NoData } from './NoData';
import type { PanelProps } from './props';
import { seriesLinks } from './seriesLinks';
import { SeriesTooltip } from './SeriesTooltip';
import {
  DEFAULT_TOOLTIP,
  HOVER_ALL,
  HOVER_NEAREST,
  SYNC_SCOPE,
  type TooltipOptions,
} from './tooltip';

const DEFAULT_LEGEND: VizLegendOptions = {
  showLegend: true,
  calcs: [],
  displayMode: LegendDisplayMode.List,
  placement: 'bottom',
};

export function TimeSeriesPanel(props: PanelProps) {
  const { panel, width, height, timeRange, timeZone, theme, annotations, cursorSync, onZoom } =
    props;
  const { sync } = usePanelContext();
  const frames = useMemo(() => props.frames.filter(isSeries), [props.frames]);
  const structureRev = useStructureRev(frames);
  const legend = useMemo(
    () => ({ ...DEFAULT_LEGEND, ...(panel.options?.legend as Partial<VizLegendOptions>) }),
    [panel],
  );
  const tooltip = { ...DEFAULT_TOOLTIP, ...(panel.options?.tooltip as Partial<TooltipOptions>) };
  if (frames.length === 0) {
    return <NoData text={panel.fieldConfig?.defaults.noValue} />;
  }
  return (
    <TimeSeries
      frames={frames}
      structureRev={structureRev}
      width={width}
      height={height}
      timeRange={timeRange}
      timeZone={timeZone}
      legend={legend}
      options={panel.options}
    >
      {(config, aligned) => (
        <>
          <RoomForLastTick config={config} />
          {tooltip.mode !== TooltipDisplayMode.None && (
            <TooltipPlugin2
              config={config}
              hoverMode={tooltip.mode === TooltipDisplayMode.Multi ? HOVER_ALL : HOVER_NEAREST}
              queryZoom={({ from, to }) => onZoom(from, to)}
              clientZoom
              syncMode={sync?.() ?? cursorSync}
              syncScope={SYNC_SCOPE}
              getDataLinks={(series, row) => seriesLinks(frames, aligned, series, row)}
              render={(_plot, rows, nearest, isPinned, _dismiss, _range, _viaSync, links) => (
                <SeriesTooltip
                  frame={aligned}
                  rows={rows}
                  nearest={nearest}
                  options={tooltip}
                  isPinned={isPinned}
                  links={links}
                  timeZone={timeZone}
                  theme={theme}
                />
              )}
            />
          )}
          {/* Without marks too: the layer's hooks count only from a plot's start. */}
          <AnnotationLayer config={config} marks={annotations} timeZone={timeZone} theme={theme} />
        </>
      )}
    </TimeSeries>
  );
}

/** Half of a time's label reaches beyond a plot that has no axis on the right. */
function RoomForLastTick({ config }: { config: UPlotConfigBuilder }) {
  config.setPadding(TIME_AXIS_PADDING);
  return null;
}

function isSeries({ fields }: DataFrame): boolean {
  return (
    fields.some(({ type }) => type === FieldType.time) &&
    fields.some(({ type }) => type === FieldType.number)
  );
}

/** A number that changes when fields come, go or change options: only then is a plot built anew. */
function useStructureRev(frames: DataFrame[]): number {
  const revision = useRef(1);
  const previous = useRef(frames);
  if (previous.current !== frames) {
    if (!compareArrayValues(frames, previous.current, compareDataFrameStructures)) {
      revision.current += 1;
    }
    previous.current = frames;
  }
  return revision.current;
}
