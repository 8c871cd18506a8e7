import {
  type DataFrame,
  dateTimeFormat,
  FieldType,
  formattedValueToString,
  getValueFormat,
  type GrafanaTheme2,
} from '@grafana/data';
import {
  AxisPlacement,
  ScaleDirection,
  ScaleDistribution,
  ScaleOrientation,
} from '@grafana/schema';
import {
  TooltipPlugin2,
  UPlotChart,
  UPlotConfigBuilder,
  VizTooltipContent,
  VizTooltipHeader,
  VizTooltipWrapper,
} from '@grafana/ui';
import { useMemo } from 'react';
import type uPlot from 'uplot';
import { type BucketGrid, perBucketCounts } from '../model/histogram';
import { TIME_AXIS_PADDING } from './axes';
import { colorRamp, DEFAULT_COLOR, type HeatmapColor } from './heatmapColors';
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

const LEGEND_HEIGHT = 32;
const AXIS_WIDTH = 64;
/** Pixels that a bucket's label needs. */
const LABEL_HEIGHT = 18;

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
      {legendHeight > 0 && <ColorLegend limits={limits} ramp={ramp} width={width} theme={theme} />}
    </div>
  );
}

type Ramp = (share: number) => string;

interface Limits {
  min: number;
  max: number;
  /** Counts up to here are blank. */
  blank: number;
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

function formatCount(count: number | null | undefined): string {
  if (count === null || count === undefined) {
    return '-';
  }
  return count.toLocaleString('en', { maximumSignificantDigits: 3 });
}

interface ConfigInput {
  grid: BucketGrid;
  limits: Limits;
  ramp: Ramp;
  formatBound: (bound: number) => string;
  cellGap: number;
  range: [number, number];
  timeZone: string;
  theme: GrafanaTheme2;
}

function heatmapConfig(input: ConfigInput): UPlotConfigBuilder {
  const { grid, formatBound, range, timeZone, theme } = input;
  const config = new UPlotConfigBuilder(timeZone);
  config.setPadding(TIME_AXIS_PADDING);
  config.addScale({
    scaleKey: 'x',
    isTime: true,
    orientation: ScaleOrientation.Horizontal,
    direction: ScaleDirection.Right,
    range: () => range,
  });
  config.addAxis({
    scaleKey: 'x',
    isTime: true,
    placement: AxisPlacement.Bottom,
    grid: { show: false },
    timeZone,
    theme,
  });
  // A bucket is a row of equal height whatever its width: latency grids are exponential.
  config.addScale({
    scaleKey: 'y',
    orientation: ScaleOrientation.Vertical,
    direction: ScaleDirection.Up,
    distribution: ScaleDistribution.Linear,
    range: () => [0, grid.rows.length],
  });
  config.addAxis({
    scaleKey: 'y',
    placement: AxisPlacement.Left,
    size: AXIS_WIDTH,
    grid: { show: false },
    splits: (u) => labelledRows(grid.rows.length, u.bbox.height / devicePixelRatio),
    values: (_u: uPlot, splits: number[]) =>
      splits.map((split) => formatBound(grid.rows[split - 1]?.le ?? 0)),
    theme,
  });
  // A series without a line: it is there for the cursor to have something to be over.
  config.setCursor({ points: { show: false } });
  config.addSeries({
    scaleKey: 'y',
    pathBuilder: () => null,
    pointsBuilder: () => undefined,
    theme,
  });
  config.addHook('draw', (u) => drawCells(u, input));
  return config;
}

/** The upper edges that get a label, counted from the top so that the highest has one. */
function labelledRows(rows: number, height: number): number[] {
  const every = Math.max(1, Math.ceil((rows * LABEL_HEIGHT) / height));
  return Array.from({ length: rows }, (_, index) => index + 1).filter(
    (edge) => (rows - edge) % every === 0,
  );
}

function drawCells(u: uPlot, { grid, limits, ramp, cellGap }: ConfigInput): void {
  const { times, rows } = grid;
  const step = times.length > 1 ? times[1]! - times[0]! : 60_000;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  u.ctx.clip();
  rows.forEach(({ counts }, index) => {
    const bottom = u.valToPos(index, 'y', true);
    const top = u.valToPos(index + 1, 'y', true);
    counts.forEach((count, column) => {
      if (count === null || count <= limits.blank) {
        return;
      }
      const right = u.valToPos(times[column]!, 'x', true);
      const left = u.valToPos(times[column]! - step, 'x', true);
      u.ctx.fillStyle = ramp((count - limits.min) / (limits.max - limits.min || 1));
      u.ctx.fillRect(left, top, shrunk(right - left, cellGap), shrunk(bottom - top, cellGap));
    });
  });
  u.ctx.restore();
}

/** A cell's side without the gap to the next; small cells have none, or gaps are all one sees. */
function shrunk(side: number, gap: number): number {
  return side > 8 * devicePixelRatio ? side - gap * devicePixelRatio : side;
}

interface ColorLegendProps {
  limits: Limits;
  ramp: Ramp;
  width: number;
  theme: GrafanaTheme2;
}

function ColorLegend({ limits, ramp, width, theme }: ColorLegendProps) {
  const stops = Array.from({ length: 12 }, (_, index) => ramp(index / 11));
  return (
    <div style={{ width: Math.min(320, width / 2), padding: theme.spacing(0.5, 1) }}>
      <div style={{ height: 8, background: `linear-gradient(90deg, ${stops.join(',')})` }} />
      <div
        style={{
          display: 'flex',
          justifyContent: 'space-between',
          fontSize: theme.typography.bodySmall.fontSize,
          color: theme.colors.text.secondary,
        }}
      >
        <span>{formatCount(limits.min)}</span>
        <span>{formatCount(limits.max)}</span>
      </div>
    </div>
  );
}
