import { type FieldDisplay, formattedValueToString, type GrafanaTheme2 } from '@grafana/data';
import { thresholdBands } from '../model/bands';

/** The dial runs over the top from lower left to lower right; angles in radians, clockwise. */
const DIAL_START = Math.PI * 0.9;
const DIAL_END = Math.PI * 2.1;
/** Height of the dial over its radius: the arc's ends lie below the centre. */
const DIAL_HEIGHT = 1 + Math.sin(DIAL_END);
const TITLE_HEIGHT = 18;

interface GaugeProps {
  value: FieldDisplay;
  title?: string;
  width: number;
  height: number;
  markers: boolean;
  labels: boolean;
  theme: GrafanaTheme2;
}

/** A dial with the value in its middle. */
export function Gauge({ value, title, width, height, markers, labels, theme }: GaugeProps) {
  const { field, display } = value;
  const min = field.min ?? 0;
  const max = field.max ?? 100;
  const margin = labels ? 16 : 2;
  const titleHeight = title ? TITLE_HEIGHT : 0;
  const radius = Math.max(
    10,
    Math.min(width / 2 - margin, (height - titleHeight - margin) / DIAL_HEIGHT) - 2,
  );
  const centre = { x: width / 2, y: (height - titleHeight - radius * DIAL_HEIGHT) / 2 + radius };
  const thickness = radius * 0.28;
  const markerWidth = markers ? radius * 0.06 : 0;
  const bar = radius - markerWidth * 1.8 - thickness / 2;
  const angle = (number: number) =>
    DIAL_START +
    (DIAL_END - DIAL_START) * Math.max(0, Math.min(1, (number - min) / (max - min || 1)));
  const text = formattedValueToString(display);
  const fontSize = Math.min(radius * 0.36, radius / (Math.max(1, text.length) * 0.55));
  const bands = thresholdBands(field.thresholds, min, max);
  return (
    <svg width={width} height={height} role="img" aria-label={`${display.title ?? ''} ${text}`}>
      <Arc
        centre={centre}
        radius={bar}
        from={DIAL_START}
        to={DIAL_END}
        width={thickness}
        color={theme.colors.background.secondary}
      />
      {Number.isFinite(display.numeric) && (
        <Arc
          centre={centre}
          radius={bar}
          from={DIAL_START}
          to={Math.max(DIAL_START + 1e-3, angle(display.numeric))}
          width={thickness}
          color={display.color ?? theme.colors.text.primary}
        />
      )}
      {markers &&
        bands.map(({ from, to, color }) => (
          <Arc
            key={from}
            centre={centre}
            radius={radius - markerWidth / 2}
            from={angle(from)}
            to={angle(to)}
            width={markerWidth}
            color={theme.visualization.getColorByName(color)}
          />
        ))}
      {labels &&
        bands.slice(1).map(({ from }) => (
          <text
            key={from}
            x={centre.x + (radius + 8) * Math.cos(angle(from))}
            y={centre.y + (radius + 8) * Math.sin(angle(from))}
            textAnchor="middle"
            fontSize={11}
            fill={theme.colors.text.secondary}
          >
            {from}
          </text>
        ))}
      <text
        x={centre.x}
        y={centre.y + fontSize * 0.3}
        textAnchor="middle"
        fontSize={fontSize}
        fontWeight={theme.typography.fontWeightMedium}
        fill={display.color}
      >
        {text}
      </text>
      {title && (
        <text
          x={centre.x}
          y={height - 4}
          textAnchor="middle"
          fontSize={13}
          fill={theme.colors.text.primary}
        >
          {title}
        </text>
      )}
    </svg>
  );
}

interface ArcProps {
  centre: { x: number; y: number };
  radius: number;
  from: number;
  to: number;
  width: number;
  color: string;
}

function Arc({ centre, radius, from, to, width, color }: ArcProps) {
  const point = (angle: number) =>
    `${centre.x + radius * Math.cos(angle)} ${centre.y + radius * Math.sin(angle)}`;
  const isLarge = to - from > Math.PI ? 1 : 0;
  const path = `M${point(from)}A${radius} ${radius} 0 ${isLarge} 1 ${point(to)}`;
  return <path d={path} stroke={color} strokeWidth={width} fill="none" />;
}
