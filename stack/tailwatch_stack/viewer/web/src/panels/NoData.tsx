import { useTheme2 } from '@grafana/ui';

/** What a panel shows whose query found nothing: its own words if the dashboard has some. */
export function NoData({ text = 'No data' }: { text?: string }) {
  const theme = useTheme2();
  return (
    <div
      style={{
        height: '100%',
        display: 'flex',
        alignItems: 'center',
        justifyContent: 'center',
        color: theme.colors.text.secondary,
      }}
    >
      {text}
    </div>
  );
}
