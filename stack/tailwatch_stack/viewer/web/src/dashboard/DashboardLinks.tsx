import { LinkButton } from '@grafana/ui';
import type { ReadyLink } from '../model/links';

/** The dashboard's own links, to other dashboards mostly. */
export function DashboardLinks({ links }: { links: ReadyLink[] }) {
  return links.map(({ title, href, tooltip, newTab }) => (
    <LinkButton
      key={`${title}-${href}`}
      href={href}
      target={newTab ? '_blank' : undefined}
      tooltip={tooltip}
      variant="secondary"
      fill="outline"
      size="sm"
      icon="apps"
    >
      {title}
    </LinkButton>
  ));
}
