import type uPlot from 'uplot';

/** Pixels by which the label at an end of a time axis reaches beyond the plot. */
export const LAST_TICK_WIDTH = 16;

const TOP = 8;

/** Room for half of a time's label on a side that has no axis to give it. */
const side: uPlot.PaddingSide = (_plot, at, sidesWithAxes) =>
  sidesWithAxes[at] ? 0 : LAST_TICK_WIDTH;

/** Top, right, bottom, left. */
export const TIME_AXIS_PADDING: uPlot.Padding = [TOP, side, 0, side];
