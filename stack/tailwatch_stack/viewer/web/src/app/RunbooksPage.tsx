import { Alert, Card, useTheme2 } from '@grafana/ui';
import { useCallback } from 'react';
import { PageHeader } from './PageHeader';
import { PageBody } from './PageBody';
import { fetchRunbooks } from './server';
import { useLoaded } from './useLoaded';

export function RunbooksPage() {
  const theme = useTheme2();
  const { value: alerts, error } = useLoaded(useCallback(fetchRunbooks, []));
  return (
    <>
      <PageHeader title="Runbooks" />
      <PageBody>
        {error && <Alert title={error} severity="error" />}
        {alerts?.map((alert) => (
          <Card
            key={alert}
            href={`/runbooks/${alert}`}
            noMargin
            style={{ marginBottom: theme.spacing(1) }}
          >
            <Card.Heading>{alert}</Card.Heading>
          </Card>
        ))}
      </PageBody>
    </>
  );
}
