import type { TimeRange } from '@grafana/data';
import { useEffect, useMemo, useState } from 'react';
import type { AnnotationModel } from '../model/dashboard';
import type { Variables } from '../model/interpolate';
import { type AnnotationMark, queryAnnotation } from '../prometheus/annotations';
import { messageOf } from './usePanelData';

export interface Annotations {
  /** The dashboard's annotation queries; Grafana's own events are not among them. */
  models: AnnotationModel[];
  switchedOff: ReadonlySet<string>;
  toggle: (name: string) => void;
  marks: AnnotationMark[];
  error?: string;
}

const NO_MARKS: AnnotationMark[] = [];

/** The annotations of a dashboard, with their marks in the time range shown. */
export function useAnnotations(
  list: AnnotationModel[],
  timeRange: TimeRange,
  variables: Variables | undefined,
): Annotations {
  const models = useMemo(() => list.filter(({ builtIn }) => !builtIn), [list]);
  const [switchedOff, setSwitchedOff] = useState<ReadonlySet<string>>(
    () => new Set(models.filter(({ enable }) => !enable).map(({ name }) => name)),
  );
  const asked = useMemo(
    () => models.filter(({ name }) => !switchedOff.has(name)),
    [models, switchedOff],
  );
  const [answer, setAnswer] = useState<{ marks: AnnotationMark[]; error?: string }>({
    marks: NO_MARKS,
  });
  useEffect(() => {
    if (!variables) {
      return;
    }
    const abort = new AbortController();
    const range = { from: timeRange.from.valueOf(), to: timeRange.to.valueOf() };
    Promise.all(asked.map((model) => queryAnnotation(model, range, variables, abort.signal))).then(
      (perModel) => {
        const marks = perModel.flat();
        setAnswer({ marks: marks.length > 0 ? marks : NO_MARKS });
      },
      (reason: unknown) => {
        if (!abort.signal.aborted) {
          setAnswer({ marks: NO_MARKS, error: messageOf(reason) });
        }
      },
    );
    return () => abort.abort();
  }, [asked, timeRange, variables]);
  const toggle = (name: string) =>
    setSwitchedOff((last) => {
      const next = new Set(last);
      return next.delete(name) ? next : next.add(name);
    });
  return { models, switchedOff, toggle, ...answer };
}
