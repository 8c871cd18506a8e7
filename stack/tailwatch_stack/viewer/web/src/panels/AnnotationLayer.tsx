import { dateTimeFormat, type GrafanaTheme2 } from '@grafana/data';
import { Tooltip, type UPlotConfigBuilder } from '@grafana/ui';
import { useEffect, useLayoutEffect, useReducer, useRef } from 'react';
import { createPortal } from 'react-dom';
import type uPlot from 'uplot';
import type { AnnotationMark } from '../prometheus/annotations';

interface AnnotationLayerProps {
  config: UPlotConfigBuilder;
  marks: AnnotationMark[];
  timeZone: string;
  theme: GrafanaTheme2;
}

/** Draw the marks over a graph: a line or band in the plot, and a handle below with the text. */
export function AnnotationLayer({ config, marks, timeZone, theme }: AnnotationLayerProps) {
  const plot = useRef<uPlot>(undefined);
  const current = useRef(marks);
  const [, placeAgain] = useReducer((count: number) => count + 1, 0);
  current.current = marks;

  useLayoutEffect(() => {
    config.addHook('init', (u) => {
      plot.current = u;
    });
    config.addHook('draw', (u) => {
      drawMarks(u, current.current, theme);
      queueMicrotask(placeAgain);
    });
  }, [config, theme]);
  useEffect(() => plot.current?.redraw(false), [marks]);

  const u = plot.current;
  if (!u) {
    return null;
  }
  const inside = marks.filter((mark) => isInside(u, mark));
  return createPortal(
    inside.map((mark, index) => (
      <Tooltip
        key={index} // two services may have the same alert at the same time
        content={<MarkText mark={mark} timeZone={timeZone} />}
      >
        <div
          data-annotation={mark.title}
          style={{
            position: 'absolute',
            left: u.valToPos(Math.max(mark.from, u.scales.x!.min!), 'x') - 5,
            bottom: 0,
            borderLeft: '5px solid transparent',
            borderRight: '5px solid transparent',
            borderBottom: `7px solid ${theme.visualization.getColorByName(mark.color)}`,
            pointerEvents: 'auto',
          }}
        />
      </Tooltip>
    )),
    u.over,
  );
}

function MarkText({ mark, timeZone }: { mark: AnnotationMark; timeZone: string }) {
  const format = (time: number) => dateTimeFormat(time, { timeZone });
  return (
    <div>
      <strong>{mark.title}</strong>
      <div>
        {mark.to > mark.from ? `${format(mark.from)} – ${format(mark.to)}` : format(mark.from)}
      </div>
      {mark.text && <div>{mark.text}</div>}
      {mark.tags.length > 0 && <div>{mark.tags.join(', ')}</div>}
    </div>
  );
}

function isInside(u: uPlot, { from, to }: AnnotationMark): boolean {
  const { min, max } = u.scales.x ?? {};
  return typeof min === 'number' && typeof max === 'number' && to >= min && from <= max;
}

function drawMarks(u: uPlot, marks: AnnotationMark[], theme: GrafanaTheme2): void {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(left, top, width, height);
  u.ctx.clip();
  u.ctx.setLineDash([5, 5]);
  u.ctx.lineWidth = devicePixelRatio;
  for (const { from, to, color } of marks) {
    const name = theme.visualization.getColorByName(color);
    const start = u.valToPos(from, 'x', true);
    const end = u.valToPos(to, 'x', true);
    u.ctx.strokeStyle = name;
    u.ctx.beginPath();
    u.ctx.moveTo(start, top);
    u.ctx.lineTo(start, top + height);
    u.ctx.stroke();
    if (end > start) {
      u.ctx.globalAlpha = 0.1;
      u.ctx.fillStyle = name;
      u.ctx.fillRect(start, top, end - start, height);
      u.ctx.globalAlpha = 1;
    }
  }
  u.ctx.restore();
}
