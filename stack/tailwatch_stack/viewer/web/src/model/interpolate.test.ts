import { describe, expect, it } from 'vitest';
import { interpolate, type Variable } from './interpolate';

const one = (value: string): Variable => ({
  values: [value],
  text: value,
  isAll: false,
  isList: false,
});
const many = (...values: string[]): Variable => ({
  values,
  text: values.join(' + '),
  isAll: false,
  isList: true,
});
const all = (allValue: string | undefined, ...values: string[]): Variable => ({
  values,
  text: 'All',
  isAll: true,
  allValue,
  isList: true,
});

describe('interpolate', () => {
  it('replaces the three ways of writing a variable', () => {
    const variables = { host: one('a') };
    expect(interpolate('$host [[host]] ${host}', variables)).toBe('a a a');
  });

  it('leaves what it does not know', () => {
    expect(interpolate('$nope ${nope:csv} costs 5$', {})).toBe('$nope ${nope:csv} costs 5$');
  });

  it('takes the longest name', () => {
    expect(interpolate('$host_1', { host: one('a'), host_1: one('b') })).toBe('b');
  });

  it.each([
    ['csv', 'a,b'],
    ['pipe', 'a|b'],
    ['raw', 'a,b'],
    ['glob', '{a,b}'],
    ['regex', '(a|b)'],
    ['json', '["a","b"]'],
    ['doublequote', '"a","b"'],
    ['singlequote', "'a','b'"],
    ['queryparam', 'var-x=a&var-x=b'],
    ['percentencode', '%7Ba%2Cb%7D'],
    ['text', 'a + b'],
  ])('formats several values as %s', (format, expected) => {
    expect(interpolate(`\${x:${format}}`, { x: many('a', 'b') })).toBe(expected);
  });

  it('refuses a format that does not exist', () => {
    expect(() => interpolate('${x:nope}', { x: one('a') })).toThrow('"nope" does not exist');
  });

  it('asks the lookup first, with the path', () => {
    const lookup = (name: string, path?: string) => (name === '__field' ? `<${path}>` : undefined);
    expect(interpolate('${__field.labels.uuid}', {}, lookup)).toBe('<labels.uuid>');
  });

  it('encodes looked-up values for a URL, but not pieces of a query string', () => {
    const lookup = (name: string) => (name === '__url_time_range' ? 'from=1&to=2' : 'a b');
    expect(interpolate('/d/x?v=$v&$__url_time_range', {}, lookup, 'uriencode')).toBe(
      '/d/x?v=a%20b&from=1&to=2',
    );
  });
});

describe('interpolate in PromQL', () => {
  const promql = (text: string, variable: Variable) =>
    interpolate(text, { x: variable }, undefined, 'promql');

  it('escapes a regular expression for a quoted string', () => {
    // What Prometheus unquotes to a\.b, which matches "a.b" alone.
    expect(promql('up{job=~"$x"}', many('a.b'))).toBe('up{job=~"a\\\\.b"}');
    expect(promql('up{job=~"$x"}', many('a.b', 'c'))).toBe('up{job=~"(a\\\\.b|c)"}');
  });

  it('escapes only quotes and backslashes where = is expected', () => {
    expect(promql('up{job="$x"}', one('a.b "q" \\'))).toBe('up{job="a.b \\"q\\" \\\\"}');
  });

  it('uses the value for All as it is', () => {
    expect(promql('up{job=~"$x"}', all('.+', 'a', 'b'))).toBe('up{job=~".+"}');
    expect(promql('up{job=~"$x"}', all(undefined, 'a', 'b'))).toBe('up{job=~"(a|b)"}');
  });
});
