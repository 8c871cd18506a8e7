import {
  type DisplayValue,
  type Field,
  FieldType,
  formattedValueToString,
  getDisplayProcessor,
  getFieldDisplayName,
  type GrafanaTheme2,
} from '@grafana/data';
import { LegendDisplayMode, type VizLegendOptions } from '@grafana/schema';
import { VizLayout, VizLegend } from '@grafana/ui';
import { toSegments } from '../model/segments';
import { NoData } from './NoData';
import { optionsOf } from './options';
import type { PanelProps } from './props';
import { type State, Timeline, type TimelineRow } from './Timeline';

interface StateTimelineOptions {
  mergeValues: boolean;
  showValue: 'auto' | 'always' | 'never';
  /** Share of a row's height that its bar takes, 0..1. */
  rowHeight: number;
  legend?: Partial<VizLegendOptions>;
}

const DEFAULTS: StateTimelineOptions = {
  mergeValues: true,
  showValue: 'auto',
  rowHeight: 0.9,
};

export function StateTimelinePanel(props: PanelProps) {
  const { panel, width, height, timeRange, timeZone, theme } = props;
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
          rows={rows}
          rowHeight={options.rowHeight}
          opacity={(panel.fieldConfig?.defaults.custom?.fillOpacity ?? 70) / 100}
          showText={options.showValue !== 'never'}
          width={innerWidth}
          height={innerHeight}
          timeRange={timeRange}
          timeZone={timeZone}
          theme={theme}
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
        links: (row) => field.getLinks?.({ valueRowIndex: row }) ?? [],
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
