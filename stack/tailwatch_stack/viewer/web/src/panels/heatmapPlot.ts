import type { GrafanaTheme2 } from '@grafana/data';
import {
  AxisPlacement,
  ScaleDirection,
  ScaleDistribution,
  ScaleOrientation,
} from '@grafana/schema';
import { UPlotConfigBuilder } from '@grafana/ui';
import type uPlot from 'uplot';
import type { BucketGrid } from '../model/histogram';
import { TIME_AXIS_PADDING } from './axes';

const AXIS_WIDTH = 64;
/** Pixels that a bucket's label needs. */
const LABEL_HEIGHT = 18;

/** Colour for a share 0..1 of the fullest cell. */
export type Ramp = (share: number) => string;

/** The counts that cells have. */
export interface Limits {
  min: number;
  max: number;
  /** Counts up to here are blank. */
  blank: number;
}

interface HeatmapPlot {
  grid: BucketGrid;
  limits: Limits;
  ramp: Ramp;
  formatBound: (bound: number) => string;
  cellGap: number;
  range: [number, number];
  timeZone: string;
  theme: GrafanaTheme2;
}

/** The plot of a grid of counts: a row per bucket, a column per step. */
export function heatmapConfig(input: HeatmapPlot): UPlotConfigBuilder {
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

function drawCells(u: uPlot, { grid, limits, ramp, cellGap }: HeatmapPlot): void {
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
