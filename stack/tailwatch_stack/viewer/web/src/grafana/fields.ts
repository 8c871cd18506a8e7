import {
  applyFieldOverrides,
  type DataFrame,
  FieldColorModeId,
  type FieldConfigSource,
  type GrafanaTheme2,
  type InterpolateFunction,
  ThresholdsMode,
  transformDataFrame,
} from '@grafana/data';
import { lastValueFrom } from 'rxjs';
import type { Panel } from '../model/dashboard';
import { fieldOptionRegistry } from './setup';

let registry: ReturnType<typeof fieldOptionRegistry> | undefined;

/** Run the panel's transformations in order. */
export async function transform(
  panel: Panel,
  frames: DataFrame[],
  replace: InterpolateFunction,
): Promise<DataFrame[]> {
  const transformations = (panel.transformations ?? []).filter(({ disabled }) => !disabled);
  return transformations.length
    ? lastValueFrom(transformDataFrame(transformations, frames, { interpolate: replace }))
    : frames;
}

/** Give every field its unit, colour, thresholds, mappings and links: defaults, then overrides. */
export function applyFieldOptions(
  panel: Panel,
  frames: DataFrame[],
  context: { replace: InterpolateFunction; theme: GrafanaTheme2; timeZone: string },
): DataFrame[] {
  registry ??= fieldOptionRegistry();
  return applyFieldOverrides({
    data: frames,
    fieldConfig: fieldConfigOf(panel),
    fieldConfigRegistry: registry,
    replaceVariables: context.replace,
    theme: context.theme,
    timeZone: context.timeZone,
  });
}

/** The panel's field options over what Grafana assumes for its type. */
export function fieldConfigOf(panel: Panel): FieldConfigSource {
  const mode =
    panel.type === 'timeseries' ? FieldColorModeId.PaletteClassic : FieldColorModeId.Thresholds;
  return {
    defaults: {
      color: { mode },
      thresholds: {
        mode: ThresholdsMode.Absolute,
        steps: [
          { value: -Infinity, color: 'green' },
          { value: 80, color: 'red' },
        ],
      },
      ...panel.fieldConfig?.defaults,
    },
    overrides: panel.fieldConfig?.overrides ?? [],
  };
}
