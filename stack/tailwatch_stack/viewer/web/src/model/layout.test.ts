import { describe, expect, it } from 'vitest';
import type { Panel } from './dashboard';
import { layout, panelsUnder, stacked } from './layout';

const panel = (id: number, y: number, h: number, rest: Partial<Panel> = {}): Panel => ({
  id,
  type: 'stat',
  gridPos: { x: 0, y, w: 24, h },
  ...rest,
});
const row = (id: number, y: number, collapsed: boolean, panels: Panel[] = []) =>
  panel(id, y, 1, { type: 'row', collapsed, panels });

const panels = [
  panel(1, 0, 4),
  row(2, 4, false),
  panel(3, 5, 6),
  panel(4, 11, 2),
  row(5, 13, true, [panel(6, 14, 8)]),
  row(7, 14, false),
  panel(8, 15, 3),
];
const places = (isCollapsed: (row: Panel) => boolean) => {
  const { placed, height } = layout(panels, isCollapsed);
  return { at: placed.map(({ panel, y }) => [panel.id, y]), height };
};

describe('layout', () => {
  it('keeps the places of a dashboard as it was saved', () => {
    expect(places((one) => one.collapsed!)).toEqual({
      at: [
        [1, 0],
        [2, 4],
        [3, 5],
        [4, 11],
        [5, 13],
        [7, 14],
        [8, 15],
      ],
      height: 18,
    });
  });

  it('moves what is below up when a row is collapsed', () => {
    expect(places((one) => one.id !== 7)).toEqual({
      at: [
        [1, 0],
        [2, 4],
        [5, 5],
        [7, 6],
        [8, 7],
      ],
      height: 10,
    });
  });

  it('moves what is below down when a collapsed row is opened', () => {
    expect(places(() => false)).toEqual({
      at: [
        [1, 0],
        [2, 4],
        [3, 5],
        [4, 11],
        [5, 13],
        [6, 14],
        [7, 22],
        [8, 23],
      ],
      height: 26,
    });
  });
});

it('stacks panels in reading order', () => {
  const beside = (id: number, x: number, y: number, h: number) => ({
    ...panel(id, y, h),
    gridPos: { x, y, w: 8, h },
  });
  const grid = layout([beside(1, 0, 0, 4), beside(3, 0, 4, 2), beside(2, 8, 0, 8)], () => false);
  expect(stacked(grid).placed.map(({ panel, y }) => [panel.id, y])).toEqual([
    [1, 0],
    [2, 4],
    [3, 12],
  ]);
  expect(stacked(grid).height).toBe(14);
});

it('knows the panels under a row', () => {
  const under = (index: number) => panelsUnder(panels, panels[index]!).map(({ id }) => id);
  expect(under(1)).toEqual([3, 4]);
  expect(under(4)).toEqual([6]);
});
