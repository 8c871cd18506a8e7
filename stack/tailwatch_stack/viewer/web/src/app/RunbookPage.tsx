import { renderMarkdown } from '@grafana/data';
import { Alert, useTheme2 } from '@grafana/ui';
import { useCallback } from 'react';
import { PageHeader } from './PageHeader';
import { fetchRunbook } from './server';
import { useLoaded } from './useLoaded';

export function RunbookPage({ alert }: { alert: string }) {
  const theme = useTheme2();
  const { value, error } = useLoaded(useCallback(() => fetchRunbook(alert), [alert]));
  return (
    <>
      <PageHeader title={alert} parent={{ title: 'Runbooks', url: '/runbooks' }} />
      {error && <Alert title={error} severity="error" />}
      {value !== undefined && (
        <main
          className="markdown-html runbook"
          style={{
            maxWidth: 1100,
            margin: `${theme.spacing(2)} auto`,
            padding: theme.spacing(3, 4),
            lineHeight: 1.6,
            background: theme.colors.background.primary,
            border: `1px solid ${theme.colors.border.weak}`,
            borderRadius: theme.shape.radius.default,
          }}
          dangerouslySetInnerHTML={{ __html: renderMarkdown(value) }}
        />
      )}
    </>
  );
}
