import type { DashboardCursorSync } from '@grafana/schema';
import type { DataLink, DataTransformerConfig, FieldConfigSource } from '@grafana/data';

/** The parts of Grafana's v1 dashboard JSON that the viewer reads. */
export interface Dashboard {
  uid: string;
  title: string;
  description?: string;
  tags?: string[];
  /** '' and 'browser' mean the browser's zone. */
  timezone?: string;
  time?: { from: string; to: string };
  refresh?: string | false;
  graphTooltip?: DashboardCursorSync;
  templating?: { list?: VariableModel[] };
  annotations?: { list?: AnnotationModel[] };
  links?: DashboardLink[];
  panels?: Panel[];
}

export interface GridPosition {
  x: number;
  y: number;
  w: number;
  h: number;
}

export interface Panel {
  id: number;
  type: string;
  title?: string;
  description?: string;
  transparent?: boolean;
  gridPos: GridPosition;
  options?: Record<string, unknown>;
  fieldConfig?: FieldConfigSource;
  targets?: Target[];
  transformations?: DataTransformerConfig[];
  links?: DataLink[];
  datasource?: DatasourceRef | string | null;
  /** Minimum step, a Prometheus duration. */
  interval?: string;
  maxDataPoints?: number | null;
  /** Rows only: whether it starts collapsed, and the panels it hides then. */
  collapsed?: boolean;
  panels?: Panel[];
  repeat?: string | null;
  timeFrom?: string | null;
  timeShift?: string | null;
  libraryPanel?: unknown;
}

export interface DatasourceRef {
  type?: string;
  uid?: string;
}

export interface Target {
  refId?: string;
  expr?: string;
  datasource?: DatasourceRef | string | null;
  format?: 'time_series' | 'table' | 'heatmap';
  instant?: boolean;
  range?: boolean;
  interval?: string;
  intervalFactor?: number;
  legendFormat?: string;
  hide?: boolean;
}

export interface VariableModel {
  name: string;
  type: string;
  label?: string | null;
  /** 0 shown, 1 shown without its label, 2 hidden. */
  hide?: number;
  query?: string | { query?: string };
  regex?: string;
  sort?: number;
  multi?: boolean;
  includeAll?: boolean;
  allValue?: string | null;
  current?: { value?: string | string[] };
}

export interface AnnotationModel {
  name: string;
  enable?: boolean;
  hide?: boolean;
  iconColor?: string;
  builtIn?: number | boolean;
  type?: string;
  datasource?: DatasourceRef | string | null;
  expr?: string;
  target?: { expr?: string };
  step?: string;
  titleFormat?: string;
  textFormat?: string;
  tagKeys?: string;
}

export interface DashboardLink {
  title?: string;
  type?: 'link' | 'dashboards';
  url?: string;
  tags?: string[];
  tooltip?: string;
  targetBlank?: boolean;
  keepTime?: boolean;
  includeVars?: boolean;
}

/** Every panel of the dashboard, those in collapsed rows too. */
export function allPanels(dashboard: Dashboard): Panel[] {
  return (dashboard.panels ?? []).flatMap((panel) => [panel, ...(panel.panels ?? [])]);
}
