import { Icon, useTheme2 } from '@grafana/ui';

interface RowHeaderProps {
  title: string;
  isCollapsed: boolean;
  /** How many panels the row hides when collapsed. */
  panels: number;
  onToggle: () => void;
}

export function RowHeader({ title, isCollapsed, panels, onToggle }: RowHeaderProps) {
  const theme = useTheme2();
  return (
    <button
      type="button"
      data-row={title}
      aria-expanded={!isCollapsed}
      onClick={onToggle}
      style={{
        width: '100%',
        height: '100%',
        display: 'flex',
        alignItems: 'center',
        gap: theme.spacing(0.5),
        padding: 0,
        border: 0,
        background: 'none',
        cursor: 'pointer',
        color: theme.colors.text.primary,
        fontSize: theme.typography.h5.fontSize,
        fontWeight: theme.typography.fontWeightMedium,
      }}
    >
      <Icon name={isCollapsed ? 'angle-right' : 'angle-down'} />
      {title}
      {isCollapsed && (
        <span style={{ color: theme.colors.text.secondary, fontWeight: 'normal' }}>
          {`(${panels} ${panels === 1 ? 'panel' : 'panels'})`}
        </span>
      )}
    </button>
  );
}
