import {
  interpolateBlues,
  interpolateCividis,
  interpolateGreens,
  interpolateGreys,
  interpolateInferno,
  interpolateMagma,
  interpolateOranges,
  interpolatePlasma,
  interpolatePurples,
  interpolateRdYlGn,
  interpolateReds,
  interpolateSpectral,
  interpolateTurbo,
  interpolateViridis,
  interpolateYlOrRd,
} from 'd3-scale-chromatic';

/** Schemes whose light end means little, turned round on a dark background. */
const SEQUENTIAL: Record<string, (share: number) => string> = {
  Blues: interpolateBlues,
  Greens: interpolateGreens,
  Greys: interpolateGreys,
  Oranges: interpolateOranges,
  Purples: interpolatePurples,
  Reds: interpolateReds,
  YlOrRd: interpolateYlOrRd,
};

const OTHER: Record<string, (share: number) => string> = {
  Cividis: interpolateCividis,
  Inferno: interpolateInferno,
  Magma: interpolateMagma,
  Plasma: interpolatePlasma,
  RdYlGn: interpolateRdYlGn,
  Spectral: interpolateSpectral,
  Turbo: interpolateTurbo,
  Viridis: interpolateViridis,
};

export interface HeatmapColor {
  scheme: string;
  steps: number;
  reverse: boolean;
  exponent: number;
}

export const DEFAULT_COLOR: HeatmapColor = {
  scheme: 'Oranges',
  steps: 64,
  reverse: false,
  exponent: 0.5,
};

/**
 * Colour for a share 0..1 of the fullest cell.
 *
 * @throws Error where the scheme is not one of d3's above
 */
export function colorRamp(color: HeatmapColor, isDark: boolean): (share: number) => string {
  const scheme = SEQUENTIAL[color.scheme] ?? OTHER[color.scheme];
  if (!scheme) {
    throw new Error(`The colour scheme "${color.scheme}" is not supported.`);
  }
  const turned = color.scheme in SEQUENTIAL && isDark !== color.reverse;
  const steps = Math.max(2, color.steps);
  return (share) => {
    const eased = Math.pow(share, color.exponent);
    const step = Math.round(eased * (steps - 1)) / (steps - 1);
    return scheme(turned ? 1 - step : step);
  };
}
