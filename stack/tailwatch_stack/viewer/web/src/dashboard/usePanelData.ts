import type { DataFrame, TimeRange } from '@grafana/data';
import { useEffect, useState } from 'react';
import { transform } from '../grafana/fields';
import type { Panel } from '../model/dashboard';
import { queryPanel } from '../prometheus/query';
import type { DashboardContext } from './context';

export interface PanelData {
  /** While a refresh is under way the frames of the last one stay. */
  isLoading: boolean;
  frames: DataFrame[];
  /** The range that the frames were asked for. */
  timeRange?: TimeRange;
  error?: string;
}

/** The panel's answers from Prometheus, transformed; asked again when the context changes. */
export function usePanelData(panel: Panel, width: number, context: DashboardContext): PanelData {
  const { variables, timeRange, scrapeIntervalMs, replace } = context;
  const [data, setData] = useState<PanelData>({ isLoading: true, frames: [] });
  useEffect(() => {
    const abort = new AbortController();
    setData((last) => ({ ...last, isLoading: true }));
    const query = {
      from: timeRange.from.valueOf(),
      to: timeRange.to.valueOf(),
      width,
      scrapeIntervalMs,
      variables,
    };
    queryPanel(panel, query, abort.signal)
      .then((frames) => transform(panel, frames, replace))
      .then(
        // Transformations take a moment after the answer, in which another may have been asked.
        (frames) => abort.signal.aborted || setData({ isLoading: false, frames, timeRange }),
        (error: unknown) => {
          if (!abort.signal.aborted) {
            setData({ isLoading: false, frames: [], timeRange, error: messageOf(error) });
          }
        },
      );
    return () => abort.abort();
  }, [panel, width, variables, timeRange, scrapeIntervalMs, replace]);
  return data;
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
