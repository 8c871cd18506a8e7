import { cacheFieldDisplayNames } from '@grafana/data';
import { TableCellHeight } from '@grafana/schema';
import type { TableSortByFieldState } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { fieldConfigOf } from '../grafana/fields';
import { NoData } from './NoData';
import { optionsOf } from './options';
import type { PanelProps } from './props';

interface TableOptions {
  showHeader: boolean;
  frameIndex: number;
  sortBy?: TableSortByFieldState[];
  cellHeight: TableCellHeight;
  enablePagination: boolean;
}

const DEFAULTS: TableOptions = {
  showHeader: true,
  frameIndex: 0,
  cellHeight: TableCellHeight.Sm,
  enablePagination: false,
};

export function TablePanel({ panel, frames, width, height, timeRange }: PanelProps) {
  const options = optionsOf(panel, DEFAULTS);
  const frame = frames[options.frameIndex];
  const fieldConfig = fieldConfigOf(panel);
  if (!frame || frame.length === 0) {
    return <NoData text={fieldConfig.defaults.noValue} />;
  }
  cacheFieldDisplayNames(frames);
  return (
    <TableNG
      data={frame}
      width={width}
      height={height}
      noHeader={!options.showHeader}
      sortBy={options.sortBy}
      timeRange={timeRange}
      cellHeight={options.cellHeight}
      enablePagination={options.enablePagination}
      fieldConfig={fieldConfig}
    />
  );
}
