import { dateTimeFormat, type GrafanaTheme2, type LinkModel, type TimeRange } from '@grafana/data';
import { DataLinksContextMenu, measureText, Tooltip } from '@grafana/ui';
import type { Segment } from '../model/segments';
import { timeTicks } from '../model/ticks';
import { LAST_TICK_WIDTH } from './axes';

const FONT_SIZE = 12;
const AXIS_HEIGHT = 22;
const MAX_NAME_WIDTH = 220;

export interface State {
  text: string;
  color: string;
}

export interface TimelineRow {
  name: string;
  segments: Segment<State>[];
  /** Where a click on a bar leads; the number is the segment's row. */
  links: (row: number) => LinkModel[];
}

interface TimelineProps {
  rows: TimelineRow[];
  /** Share of a row's height that its bar takes, 0..1. */
  rowHeight: number;
  /** Of the bars, 0..1. */
  opacity: number;
  showText: boolean;
  width: number;
  height: number;
  timeRange: TimeRange;
  timeZone: string;
  theme: GrafanaTheme2;
}

/** Rows of bars over a common time axis; a bar is a state, in its colour. */
export function Timeline(props: TimelineProps) {
  const { rows, width, height, timeRange, timeZone, theme } = props;
  const from = timeRange.from.valueOf();
  const to = timeRange.to.valueOf();
  const nameWidth = Math.min(
    MAX_NAME_WIDTH,
    width / 3,
    10 + Math.max(...rows.map(({ name }) => measureText(name, FONT_SIZE).width)),
  );
  const plotHeight = height - AXIS_HEIGHT;
  const rowHeight = plotHeight / rows.length;
  const barHeight = rowHeight * props.rowHeight;
  const x = (time: number) => nameWidth + ((time - from) / (to - from)) * (width - nameWidth);
  const isInside = (time: number) => x(time) < width - LAST_TICK_WIDTH;
  const ticks = timeTicks(from, to, Math.max(2, Math.floor((width - nameWidth) / 90)));
  return (
    <svg width={width} height={height} fontSize={FONT_SIZE} letterSpacing={0}>
      {ticks.times.filter(isInside).map((time) => (
        <g key={time}>
          <line
            x1={x(time)}
            x2={x(time)}
            y1={0}
            y2={plotHeight}
            stroke={theme.colors.border.weak}
          />
          <text x={x(time)} y={height - 6} textAnchor="middle" fill={theme.colors.text.secondary}>
            {dateTimeFormat(time, { timeZone, format: ticks.format })}
          </text>
        </g>
      ))}
      {rows.map(({ name, segments, links }, index) => {
        const middle = (index + 0.5) * rowHeight;
        return (
          <g key={index}>
            <text
              x={nameWidth - 8}
              y={middle + 4}
              textAnchor="end"
              fill={theme.colors.text.primary}
            >
              {shorten(name, nameWidth - 10)}
              <title>{name}</title>
            </text>
            {segments.map((segment) => (
              <Bar
                key={segment.from}
                segment={segment}
                links={links(segment.row)}
                left={Math.max(nameWidth, x(segment.from))}
                right={Math.min(width, x(segment.to))}
                top={middle - barHeight / 2}
                height={barHeight}
                opacity={props.opacity}
                showText={props.showText}
                tip={`${name}: ${segment.state.text}, ${interval(segment, timeZone)}`}
                theme={theme}
              />
            ))}
          </g>
        );
      })}
    </svg>
  );
}

interface BarProps {
  segment: Segment<State>;
  links: LinkModel[];
  left: number;
  right: number;
  top: number;
  height: number;
  opacity: number;
  showText: boolean;
  tip: string;
  theme: GrafanaTheme2;
}

function Bar(props: BarProps) {
  const { segment, links, left, right, top, height, opacity, showText, tip, theme } = props;
  const { text, color } = segment.state;
  const width = right - left;
  if (width <= 0) {
    return null;
  }
  const fits = showText && measureText(text, FONT_SIZE).width + 8 < width && height > FONT_SIZE;
  return (
    <g>
      <DataLinksContextMenu links={() => links}>
        {({ triggerProps }) => (
          <Tooltip content={tip}>
            <rect
              {...triggerProps}
              x={left}
              y={top}
              width={width}
              height={height}
              fill={color}
              fillOpacity={opacity}
            />
          </Tooltip>
        )}
      </DataLinksContextMenu>
      {fits && (
        <text
          x={left + 4}
          y={top + height / 2 + 4}
          fill={theme.colors.text.primary}
          pointerEvents="none"
        >
          {text}
        </text>
      )}
    </g>
  );
}

function interval({ from, to }: Segment<State>, timeZone: string): string {
  return `${dateTimeFormat(from, { timeZone })} – ${dateTimeFormat(to, { timeZone })}`;
}

function shorten(text: string, width: number): string {
  if (measureText(text, FONT_SIZE).width <= width) {
    return text;
  }
  let kept = text.length;
  while (kept > 1 && measureText(`${text.slice(0, kept)}…`, FONT_SIZE).width > width) {
    kept -= 1;
  }
  return `${text.slice(0, kept)}…`;
}
