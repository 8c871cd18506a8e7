import { type DataFrame, FieldType, type LinkModel } from '@grafana/data';

/**
 * The data links of a point in a graph.
 *
 * @param aligned what is plotted: the frames joined on time, with rows of its own
 * @param fieldIndex of the series in `aligned`
 * @param row in `aligned`; the links want the row of the frame that the series came from
 */
export function seriesLinks(
  frames: DataFrame[],
  aligned: DataFrame,
  fieldIndex: number,
  row: number,
): LinkModel[] {
  const origin = aligned.fields[fieldIndex]?.state?.origin;
  const frame = origin && frames[origin.frameIndex];
  const moment: unknown = aligned.fields[0]?.values[row];
  const times = frame?.fields.find(({ type }) => type === FieldType.time)?.values;
  const valueRowIndex = times?.indexOf(moment) ?? -1;
  if (!frame || valueRowIndex < 0) {
    return [];
  }
  return frame.fields[origin.fieldIndex]?.getLinks?.({ valueRowIndex }) ?? [];
}
