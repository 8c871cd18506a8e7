import type { GrafanaTheme2, InterpolateFunction, TimeRange } from '@grafana/data';
import type { DashboardCursorSync } from '@grafana/schema';
import type { Variables } from '../model/interpolate';
import type { AnnotationMark } from '../prometheus/annotations';

/** What the panels of a dashboard have in common. */
export interface DashboardContext {
  variables: Variables;
  timeRange: TimeRange;
  timeZone: string;
  theme: GrafanaTheme2;
  scrapeIntervalMs: number;
  cursorSync: DashboardCursorSync;
  annotations: AnnotationMark[];
  replace: InterpolateFunction;
  onZoom: (from: number, to: number) => void;
}
