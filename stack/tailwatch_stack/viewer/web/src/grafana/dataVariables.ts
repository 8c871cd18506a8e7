import {
  type DataContextScopedVar,
  type Field,
  formattedValueToString,
  getDisplayProcessor,
  getFieldDisplayName,
  type ScopedVars,
} from '@grafana/data';
import type { Lookup } from '../model/interpolate';

/**
 * Look up `__series.name`, `__field.labels.uuid`, `__data.fields.service` and `__value.raw` for the
 * field and row that a data link, or a display name, belongs to.
 */
export function dataLookup(scope: ScopedVars | undefined): Lookup {
  const context = scope?.__dataContext?.value as DataContextScopedVar['value'] | undefined;
  if (!context) {
    return () => undefined;
  }
  const { frame, field, rowIndex, calculatedValue, data } = context;
  return (name, path = '') => {
    switch (name) {
      case '__series':
        return path === 'name'
          ? (frame.name ?? getFieldDisplayName(field, frame, data))
          : undefined;
      case '__field':
        return fieldPart(field, path, () => getFieldDisplayName(field, frame, data));
      case '__value':
        if (path === 'time') {
          const time = frame.fields.find(({ type }) => type === 'time');
          return String(rowIndex === undefined ? '' : (time?.values[rowIndex] ?? ''));
        }
        return calculatedValue
          ? valuePart(path, calculatedValue.numeric, formattedValueToString(calculatedValue))
          : cellPart(field, rowIndex, path);
      case '__data': {
        const [wanted, part] = dataPath(path);
        const found = frame.fields.find(
          (other) => other.name === wanted || getFieldDisplayName(other, frame, data) === wanted,
        );
        return found && cellPart(found, rowIndex, part);
      }
      default:
        return undefined;
    }
  };
}

function fieldPart(field: Field, path: string, displayName: () => string): string | undefined {
  if (path === 'name' || path === 'displayName') {
    return displayName();
  }
  const label = /^labels(?:\.(\w+)|\["([^"]+)"\])$/.exec(path);
  return label ? (field.labels?.[label[1] ?? label[2]!] ?? '') : undefined;
}

/** `fields.service`, `fields["service"]` or `fields.service.text` as name and part. */
function dataPath(path: string): [string, string] {
  const match = /^fields(?:\.([\w ]+)|\["([^"]+)"\])(?:\.(\w+))?$/.exec(path);
  return match ? [match[1] ?? match[2]!, match[3] ?? 'text'] : ['', ''];
}

function cellPart(field: Field, row: number | undefined, part: string): string | undefined {
  const raw: unknown = row === undefined ? field.values.at(-1) : field.values[row];
  const display = field.display ?? getDisplayProcessor();
  return valuePart(part, raw, formattedValueToString(display(raw)));
}

function valuePart(part: string, raw: unknown, text: string): string | undefined {
  switch (part) {
    case 'raw':
    case 'numeric':
      return String(raw ?? '');
    case 'text':
    case '':
      return text;
    default:
      return undefined;
  }
}
