import type { TimeRange } from '@grafana/data';
import { useEffect, useState } from 'react';
import type { VariableModel } from '../model/dashboard';
import { type Choices, type Resolved, resolveVariables } from '../model/variables';
import { askForOptions } from '../prometheus/options';
import { messageOf } from './usePanelData';

/** The variables' values and options; undefined until the first answer. */
export function useVariables(
  models: VariableModel[],
  choices: Choices,
  timeRange: TimeRange,
): { resolved?: Resolved; error?: string } {
  const [resolved, setResolved] = useState<Resolved>();
  const [error, setError] = useState<string>();
  useEffect(() => {
    const abort = new AbortController();
    const range = { from: timeRange.from.valueOf(), to: timeRange.to.valueOf() };
    resolveVariables(models, choices, (query) => askForOptions(query, range, abort.signal)).then(
      (next) => {
        setError(undefined);
        // The same values again must not make every panel ask again.
        setResolved((last) => (JSON.stringify(last) === JSON.stringify(next) ? last : next));
      },
      (reason: unknown) => {
        if (!abort.signal.aborted) {
          setError(messageOf(reason));
        }
      },
    );
    return () => abort.abort();
  }, [models, choices, timeRange]);
  return { resolved, error };
}
