import { useMemo, useState } from 'react';
import type { Panel } from '../model/dashboard';
import { layout, panelsUnder, stacked } from '../model/layout';
import type { DashboardContext } from './context';
import { PanelView } from './PanelView';
import { RowHeader } from './RowHeader';
import { useElementWidth } from './useElementWidth';

const COLUMNS = 24;
/** Pixels of a grid row, the gap below it included, as in Grafana. */
const ROW_HEIGHT = 38;
const GAP = 8;
/** Pixels under which columns are too narrow to read, on a phone. */
const NARROW = 768;

interface PanelGridProps {
  panels: Panel[];
  context: DashboardContext;
}

export function PanelGrid({ panels, context }: PanelGridProps) {
  const [element, width] = useElementWidth();
  const [toggled, setToggled] = useState<ReadonlySet<number>>(new Set());
  const isNarrow = width < NARROW;
  const { placed, height } = useMemo(() => {
    const grid = layout(panels, (row) => Boolean(row.collapsed) !== toggled.has(row.id));
    return isNarrow ? stacked(grid) : grid;
  }, [panels, toggled, isNarrow]);
  const toggle = (id: number) =>
    setToggled((last) => {
      const next = new Set(last);
      return next.delete(id) ? next : next.add(id);
    });
  const column = (width + GAP) / COLUMNS;
  return (
    <div
      ref={element}
      style={{ position: 'relative', margin: '0 16px 16px', height: height * ROW_HEIGHT }}
    >
      {width > 0 &&
        placed.map(({ panel, y }) => {
          const { h } = panel.gridPos;
          const { x, w } = isNarrow ? { x: 0, w: COLUMNS } : panel.gridPos;
          const box = {
            left: Math.round(x * column),
            top: y * ROW_HEIGHT,
            width: Math.round(w * column) - GAP,
            height: h * ROW_HEIGHT - GAP,
          };
          return (
            <div key={panel.id} style={{ position: 'absolute', ...box }}>
              {panel.type === 'row' ? (
                <RowHeader
                  title={context.replace(panel.title ?? '', undefined, 'text')}
                  isCollapsed={Boolean(panel.collapsed) !== toggled.has(panel.id)}
                  panels={panelsUnder(panels, panel).length}
                  onToggle={() => toggle(panel.id)}
                />
              ) : (
                <PanelView panel={panel} width={box.width} height={box.height} context={context} />
              )}
            </div>
          );
        })}
    </div>
  );
}
