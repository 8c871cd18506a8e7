import { VizOrientation } from '@grafana/data';
import type { Panel } from '../model/dashboard';

/** The panel's options over defaults; the JSON is trusted to have the types of Grafana's schema. */
export function optionsOf<T extends object>(panel: Panel, defaults: T): T {
  return { ...defaults, ...(panel.options as Partial<T> | undefined) };
}

export function orientationOf(option: string | undefined): VizOrientation {
  switch (option) {
    case 'horizontal':
      return VizOrientation.Horizontal;
    case 'vertical':
      return VizOrientation.Vertical;
    default:
      return VizOrientation.Auto;
  }
}
