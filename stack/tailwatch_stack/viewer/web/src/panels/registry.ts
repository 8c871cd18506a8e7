import type { ComponentType } from 'react';
import type { PanelType } from '../model/supported';
import { BarGaugePanel } from './BarGaugePanel';
import { GaugePanel } from './GaugePanel';
import { HeatmapPanel } from './HeatmapPanel';
import type { PanelProps } from './props';
import { StateTimelinePanel } from './StateTimelinePanel';
import { StatPanel } from './StatPanel';
import { TablePanel } from './TablePanel';
import { TextPanel } from './TextPanel';
import { TimeSeriesPanel } from './TimeSeriesPanel';

export const PANELS: Record<PanelType, ComponentType<PanelProps>> = {
  timeseries: TimeSeriesPanel,
  stat: StatPanel,
  gauge: GaugePanel,
  bargauge: BarGaugePanel,
  table: TablePanel,
  heatmap: HeatmapPanel,
  'state-timeline': StateTimelinePanel,
  text: TextPanel,
};
