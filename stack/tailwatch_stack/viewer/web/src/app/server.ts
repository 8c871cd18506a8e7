import type { Dashboard } from '../model/dashboard';
import type { DashboardSummary } from '../model/links';

/** What the page needs to know of the server it came from. */
export interface Settings {
  scrapeIntervalSeconds: number;
}

export function fetchSettings(): Promise<Settings> {
  return get('/api/settings');
}

export function fetchDashboards(): Promise<DashboardSummary[]> {
  return get('/api/dashboards');
}

export function fetchDashboard(uid: string): Promise<Dashboard> {
  return get(`/api/dashboards/${encodeURIComponent(uid)}`);
}

/** The alerts that have a runbook. */
export function fetchRunbooks(): Promise<string[]> {
  return get('/api/runbooks');
}

/** The runbook's Markdown. */
export async function fetchRunbook(alert: string): Promise<string> {
  return (await get<{ markdown: string }>(`/api/runbooks/${encodeURIComponent(alert)}`)).markdown;
}

/** @throws Error with the server's own words where it refuses */
async function get<T>(path: string): Promise<T> {
  const response = await fetch(path);
  const body: unknown = await response.json().catch(() => undefined);
  if (!response.ok) {
    const detail = (body as { detail?: string } | undefined)?.detail;
    throw new Error(detail ?? `${path} answered ${response.status} ${response.statusText}`);
  }
  return body as T;
}
