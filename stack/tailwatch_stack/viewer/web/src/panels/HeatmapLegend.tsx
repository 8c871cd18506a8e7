import type { GrafanaTheme2 } from '@grafana/data';
import type { Limits, Ramp } from './heatmapPlot';

/** Pixels that the legend takes below the plot. */
export const LEGEND_HEIGHT = 32;

interface HeatmapLegendProps {
  limits: Limits;
  ramp: Ramp;
  width: number;
  theme: GrafanaTheme2;
}

/** The colours from the emptiest to the fullest cell. */
export function HeatmapLegend({ limits, ramp, width, theme }: HeatmapLegendProps) {
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

/** Three digits, or a dash where there is no sample. */
export function formatCount(count: number | null | undefined): string {
  if (count === null || count === undefined) {
    return '-';
  }
  return count.toLocaleString('en', { maximumSignificantDigits: 3 });
}
