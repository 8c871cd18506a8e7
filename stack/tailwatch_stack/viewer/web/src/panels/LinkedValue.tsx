import type { FieldDisplay } from '@grafana/data';
import { DataLinksContextMenu } from '@grafana/ui';
import type { ReactElement } from 'react';

/** Wrap a drawn value in its data links: one is followed at a click, several open a menu. */
export function LinkedValue({ value, children }: { value: FieldDisplay; children: ReactElement }) {
  const { hasLinks, getLinks } = value;
  if (!hasLinks || !getLinks) {
    return children;
  }
  return (
    <DataLinksContextMenu links={getLinks} style={{ display: 'flex' }}>
      {({ triggerProps, targetClassName }) => (
        <div {...triggerProps} className={targetClassName}>
          {children}
        </div>
      )}
    </DataLinksContextMenu>
  );
}
