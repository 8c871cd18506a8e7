import { useEffect, useState } from 'react';
import { messageOf } from '../dashboard/usePanelData';

export interface Loaded<T> {
  value?: T;
  error?: string;
}

/** What a promise gave, or why it failed; `load` must keep its identity. */
export function useLoaded<T>(load: () => Promise<T>): Loaded<T> {
  const [loaded, setLoaded] = useState<Loaded<T>>({});
  useEffect(() => {
    let isCurrent = true;
    load().then(
      (value) => isCurrent && setLoaded({ value }),
      (error: unknown) => isCurrent && setLoaded({ error: messageOf(error) }),
    );
    return () => {
      isCurrent = false;
    };
  }, [load]);
  return loaded;
}
