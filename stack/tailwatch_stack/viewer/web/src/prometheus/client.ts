export type Labels = Record<string, string>;
/** Seconds since the epoch, and the value as text ('NaN' and '+Inf' included). */
export type Sample = [number, string];

export interface Series {
  metric: Labels;
  value?: Sample;
  values?: Sample[];
}

interface QueryData {
  resultType: 'vector' | 'matrix' | 'scalar' | 'string';
  result: Series[] | Sample;
}

type Parameters = Record<string, string | number | string[] | undefined>;

interface Reply {
  status: string;
  data?: unknown;
  error?: string;
  errorType?: string;
}

/** Evaluate at one instant, in milliseconds since the epoch. */
export async function queryInstant(query: string, time: number, signal?: AbortSignal) {
  return vectorOrMatrix(
    await call<QueryData>('query', { query, time: time / 1000 }, { method: 'POST', signal }),
  );
}

/** Evaluate from one instant to another, milliseconds since the epoch, every `step` milliseconds. */
export async function queryRange(
  query: string,
  { from, to, step }: { from: number; to: number; step: number },
  signal?: AbortSignal,
) {
  const parameters = { query, start: from / 1000, end: to / 1000, step: step / 1000 };
  return vectorOrMatrix(
    await call<QueryData>('query_range', parameters, { method: 'POST', signal }),
  );
}

export interface LabelScope {
  from: number;
  to: number;
  /** Series selectors; none means every series. */
  match?: string;
}

export function labelNames(scope: LabelScope, signal?: AbortSignal): Promise<string[]> {
  return call('labels', scopeParameters(scope), { signal });
}

export function labelValues(
  label: string,
  scope: LabelScope,
  signal?: AbortSignal,
): Promise<string[]> {
  return call(`label/${encodeURIComponent(label)}/values`, scopeParameters(scope), { signal });
}

/** A sample's text as a number; Prometheus writes infinities with a sign. */
export function sampleValue(text: string): number {
  return text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text);
}

function scopeParameters({ from, to, match }: LabelScope): Parameters {
  return { start: from / 1000, end: to / 1000, 'match[]': match };
}

async function call<T>(
  path: string,
  parameters: Parameters,
  { method = 'GET', signal }: { method?: 'GET' | 'POST'; signal?: AbortSignal } = {},
): Promise<T> {
  const form = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of value === undefined ? [] : [value].flat()) {
      form.append(name, String(one));
    }
  }
  const url = `/prom/api/v1/${path}`;
  const response =
    method === 'POST'
      ? await fetch(url, { method, body: form, signal })
      : await fetch(`${url}?${form}`, { signal });
  const reply = (await response.json().catch(() => undefined)) as Reply | undefined;
  if (reply?.status !== 'success') {
    throw new Error(reply?.error ?? `${url} answered ${response.status} ${response.statusText}`);
  }
  return reply.data as T;
}

function vectorOrMatrix(data: QueryData): Series[] {
  if (data.resultType === 'scalar') {
    return [{ metric: {}, value: data.result as Sample }];
  }
  if (data.resultType === 'string') {
    throw new Error('the query gives a string, not numbers');
  }
  return data.result as Series[];
}
