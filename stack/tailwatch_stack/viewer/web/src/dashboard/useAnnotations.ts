import type { TimeRange } from '@grafana/data';
import { useEffect, useMemo, useState } from 'react';
import type { AnnotationModel } from '../model/dashboard';
import type { Variables } from '../model/interpolate';
import { type AnnotationMark, queryAnnotation } from '../prometheus/annotations';
import { messageOf } from './usePanelData';

/** The marks of the annotations that are switched on, for the time range shown. */
export function useAnnotations(
  models: AnnotationModel[],
  switchedOff: ReadonlySet<string>,
  timeRange: TimeRange,
  variables: Variables | undefined,
): { marks: AnnotationMark[]; error?: string } {
  const [marks, setMarks] = useState<AnnotationMark[]>([]);
  const [error, setError] = useState<string>();
  const asked = useMemo(
    () => models.filter(({ name, builtIn }) => !builtIn && !switchedOff.has(name)),
    [models, switchedOff],
  );
  useEffect(() => {
    if (!variables) {
      return;
    }
    const abort = new AbortController();
    const range = { from: timeRange.from.valueOf(), to: timeRange.to.valueOf() };
    Promise.all(asked.map((model) => queryAnnotation(model, range, variables, abort.signal))).then(
      (answers) => {
        setError(undefined);
        setMarks((last) =>
          last.length === 0 && answers.flat().length === 0 ? last : answers.flat(),
        );
      },
      (reason: unknown) => {
        if (!abort.signal.aborted) {
          setError(messageOf(reason));
        }
      },
    );
    return () => abort.abort();
  }, [asked, timeRange, variables]);
  return { marks, error };
}
