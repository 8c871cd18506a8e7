import type { VariableModel } from './dashboard';
import { interpolate, type Variable, type Variables } from './interpolate';

export const ALL = '$__all';
/** The only data source there is; what `$datasource` stands for. */
export const DATASOURCE_UID = 'prometheus';

/** What a variable's query asks; the answers come from Prometheus. */
export type OptionQuery =
  | { kind: 'label_names' }
  | { kind: 'label_values'; label: string; match?: string }
  | { kind: 'metrics'; pattern: string }
  | { kind: 'query_result'; query: string };

export type AskPrometheus = (query: OptionQuery) => Promise<string[]>;

export interface Resolved {
  variables: Variables;
  /** Per variable: the values to choose from, All not among them. */
  options: Readonly<Record<string, string[]>>;
}

/** What the person, or the URL, chose per variable. */
export type Choices = Readonly<Record<string, string[]>>;

/**
 * Find each variable's options and value, in the dashboard's order: a query may use the variables
 * above it. A chosen value that is no longer an option gives way to All or to the first option.
 */
export async function resolveVariables(
  models: VariableModel[],
  choices: Choices,
  ask: AskPrometheus,
): Promise<Resolved> {
  const variables: Record<string, Variable> = {};
  const options: Record<string, string[]> = {};
  for (const model of models) {
    const found = await findOptions(model, variables, ask);
    options[model.name] = found;
    variables[model.name] = chooseValue(model, found, choices[model.name]);
  }
  return { variables, options };
}

async function findOptions(
  model: VariableModel,
  variables: Variables,
  ask: AskPrometheus,
): Promise<string[]> {
  const text = typeof model.query === 'string' ? model.query : (model.query?.query ?? '');
  switch (model.type) {
    case 'datasource':
      return [DATASOURCE_UID];
    case 'constant':
    case 'textbox':
      return [text];
    case 'custom':
    case 'interval':
      return splitOptions(text);
    case 'query': {
      const query = parseOptionQuery(interpolate(text, variables, undefined, 'promql'));
      return sortOptions(filterOptions(await ask(query), model.regex), model.sort ?? 0);
    }
    default:
      throw new Error(`variable ${model.name}: type "${model.type}" is not supported`);
  }
}

function chooseValue(model: VariableModel, options: string[], choice?: string[]): Variable {
  const wanted = choice ?? [model.current?.value ?? []].flat();
  const free = model.type === 'textbox';
  const possible = wanted.filter((value) =>
    value === ALL ? model.includeAll : free || options.includes(value),
  );
  const fallback = model.includeAll ? [ALL] : options.slice(0, 1);
  const chosen = possible.length ? possible : fallback;
  const isAll = chosen.includes(ALL);
  const values = isAll ? options : model.multi ? chosen : chosen.slice(0, 1);
  return {
    values,
    text: isAll ? 'All' : values.join(' + '),
    isAll,
    allValue: model.allValue || undefined,
    isList: Boolean(model.multi || model.includeAll),
  };
}

const FORMS: Array<[RegExp, (groups: string[]) => OptionQuery]> = [
  [/^label_names\(\)$/, () => ({ kind: 'label_names' })],
  [
    /^label_values\(\s*(?:(.+),\s*)?(\w+)\s*\)$/s,
    ([match, label]) => ({ kind: 'label_values', label: label!, match: match?.trim() }),
  ],
  [/^metrics\((.*)\)$/s, ([pattern]) => ({ kind: 'metrics', pattern: pattern! })],
  [/^query_result\((.+)\)$/s, ([query]) => ({ kind: 'query_result', query: query! })],
];

/** @throws Error where the query is none of the four forms */
export function parseOptionQuery(text: string): OptionQuery {
  for (const [form, build] of FORMS) {
    const match = form.exec(text.trim());
    if (match) {
      return build(match.slice(1));
    }
  }
  throw new Error(
    `variable query "${text}": expected label_names(), label_values(), metrics() or query_result()`,
  );
}

/** Split at commas; a comma after a backslash belongs to the value. */
export function splitOptions(text: string): string[] {
  return text
    .split(/(?<!\\),/)
    .map((option) => option.trim().replaceAll('\\,', ','))
    .filter((option) => option !== '');
}

/**
 * Keep what the regular expression matches, each option once. Of a match the group `value` counts,
 * else the first group, else all of the option.
 */
export function filterOptions(options: string[], regex?: string): string[] {
  if (!regex) {
    return [...new Set(options)];
  }
  const written = /^\/(.*)\/(\w*)$/s.exec(regex);
  const pattern = written
    ? new RegExp(written[1]!, written[2]!.replace('g', ''))
    : new RegExp(regex);
  const kept = options.flatMap((option) => {
    const match = pattern.exec(option);
    if (!match) {
      return [];
    }
    return [match.groups?.value ?? match.slice(1).find((group) => group !== undefined) ?? option];
  });
  return [...new Set(kept)];
}

type Compare = (a: string, b: string) => number;

const byText: Compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const byNumber: Compare = (a, b) => firstNumber(a) - firstNumber(b);
const byTextIgnoringCase: Compare = (a, b) => byText(a.toLowerCase(), b.toLowerCase());
const naturally: Compare = (a, b) => a.localeCompare(b, undefined, { numeric: true });

/** Grafana's sort numbers: for each order, ascending and then descending. */
const ORDERS: Compare[] = [byText, byNumber, byTextIgnoringCase, naturally];

/** Sort by a dashboard's sort number; 0 keeps Prometheus' order. */
export function sortOptions(options: string[], sort: number): string[] {
  const order = ORDERS[Math.ceil(sort / 2) - 1];
  if (!order) {
    return options;
  }
  const ascending = options.toSorted(order);
  return sort % 2 === 1 ? ascending : ascending.toReversed();
}

function firstNumber(text: string): number {
  return parseFloat(/-?\d+(\.\d+)?/.exec(text)?.[0] ?? '0');
}
