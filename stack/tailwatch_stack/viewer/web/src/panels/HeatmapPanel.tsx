import {
  type DataFrame,
  dateTimeFormat,
  FieldType,
  formattedValueToString,
  getValueFormat,
} from '@grafana/data';
import {
  TooltipPlugin2,
  UPlotChart,
  VizTooltipContent,
  VizTooltipHeader,
  VizTooltipWrapper,
} from '@grafana/ui';
import { useMemo } from 'react';
import type uPlot from 'uplot';
import { type BucketGrid, perBucketCounts } from '../model/histogram';
import { colorRamp, DEFAULT_COLOR, type HeatmapColor } from './heatmapColors';
import { formatCount, HeatmapLegend, LEGEND_HEIGHT } from './HeatmapLegend';
import { heatmapConfig, type Limits } from './heatmapPlot';
import { NoData } from './NoData';
import { optionsOf } from './options';
import type { PanelProps } from './props';
import { HOVER_ALL, SYNC_SCOPE } from './tooltip';

interface HeatmapOptions {
  color?: Partial<HeatmapColor>;
  yAxis?: { unit?: string; decimals?: number };
  /** Cells with no more than this are left blank. */
  filterValues?: { le?: number };
  cellGap: number;
  legend?: { show?: boolean };
  calculate?: boolean;
}

export function HeatmapPanel(props: PanelProps) {
  const { panel, frames, width, height, timeRange, timeZone, theme, cursorSync, onZoom } = props;
  const options = useMemo(() => optionsOf<HeatmapOptions>(panel, { cellGap: 1 }), [panel]);
  if (options.calculate) {
    throw new Error('A heatmap calculated from raw series is not supported: query buckets.');
  }
  const grid = useMemo(() => perBucketCounts(frames.flatMap(bucketOf)), [frames]);
  const ramp = useMemo(
    () => colorRamp({ ...DEFAULT_COLOR, ...options.color }, theme.isDark),
    [options, theme],
  );
  const limits = useMemo(
    () => countLimits(grid, options.filterValues?.le ?? 1e-9),
    [grid, options],
  );
  const formatBound = useMemo(() => boundFormat(options), [options]);
  const config = useMemo(
    () =>
      heatmapConfig({
        grid,
        limits,
        ramp,
        formatBound,
        cellGap: options.cellGap,
        range: [timeRange.from.valueOf(), timeRange.to.valueOf()],
        timeZone,
        theme,
      }),
    [grid, limits, ramp, formatBound, options, timeRange, timeZone, theme],
  );
  if (grid.times.length === 0) {
    return <NoData text={panel.fieldConfig?.defaults.noValue} />;
  }
  const legendHeight = options.legend?.show === false ? 0 : LEGEND_HEIGHT;
  const cellAt = (u: uPlot) => {
    const row = grid.rows[Math.floor(u.posToVal(u.cursor.top ?? -1, 'y'))];
    const cursorTime = u.posToVal(u.cursor.left ?? -1, 'x');
    const column = grid.times.findIndex((time) => time >= cursorTime);
    return row && column >= 0
      ? { row, time: grid.times[column]!, count: row.counts[column] }
      : null;
  };
  return (
    <div>
      <UPlotChart
        config={config}
        data={[grid.times, grid.times.map(() => 0)]}
        width={width}
        height={height - legendHeight}
      >
        <TooltipPlugin2
          config={config}
          hoverMode={HOVER_ALL}
          queryZoom={({ from, to }) => onZoom(from, to)}
          clientZoom
          syncMode={cursorSync}
          syncScope={SYNC_SCOPE}
          render={(u, _rows, _series, isPinned) => {
            const cell = cellAt(u);
            return (
              cell && (
                <VizTooltipWrapper>
                  <VizTooltipHeader
                    item={{ label: '', value: dateTimeFormat(cell.time, { timeZone }) }}
                    isPinned={isPinned}
                  />
                  <VizTooltipContent
                    isPinned={isPinned}
                    items={[
                      {
                        label: 'Bucket',
                        value: `${formatBound(cell.row.above)} – ${formatBound(cell.row.le)}`,
                      },
                      { label: 'Count', value: formatCount(cell.count) },
                    ]}
                  />
                </VizTooltipWrapper>
              )
            );
          }}
        />
      </UPlotChart>
      {legendHeight > 0 && (
        <HeatmapLegend limits={limits} ramp={ramp} width={width} theme={theme} />
      )}
    </div>
  );
}

function bucketOf(frame: DataFrame) {
  const time = frame.fields.find(({ type }) => type === FieldType.time);
  const value = frame.fields.find(({ type }) => type === FieldType.number);
  const le = value?.labels?.le;
  if (!time || !value || le === undefined) {
    throw new Error('A heatmap needs one series per bucket, told apart by the label le.');
  }
  const points = new Map<number, number>(
    time.values.map((moment: number, index: number) => [moment, value.values[index]]),
  );
  return { le, points };
}

function countLimits({ rows }: BucketGrid, blank: number): Limits {
  let min = Infinity;
  let max = 0;
  for (const count of rows.flatMap(({ counts }) => counts)) {
    if (count !== null && count > blank) {
      min = Math.min(min, count);
      max = Math.max(max, count);
    }
  }
  return { min: Number.isFinite(min) ? min : 0, max, blank };
}

function boundFormat({ yAxis }: HeatmapOptions): (bound: number) => string {
  const format = getValueFormat(yAxis?.unit ?? 'short');
  return (bound) =>
    bound === Infinity ? '+Inf' : formattedValueToString(format(bound, yAxis?.decimals));
}
