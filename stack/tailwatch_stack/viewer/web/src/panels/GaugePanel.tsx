import { VizRepeater } from '@grafana/ui';
import { Gauge } from './Gauge';
import { LinkedValue } from './LinkedValue';
import { optionsOf, orientationOf } from './options';
import type { PanelProps } from './props';
import { reducedValues, type ReducedOptions } from './values';

interface GaugeOptions extends ReducedOptions {
  showThresholdMarkers: boolean;
  showThresholdLabels: boolean;
}

export function GaugePanel(props: PanelProps) {
  const { panel, frames, width, height, theme } = props;
  const options = optionsOf<GaugeOptions>(panel, {
    showThresholdMarkers: true,
    showThresholdLabels: false,
  });
  return (
    <VizRepeater
      source={frames}
      getValues={() => reducedValues(props, options)}
      width={width}
      height={height}
      autoGrid
      orientation={orientationOf(options.orientation)}
      renderCounter={0}
      itemSpacing={4}
      renderValue={({ value, width, height, count }) => (
        <LinkedValue value={value}>
          <Gauge
            value={value}
            title={count > 1 ? value.display.title : undefined}
            width={width}
            height={height}
            markers={options.showThresholdMarkers}
            labels={options.showThresholdLabels}
            theme={theme}
          />
        </LinkedValue>
      )}
    />
  );
}
