import { TooltipDisplayMode } from '@grafana/schema';

/** Hover modes of TooltipPlugin2, whose const enum is not exported. */
export const HOVER_NEAREST = 0;
export const HOVER_ALL = 1;

/** The name under which graphs of a dashboard share their crosshair. */
export const SYNC_SCOPE = 'tailwatch-dashboard';

export interface TooltipOptions {
  mode: TooltipDisplayMode;
  sort?: 'asc' | 'desc' | 'none';
  hideZeros?: boolean;
}

export const DEFAULT_TOOLTIP: TooltipOptions = { mode: TooltipDisplayMode.Single };
