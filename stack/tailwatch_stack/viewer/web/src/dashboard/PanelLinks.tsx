import type { LinkModel } from '@grafana/data';
import { DataLinksContextMenu, Icon, Tooltip } from '@grafana/ui';

/** The icon in a panel's header: one link is followed at a click, several open a menu. */
export function PanelLinks({ links }: { links: LinkModel[] }) {
  const [only] = links;
  if (only && links.length === 1) {
    return (
      <Tooltip content={only.title}>
        <a href={only.href} target={only.target} rel="noreferrer" aria-label={only.title}>
          <Icon name="external-link-alt" />
        </a>
      </Tooltip>
    );
  }
  return (
    <DataLinksContextMenu links={() => links}>
      {({ triggerProps }) => (
        <span {...triggerProps} aria-label="Links">
          <Icon name="external-link-alt" />
        </span>
      )}
    </DataLinksContextMenu>
  );
}
