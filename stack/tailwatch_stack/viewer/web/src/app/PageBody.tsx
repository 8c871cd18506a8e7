import { useTheme2 } from '@grafana/ui';
import type { ReactNode } from 'react';

/** A column for pages that are read rather than looked at. */
export function PageBody({ children }: { children: ReactNode }) {
  const theme = useTheme2();
  return (
    <main
      style={{ maxWidth: 880, margin: `${theme.spacing(2)} auto`, padding: theme.spacing(0, 2) }}
    >
      {children}
    </main>
  );
}
