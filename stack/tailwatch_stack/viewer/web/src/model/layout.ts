import type { Panel } from './dashboard';

export interface Placed {
  panel: Panel;
  /** Grid row at which the panel starts, after collapsed rows gave up their space. */
  y: number;
}

export interface Layout {
  placed: Placed[];
  /** Height of all in grid rows. */
  height: number;
}

/** Panels between two rows, with the row that heads them. */
interface Section {
  row?: Panel;
  panels: Panel[];
}

/** Place every visible panel; `isCollapsed` says it of a row. */
export function layout(panels: Panel[], isCollapsed: (row: Panel) => boolean): Layout {
  const placed: Placed[] = [];
  let top = 0;
  for (const { row, panels: content } of sections(panels)) {
    if (row) {
      placed.push({ panel: row, y: top });
      top += row.gridPos.h;
      if (isCollapsed(row)) {
        continue;
      }
    }
    const first = Math.min(...content.map((panel) => panel.gridPos.y));
    let end = top;
    for (const panel of content) {
      const y = top + panel.gridPos.y - first;
      placed.push({ panel, y });
      end = Math.max(end, y + panel.gridPos.h);
    }
    top = end;
  }
  return { placed, height: top };
}

/** The same panels one below the other, in reading order: for a page too narrow for columns. */
export function stacked({ placed }: Layout): Layout {
  const order = placed.toSorted((a, b) => a.y - b.y || a.panel.gridPos.x - b.panel.gridPos.x);
  let height = 0;
  const below = order.map(({ panel }) => {
    const y = height;
    height += panel.gridPos.h;
    return { panel, y };
  });
  return { placed: below, height };
}

/** The panels that a row heads. */
export function panelsUnder(panels: Panel[], row: Panel): Panel[] {
  return sections(panels).find((section) => section.row === row)?.panels ?? [];
}

/** A collapsed row carries its panels; an open one is followed by them. */
function sections(panels: Panel[]): Section[] {
  const result: Section[] = [{ panels: [] }];
  for (const panel of panels) {
    if (panel.type === 'row') {
      result.push({ row: panel, panels: [...(panel.panels ?? [])] });
    } else {
      result.at(-1)!.panels.push(panel);
    }
  }
  return result;
}
