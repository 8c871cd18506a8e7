import { useTheme2 } from '@grafana/ui';

/** What went wrong, in the place where the data would be. */
export function PanelError({ message }: { message: string }) {
  const theme = useTheme2();
  return (
    <div
      role="alert"
      style={{
        height: '100%',
        overflow: 'auto',
        padding: theme.spacing(1),
        whiteSpace: 'pre-wrap',
        color: theme.colors.error.text,
        background: theme.colors.error.transparent,
        borderRadius: theme.shape.radius.default,
      }}
    >
      {message}
    </div>
  );
}
