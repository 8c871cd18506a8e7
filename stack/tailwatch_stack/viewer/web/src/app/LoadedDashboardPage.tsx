import { Alert } from '@grafana/ui';
import { useCallback } from 'react';
import { DashboardPage } from '../dashboard/DashboardPage';
import { PageHeader } from './PageHeader';
import { fetchDashboard, fetchDashboards, fetchSettings } from './server';
import { useLoaded } from './useLoaded';

/** Fetch a dashboard and what belongs to it, then show it. */
export function LoadedDashboardPage({ uid }: { uid: string }) {
  const load = useCallback(
    () => Promise.all([fetchDashboard(uid), fetchDashboards(), fetchSettings()]),
    [uid],
  );
  const { value, error } = useLoaded(load);
  if (error) {
    return (
      <>
        <PageHeader title={uid} />
        <Alert title={error} severity="error" />
      </>
    );
  }
  if (!value) {
    return null;
  }
  const [dashboard, others, settings] = value;
  return (
    <DashboardPage
      dashboard={dashboard}
      others={others}
      scrapeIntervalMs={settings.scrapeIntervalSeconds * 1000}
    />
  );
}
