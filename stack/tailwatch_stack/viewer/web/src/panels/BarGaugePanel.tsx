import { type FieldDisplay, getDisplayValueAlignmentFactors, VizOrientation } from '@grafana/data';
import {
  BarGaugeDisplayMode,
  type BarGaugeNamePlacement,
  type BarGaugeValueMode,
  type VizTextDisplayOptions,
} from '@grafana/schema';
import { BarGauge, VizRepeater } from '@grafana/ui';
import { LinkedValue } from './LinkedValue';
import { optionsOf, orientationOf } from './options';
import type { PanelProps } from './props';
import { reducedValues, type ReducedOptions } from './values';

interface BarGaugeOptions extends ReducedOptions {
  displayMode: BarGaugeDisplayMode;
  showUnfilled: boolean;
  valueMode?: BarGaugeValueMode;
  namePlacement?: BarGaugeNamePlacement;
  minVizHeight: number;
  minVizWidth: number;
  maxVizHeight: number;
  text?: VizTextDisplayOptions;
}

const DEFAULTS: BarGaugeOptions = {
  displayMode: BarGaugeDisplayMode.Gradient,
  showUnfilled: true,
  minVizHeight: 16,
  minVizWidth: 8,
  maxVizHeight: 300,
};

export function BarGaugePanel(props: PanelProps) {
  const { panel, frames, width, height, theme } = props;
  const options = optionsOf(panel, DEFAULTS);
  const isLcd = options.displayMode === BarGaugeDisplayMode.Lcd;
  return (
    <VizRepeater
      source={frames}
      getValues={() => withCommonScale(reducedValues(props, options))}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      width={width}
      height={height}
      orientation={orientation(options, width, height)}
      renderCounter={0}
      itemSpacing={isLcd ? 2 : 10}
      minVizHeight={options.minVizHeight}
      minVizWidth={options.minVizWidth}
      maxVizHeight={options.maxVizHeight}
      renderValue={({ value, alignmentFactors, width, height, orientation, count }) => (
        <LinkedValue value={value}>
          <BarGauge
            value={value.display}
            field={value.field}
            display={value.view?.getFieldDisplayProcessor(value.colIndex ?? 0)}
            displayMode={options.displayMode}
            showUnfilled={options.showUnfilled}
            valueDisplayMode={options.valueMode}
            namePlacement={options.namePlacement}
            text={options.text}
            itemSpacing={10}
            lcdCellWidth={12}
            alignmentFactors={count > 1 ? alignmentFactors : undefined}
            orientation={orientation}
            width={width}
            height={height}
            theme={theme}
          />
        </LinkedValue>
      )}
    />
  );
}

function orientation(options: BarGaugeOptions, width: number, height: number): VizOrientation {
  const chosen = orientationOf(options.orientation);
  if (chosen !== VizOrientation.Auto) {
    return chosen;
  }
  return width > height ? VizOrientation.Vertical : VizOrientation.Horizontal;
}

/** Bars can be compared only on one scale: where a field has no limits, all values' limits serve. */
function withCommonScale(values: FieldDisplay[]): FieldDisplay[] {
  const numbers = values.map(({ display }) => display.numeric).filter(Number.isFinite);
  const lowest = Math.min(0, ...numbers);
  const highest = Math.max(...numbers, lowest);
  return values.map((value) => ({
    ...value,
    field: {
      ...value.field,
      min: value.field.min ?? lowest,
      max: value.field.max ?? highest,
    },
  }));
}
