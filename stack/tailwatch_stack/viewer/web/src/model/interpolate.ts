/** A template variable's value as it stands. */
export interface Variable {
  values: string[];
  /** What the person sees; differs from the values for All. */
  text: string;
  isAll: boolean;
  /** Replaces the list of every value when All is chosen; inserted as it is. */
  allValue?: string;
  /** Whether several values can be chosen, so that PromQL matches it with =~. */
  isList: boolean;
}

export type Variables = Readonly<Record<string, Variable>>;

/**
 * Gives the text for a name that is not a template variable (`__from`, `__field.labels.uuid`),
 * or undefined where it knows none.
 */
export type Lookup = (name: string, path: string | undefined) => string | undefined;

const REFERENCE = /\$(\w+)|\[\[(\w+)(?::(\w+))?\]\]|\$\{(\w+)(?:\.([^:}]+))?(?::([^}]+))?\}/g;

type Format = (values: string[], name: string, variable: Variable) => string;

const FORMATS: Record<string, Format> = {
  csv: (values) => values.join(','),
  doublequote: (values) =>
    values.map((value) => `"${value.replaceAll('\\', '\\\\').replaceAll('"', '\\"')}"`).join(','),
  glob: (values) => (values.length > 1 ? `{${values.join(',')}}` : (values[0] ?? '')),
  json: (values) => JSON.stringify(values.length === 1 ? values[0] : values),
  percentencode: (values) => encodeURIComponent(FORMATS.glob!(values, '', ONE)),
  pipe: (values) => values.join('|'),
  promql,
  queryparam: (values, name, variable) =>
    (variable.isAll ? ['$__all'] : values)
      .map((value) => `var-${encodeURIComponent(name)}=${encodeURIComponent(value)}`)
      .join('&'),
  raw: (values) => values.join(','),
  regex: (values) =>
    values.length > 1 ? `(${values.map(escapeRegex).join('|')})` : escapeRegex(values[0] ?? ''),
  singlequote: (values) => values.map((value) => `'${value.replaceAll("'", "\\'")}'`).join(','),
  text: (_values, _name, variable) => variable.text,
  uriencode: (values) => encodeURI(FORMATS.glob!(values, '', ONE)),
};
const ONE: Variable = { values: [], text: '', isAll: false, isList: false };

/** Pieces of a query string, encoded already. */
const URL_PARTS = new Set(['__url_time_range', '__all_variables']);

/**
 * Replace `$name`, `[[name]]` and `${name.path:format}` in a template.
 *
 * A name that neither the lookup nor the variables know stays as it is: in a query Prometheus then
 * refuses it, in a title the person sees it.
 *
 * @param format for references that name none: 'promql' in queries, else 'glob'
 * @throws Error on a format that does not exist
 */
export function interpolate(
  template: string,
  variables: Variables,
  lookup: Lookup = () => undefined,
  format = 'glob',
): string {
  return template.replace(
    REFERENCE,
    (reference, plain, bracket, bracketFormat, braced, path, bracedFormat) => {
      const name: string = plain ?? bracket ?? braced;
      const chosen = bracketFormat ?? bracedFormat ?? format;
      const apply = FORMATS[chosen];
      if (!apply) {
        throw new Error(`${reference}: the format "${chosen}" does not exist`);
      }
      const known = lookup(name, path);
      if (known !== undefined) {
        return chosen.endsWith('encode') && !URL_PARTS.has(name)
          ? apply([known], name, ONE)
          : known;
      }
      const variable = variables[name];
      if (!variable) {
        return reference;
      }
      if (variable.isAll && variable.allValue && chosen !== 'text' && chosen !== 'queryparam') {
        return variable.allValue;
      }
      return apply(variable.values, name, variable);
    },
  );
}

/** Escape for a PromQL string: as text for `=`, as a regular expression where =~ is expected. */
function promql(values: string[], _name: string, variable: Variable): string {
  if (!variable.isList) {
    return (values[0] ?? '').replaceAll('\\', '\\\\').replaceAll('"', '\\"');
  }
  const escaped = values.map((value) => escapeRegex(value).replaceAll('\\', '\\\\'));
  return escaped.length > 1 ? `(${escaped.join('|')})` : (escaped[0] ?? '');
}

function escapeRegex(text: string): string {
  return text.replace(/[\\^$*+?.()|[\]{}/]/g, '\\$&');
}
