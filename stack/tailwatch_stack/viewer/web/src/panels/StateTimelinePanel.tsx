import {
  dateTimeFormat,
  type DisplayValue,
  type Field,
  FieldType,
  formattedValueToString,
  getDisplayProcessor,
  getFieldDisplayName,
  type GrafanaTheme2,
} from '@grafana/data';
import { LegendDisplayMode, type VizLegendOptions } from '@grafana/schema';
import { measureText, Tooltip, VizLayout, VizLegend } from '@grafana/ui';
import { type Segment, toSegments } from '../model/segments';
import { timeTicks } from '../model/ticks';
import { LAST_TICK_WIDTH } from './axes';
import { NoData } from './NoData';
import { optionsOf } from './options';
import type { PanelProps } from './props';

interface StateTimelineOptions {
  mergeValues: boolean;
  showValue: 'auto' | 'always' | 'never';
  /** Share of a row's height that its bar takes, 0..1. */
  rowHeight: number;
  alignValue: 'left' | 'center' | 'right';
  legend?: Partial<VizLegendOptions>;
}

const DEFAULTS: StateTimelineOptions = {
  mergeValues: true,
  showValue: 'auto',
  rowHeight: 0.9,
  alignValue: 'left',
};

const FONT_SIZE = 12;
const AXIS_HEIGHT = 22;
const MAX_NAME_WIDTH = 220;

interface State {
  text: string;
  color: string;
}

interface TimelineRow {
  name: string;
  segments: Segment<State>[];
}

export function StateTimelinePanel(props: PanelProps) {
  const { panel, width, height } = props;
  const options = optionsOf(panel, DEFAULTS);
  const rows = timelineRows(props, options);
  if (rows.length === 0) {
    return <NoData text={panel.fieldConfig?.defaults.noValue} />;
  }
  const states = new Map(
    rows.flatMap(({ segments }) => segments.map(({ state }) => [state.text, state.color])),
  );
  const legend =
    options.legend?.showLegend === false ? null : (
      <VizLayout.Legend placement="bottom">
        <VizLegend
          placement="bottom"
          displayMode={LegendDisplayMode.List}
          items={[...states].map(([label, color]) => ({ label, color, yAxis: 1 }))}
          readonly
        />
      </VizLayout.Legend>
    );
  return (
    <VizLayout width={width} height={height} legend={legend}>
      {(innerWidth, innerHeight) => (
        <Timeline
          {...props}
          rows={rows}
          options={options}
          width={innerWidth}
          height={innerHeight}
        />
      )}
    </VizLayout>
  );
}

function timelineRows(
  { frames, timeRange, theme }: PanelProps,
  { mergeValues }: StateTimelineOptions,
): TimelineRow[] {
  const end = timeRange.to.valueOf();
  return frames.flatMap((frame) => {
    const time = frame.fields.find(({ type }) => type === FieldType.time);
    return frame.fields
      .filter((field) => field !== time && !field.config.custom?.hideFrom?.viz)
      .map((field) => ({
        name: getFieldDisplayName(field, frame, frames),
        segments: toSegments(
          time?.values ?? [],
          field.values,
          { end, step: time?.config.interval ?? undefined },
          (value) => stateOf(field, value, theme),
          (a, b) => mergeValues && a.text === b.text,
        ),
      }));
  });
}

function stateOf(field: Field, value: unknown, theme: GrafanaTheme2): State {
  const display: DisplayValue = (field.display ?? getDisplayProcessor({ field, theme }))(value);
  return {
    text: formattedValueToString(display),
    color: display.color ?? theme.colors.text.disabled,
  };
}

interface TimelineProps extends PanelProps {
  rows: TimelineRow[];
  options: StateTimelineOptions;
}

function Timeline({
  rows,
  options,
  panel,
  width,
  height,
  timeRange,
  timeZone,
  theme,
}: TimelineProps) {
  const from = timeRange.from.valueOf();
  const to = timeRange.to.valueOf();
  const nameWidth = Math.min(
    MAX_NAME_WIDTH,
    width / 3,
    10 + Math.max(...rows.map(({ name }) => measureText(name, FONT_SIZE).width)),
  );
  const plotHeight = height - AXIS_HEIGHT;
  const rowHeight = plotHeight / rows.length;
  const barHeight = rowHeight * options.rowHeight;
  const opacity = (panel.fieldConfig?.defaults.custom?.fillOpacity ?? 70) / 100;
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
      {rows.map(({ name, segments }, index) => {
        const middle = (index + 0.5) * rowHeight;
        return (
          <g key={name}>
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
                left={Math.max(nameWidth, x(segment.from))}
                right={Math.min(width, x(segment.to))}
                top={middle - barHeight / 2}
                height={barHeight}
                opacity={opacity}
                showText={options.showValue !== 'never'}
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
  left: number;
  right: number;
  top: number;
  height: number;
  opacity: number;
  showText: boolean;
  tip: string;
  theme: GrafanaTheme2;
}

function Bar({ segment, left, right, top, height, opacity, showText, tip, theme }: BarProps) {
  const { text, color } = segment.state;
  const width = right - left;
  if (width <= 0) {
    return null;
  }
  const fits = showText && measureText(text, FONT_SIZE).width + 8 < width && height > FONT_SIZE;
  return (
    <g>
      <Tooltip content={tip}>
        <rect x={left} y={top} width={width} height={height} fill={color} fillOpacity={opacity} />
      </Tooltip>
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
