import type { DataFrame, GrafanaTheme2, InterpolateFunction, TimeRange } from '@grafana/data';
import type { DashboardCursorSync } from '@grafana/schema';
import type { Panel } from '../model/dashboard';
import type { AnnotationMark } from '../prometheus/annotations';

/** What every panel component gets; sizes in pixels, inside the panel's frame. */
export interface PanelProps {
  panel: Panel;
  /** Transformed, with the field options applied. */
  frames: DataFrame[];
  width: number;
  height: number;
  /** The range that the frames were asked for. */
  timeRange: TimeRange;
  timeZone: string;
  theme: GrafanaTheme2;
  replace: InterpolateFunction;
  annotations: AnnotationMark[];
  cursorSync: DashboardCursorSync;
  onZoom: (from: number, to: number) => void;
}
