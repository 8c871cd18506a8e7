import { useCallback, useRef, useState } from 'react';

/** A ref for an element, and its width in whole pixels: 0 before it is on the page. */
export function useElementWidth(): [(element: HTMLElement | null) => void, number] {
  const [width, setWidth] = useState(0);
  const observer = useRef<ResizeObserver>(undefined);
  const attach = useCallback((element: HTMLElement | null) => {
    observer.current?.disconnect();
    if (element) {
      observer.current = new ResizeObserver(() => setWidth(Math.floor(element.clientWidth)));
      observer.current.observe(element);
    }
  }, []);
  return [attach, width];
}
