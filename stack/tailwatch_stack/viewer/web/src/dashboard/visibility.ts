import { type DataFrame, FieldType, getFieldDisplayName } from '@grafana/data';

/** The series that a person singled out in the legend; undefined shows all. */
export type Shown = ReadonlySet<string> | undefined;

/**
 * A click shows one series alone and a second click all again.
 *
 * @param clicked names in the legend, null for all
 * @param isAdding whether the click, with Ctrl, only adds or removes
 */
export function toggleSeries(
  shown: Shown,
  all: string[],
  clicked: string | string[] | null,
  isAdding: boolean,
): Shown {
  const names = clicked === null ? all : [clicked].flat();
  if (isAdding) {
    const next = new Set(shown ?? all);
    for (const name of names) {
      if (!next.delete(name)) {
        next.add(name);
      }
    }
    return next.size === all.length ? undefined : next;
  }
  const isAlone = shown?.size === names.length && names.every((name) => shown.has(name));
  return isAlone || names.length === all.length ? undefined : new Set(names);
}

export function seriesNames(frames: DataFrame[]): string[] {
  return frames.flatMap((frame) =>
    frame.fields
      .filter(({ type }) => type === FieldType.number)
      .map((field) => getFieldDisplayName(field, frame, frames)),
  );
}

/** The frames with every series hidden that is not shown. */
export function hideSeries(frames: DataFrame[], shown: Shown): DataFrame[] {
  if (!shown) {
    return frames;
  }
  return frames.map((frame) => ({
    ...frame,
    fields: frame.fields.map((field) => {
      const isHidden =
        field.type === FieldType.number && !shown.has(getFieldDisplayName(field, frame, frames));
      const hideFrom = { viz: isHidden, legend: false, tooltip: isHidden };
      return isHidden
        ? { ...field, config: { ...field.config, custom: { ...field.config.custom, hideFrom } } }
        : field;
    }),
  }));
}
