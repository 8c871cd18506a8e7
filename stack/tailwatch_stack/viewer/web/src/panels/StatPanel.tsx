import { type FieldDisplay, getDisplayValueAlignmentFactors, type TimeRange } from '@grafana/data';
import {
  BigValue,
  BigValueColorMode,
  BigValueGraphMode,
  BigValueJustifyMode,
  BigValueTextMode,
  VizRepeater,
} from '@grafana/ui';
import type { PercentChangeColorMode, VizTextDisplayOptions } from '@grafana/schema';
import { LinkedValue } from './LinkedValue';
import { optionsOf, orientationOf } from './options';
import type { PanelProps } from './props';
import { reducedValues, type ReducedOptions } from './values';

interface StatOptions extends ReducedOptions {
  colorMode: BigValueColorMode;
  graphMode: BigValueGraphMode;
  justifyMode: BigValueJustifyMode;
  textMode: BigValueTextMode;
  text?: VizTextDisplayOptions;
  wideLayout: boolean;
  showPercentChange: boolean;
  percentChangeColorMode?: PercentChangeColorMode;
}

const DEFAULTS: StatOptions = {
  colorMode: BigValueColorMode.Value,
  graphMode: BigValueGraphMode.Area,
  justifyMode: BigValueJustifyMode.Auto,
  textMode: BigValueTextMode.Auto,
  wideLayout: true,
  showPercentChange: false,
};

export function StatPanel(props: PanelProps) {
  const { panel, frames, width, height, theme, timeRange } = props;
  const options = optionsOf(panel, DEFAULTS);
  return (
    <VizRepeater
      source={frames}
      getValues={() =>
        reducedValues(props, options, {
          sparkline: options.graphMode !== BigValueGraphMode.None,
          percentChange: options.showPercentChange,
        })
      }
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      width={width}
      height={height}
      autoGrid
      orientation={orientationOf(options.orientation)}
      renderCounter={0}
      itemSpacing={3}
      renderValue={({ value, alignmentFactors, width, height, count }) => (
        <LinkedValue value={value}>
          <BigValue
            value={value.display}
            count={count}
            sparkline={sparklineOf(value, timeRange)}
            colorMode={options.colorMode}
            graphMode={options.graphMode}
            justifyMode={options.justifyMode}
            textMode={options.textMode}
            text={options.text}
            disableWideLayout={!options.wideLayout}
            percentChangeColorMode={options.percentChangeColorMode}
            hasLinks={value.hasLinks}
            alignmentFactors={alignmentFactors}
            width={width}
            height={height}
            theme={theme}
          />
        </LinkedValue>
      )}
    />
  );
}

function sparklineOf({ sparkline }: FieldDisplay, timeRange: TimeRange) {
  return sparkline && { ...sparkline, timeRange };
}
