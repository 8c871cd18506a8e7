import type { Dashboard, DashboardLink } from './dashboard';
import { interpolate, type Lookup, type Variables } from './interpolate';

/** A link as a person can follow it. */
export interface ReadyLink {
  title: string;
  href: string;
  tooltip?: string;
  newTab: boolean;
}

export interface DashboardSummary {
  uid: string;
  title: string;
  description: string;
  tags: string[];
}

/** The dashboard's own links; one of type "dashboards" becomes a link to each with its tags. */
export function dashboardLinks(
  dashboard: Dashboard,
  others: DashboardSummary[],
  variables: Variables,
  lookup: Lookup,
): ReadyLink[] {
  return (dashboard.links ?? []).flatMap((link) => {
    const targets =
      link.type === 'dashboards'
        ? others
            .filter(({ uid }) => uid !== dashboard.uid)
            .filter(({ tags }) => (link.tags ?? []).every((tag) => tags.includes(tag)))
            .map(({ uid, title }) => ({ title, url: `/d/${uid}` }))
        : [{ title: link.title ?? link.url ?? '', url: link.url ?? '' }];
    return targets.map(({ title, url }) => ({
      title: interpolate(title, variables, lookup, 'text'),
      href: withState(interpolate(url, variables, lookup, 'uriencode'), link, lookup),
      tooltip: link.tooltip || undefined,
      newTab: Boolean(link.targetBlank),
    }));
  });
}

function withState(url: string, { keepTime, includeVars }: DashboardLink, lookup: Lookup): string {
  const parts = [
    keepTime ? lookup('__url_time_range', undefined) : '',
    includeVars ? lookup('__all_variables', undefined) : '',
  ].filter(Boolean);
  return parts.length ? `${url}${url.includes('?') ? '&' : '?'}${parts.join('&')}` : url;
}
