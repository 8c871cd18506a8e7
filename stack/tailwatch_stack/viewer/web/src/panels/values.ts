import { type FieldDisplay, getFieldDisplayValues, type ReduceDataOptions } from '@grafana/data';
import { fieldConfigOf } from '../grafana/fields';
import type { PanelProps } from './props';

export interface ReducedOptions {
  reduceOptions?: Partial<ReduceDataOptions>;
  orientation?: string;
}

/** One value per series, or per row: what stat, gauge and bar gauge draw. */
export function reducedValues(
  { panel, frames, replace, theme, timeZone }: PanelProps,
  { reduceOptions }: ReducedOptions,
  { sparkline = false, percentChange = false } = {},
): FieldDisplay[] {
  return getFieldDisplayValues({
    fieldConfig: fieldConfigOf(panel),
    reduceOptions: { calcs: ['lastNotNull'], ...reduceOptions },
    replaceVariables: replace,
    theme,
    data: frames,
    sparkline,
    percentChange,
    timeZone,
  });
}
