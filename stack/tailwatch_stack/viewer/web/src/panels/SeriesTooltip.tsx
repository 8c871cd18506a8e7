import {
  type DataFrame,
  dateTimeFormat,
  formattedValueToString,
  getDisplayProcessor,
  getFieldDisplayName,
  getFieldSeriesColor,
  type GrafanaTheme2,
  type LinkModel,
} from '@grafana/data';
import {
  VizTooltipContent,
  VizTooltipFooter,
  VizTooltipHeader,
  type VizTooltipItem,
  VizTooltipWrapper,
} from '@grafana/ui';
import { TooltipDisplayMode } from '@grafana/schema';
import type { TooltipOptions } from './tooltip';

interface SeriesTooltipProps {
  /** Time first, then one field per series, as they are plotted. */
  frame: DataFrame;
  /** Per field the row under the cursor, null where the series has none near. */
  rows: Array<number | null>;
  /** The field nearest to the cursor. */
  nearest: number | null;
  options: TooltipOptions;
  isPinned: boolean;
  links: LinkModel[];
  timeZone: string;
  theme: GrafanaTheme2;
}

export function SeriesTooltip({
  frame,
  rows,
  isPinned,
  links,
  timeZone,
  ...rest
}: SeriesTooltipProps) {
  const row = rows.find((index) => index !== null && index !== undefined) ?? 0;
  const time: number = frame.fields[0]?.values[row];
  return (
    <VizTooltipWrapper>
      <VizTooltipHeader
        item={{ label: '', value: dateTimeFormat(time, { timeZone }) }}
        isPinned={isPinned}
      />
      <VizTooltipContent
        items={tooltipItems({ frame, rows, ...rest })}
        isPinned={isPinned}
        scrollable
        maxHeight={400}
      />
      {isPinned && links.length > 0 && <VizTooltipFooter dataLinks={links} />}
    </VizTooltipWrapper>
  );
}

type ItemsInput = Pick<SeriesTooltipProps, 'frame' | 'rows' | 'nearest' | 'options' | 'theme'>;

function tooltipItems({ frame, rows, nearest, options, theme }: ItemsInput): VizTooltipItem[] {
  const items = frame.fields.flatMap((field, index): VizTooltipItem[] => {
    const row = rows[index];
    const hidden = field.config.custom?.hideFrom;
    if (index === 0 || row === null || row === undefined || hidden?.viz || hidden?.tooltip) {
      return [];
    }
    if (options.mode === TooltipDisplayMode.Single && index !== nearest) {
      return [];
    }
    const value: unknown = field.values[row];
    if (value === null || value === undefined || (options.hideZeros && value === 0)) {
      return [];
    }
    const display = (field.display ?? getDisplayProcessor({ field, theme }))(value);
    return [
      {
        label: getFieldDisplayName(field, frame),
        value: formattedValueToString(display),
        numeric: display.numeric,
        color: getFieldSeriesColor(field, theme).color,
        lineStyle: field.config.custom?.lineStyle,
        isActive: index === nearest,
      },
    ];
  });
  if (options.sort === 'asc' || options.sort === 'desc') {
    const sign = options.sort === 'asc' ? 1 : -1;
    items.sort((a, b) => sign * ((a.numeric ?? 0) - (b.numeric ?? 0)));
  }
  return items;
}
