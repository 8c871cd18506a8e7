import { Alert, Card, useTheme2 } from '@grafana/ui';
import { useCallback, useEffect, useState } from 'react';
import { messageOf } from '../dashboard/usePanelData';
import { queryInstant, type Series } from '../prometheus/client';
import { PageBody } from './PageBody';
import { PageHeader } from './PageHeader';
import { fetchDashboards } from './server';
import { useLoaded } from './useLoaded';

const FIRING = 'ALERTS{alertstate="firing",role="symptom"}';
const REFRESH_MS = 15_000;

/** The dashboards, and which symptoms fire now. */
export function IndexPage() {
  const theme = useTheme2();
  const { value: dashboards, error } = useLoaded(useCallback(fetchDashboards, []));
  return (
    <>
      <PageHeader title="Dashboards" />
      <PageBody>
        <FiringSymptoms />
        {error && <Alert title={error} severity="error" />}
        {dashboards?.map(({ uid, title, description }) => (
          <Card key={uid} href={`/d/${uid}`} noMargin style={{ marginBottom: theme.spacing(1) }}>
            <Card.Heading>{title}</Card.Heading>
            <Card.Description>{description}</Card.Description>
          </Card>
        ))}
        <a href="/runbooks" style={{ color: theme.colors.text.link }}>
          All runbooks
        </a>
      </PageBody>
    </>
  );
}

function FiringSymptoms() {
  const theme = useTheme2();
  const { firing, error } = useFiring();
  if (error) {
    return <Alert title={error} severity="error" />;
  }
  if (!firing) {
    return null;
  }
  if (firing.length === 0) {
    return <Alert title="No symptom fires" severity="success" />;
  }
  return (
    <Alert
      title={firing.length === 1 ? 'One symptom fires' : `${firing.length} symptoms fire`}
      severity="error"
    >
      <ul style={{ margin: 0, paddingLeft: theme.spacing(2) }}>
        {firing.map(({ metric }) => (
          <li key={JSON.stringify(metric)}>
            {metric.alertname} {metric.service && `on ${metric.service}`} (
            <a
              href={`/runbooks/${encodeURIComponent(metric.alertname ?? '')}`}
              style={{ color: theme.colors.text.link }}
            >
              runbook
            </a>
            )
          </li>
        ))}
      </ul>
    </Alert>
  );
}

/** The symptoms that fire, asked again every few seconds while the page is looked at. */
function useFiring(): { firing?: Series[]; error?: string } {
  const [state, setState] = useState<{ firing?: Series[]; error?: string }>({});
  useEffect(() => {
    const abort = new AbortController();
    const ask = () => {
      if (document.visibilityState === 'visible') {
        queryInstant(FIRING, Date.now(), abort.signal).then(
          (firing) => setState({ firing }),
          (error: unknown) => abort.signal.aborted || setState({ error: messageOf(error) }),
        );
      }
    };
    ask();
    const timer = setInterval(ask, REFRESH_MS);
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, []);
  return state;
}
