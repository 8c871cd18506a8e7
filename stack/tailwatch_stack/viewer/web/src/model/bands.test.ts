import { ThresholdsMode } from '@grafana/data';
import { expect, it } from 'vitest';
import { thresholdBands } from './bands';

const steps = [
  { value: -Infinity, color: 'green' },
  { value: 60, color: 'orange' },
  { value: 80, color: 'red' },
];

it('cuts the scale at the thresholds', () => {
  expect(thresholdBands({ mode: ThresholdsMode.Absolute, steps }, 50, 100)).toEqual([
    { from: 50, to: 60, color: 'green' },
    { from: 60, to: 80, color: 'orange' },
    { from: 80, to: 100, color: 'red' },
  ]);
});

it('leaves out what is off the scale', () => {
  expect(thresholdBands({ mode: ThresholdsMode.Absolute, steps }, 0, 1)).toEqual([
    { from: 0, to: 1, color: 'green' },
  ]);
  expect(thresholdBands(undefined, 0, 1)).toEqual([]);
});

it('reads percentages as shares of the scale', () => {
  const bands = thresholdBands({ mode: ThresholdsMode.Percentage, steps }, 0, 10);
  expect(bands.map(({ from }) => from)).toEqual([0, 6, 8]);
});
