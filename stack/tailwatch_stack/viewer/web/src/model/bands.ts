import { type Threshold, type ThresholdsConfig, ThresholdsMode } from '@grafana/data';

export interface Band {
  from: number;
  to: number;
  color: string;
}

/** The stretches of the scale between thresholds, cut at its ends. */
export function thresholdBands(
  thresholds: ThresholdsConfig | undefined,
  min: number,
  max: number,
): Band[] {
  const steps = thresholds?.steps ?? [];
  const onScale = ({ value }: Threshold) =>
    thresholds?.mode === ThresholdsMode.Percentage ? min + ((max - min) * value) / 100 : value;
  return steps
    .map((step, index) => {
      const next = steps[index + 1];
      return {
        from: index === 0 ? min : Math.max(min, onScale(step)),
        to: next ? Math.min(max, onScale(next)) : max,
        color: step.color,
      };
    })
    .filter(({ from, to }) => to > from);
}
