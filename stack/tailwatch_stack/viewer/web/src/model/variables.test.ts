import { describe, expect, it } from 'vitest';
import type { VariableModel } from './dashboard';
import {
  filterOptions,
  type OptionQuery,
  parseOptionQuery,
  resolveVariables,
  sortOptions,
  splitOptions,
} from './variables';

const query = (name: string, text: string, rest: Partial<VariableModel> = {}): VariableModel => ({
  name,
  type: 'query',
  query: text,
  ...rest,
});

describe('parseOptionQuery', () => {
  it.each<[string, OptionQuery]>([
    ['label_names()', { kind: 'label_names' }],
    ['label_values(host)', { kind: 'label_values', label: 'host', match: undefined }],
    [
      'label_values(up{job=~"a|b", x="1,2"}, host)',
      { kind: 'label_values', label: 'host', match: 'up{job=~"a|b", x="1,2"}' },
    ],
    ['metrics(host_.*)', { kind: 'metrics', pattern: 'host_.*' }],
    ['query_result(topk(1, up))', { kind: 'query_result', query: 'topk(1, up)' }],
  ])('reads %s', (text, expected) => {
    expect(parseOptionQuery(text)).toEqual(expected);
  });

  it('refuses anything else', () => {
    expect(() => parseOptionQuery('up{}')).toThrow('variable query "up{}"');
  });
});

describe('resolveVariables', () => {
  const models = [
    query('service', 'label_values(requests, service)', {
      multi: true,
      includeAll: true,
      allValue: '.+',
    }),
    query('host', 'label_values(load{service=~"$service"}, host)', { sort: 1 }),
  ];
  const asked: OptionQuery[] = [];
  const ask = async (one: OptionQuery) => {
    asked.push(one);
    return one.kind === 'label_values' && one.label === 'service' ? ['web', 'app'] : ['b', 'a'];
  };

  it('resolves a variable before those that use it', async () => {
    asked.length = 0;
    const { variables, options } = await resolveVariables(models, { service: ['web'] }, ask);
    expect(asked[1]).toMatchObject({ match: 'load{service=~"web"}' });
    expect(options).toEqual({ service: ['web', 'app'], host: ['a', 'b'] });
    expect(variables.host).toMatchObject({ values: ['a'], isAll: false, isList: false });
  });

  it('falls back to All, else to the first option, when a choice is gone', async () => {
    const { variables } = await resolveVariables(
      models,
      { service: ['gone'], host: ['gone'] },
      ask,
    );
    expect(variables.service).toMatchObject({ isAll: true, text: 'All', allValue: '.+' });
    expect(variables.host).toMatchObject({ values: ['a'] });
  });

  it('keeps the choices that are left', async () => {
    const { variables } = await resolveVariables(models, { service: ['gone', 'app'] }, ask);
    expect(variables.service).toMatchObject({ values: ['app'], isAll: false });
  });

  it("takes the dashboard's own value when nothing is chosen", async () => {
    const model = query('x', 'label_values(x)', { current: { value: 'a' } });
    const { variables } = await resolveVariables([model], {}, ask);
    expect(variables.x).toMatchObject({ values: ['a'] });
  });

  it('knows one data source', async () => {
    const { variables } = await resolveVariables([{ name: 'ds', type: 'datasource' }], {}, ask);
    expect(variables.ds).toMatchObject({ values: ['prometheus'] });
  });

  it('refuses a type that it does not know', async () => {
    await expect(resolveVariables([{ name: 'x', type: 'adhoc' }], {}, ask)).rejects.toThrow(
      'variable x: type "adhoc"',
    );
  });
});

describe('options', () => {
  it('are split at commas that have no backslash', () => {
    expect(splitOptions('5m, 1h,a\\,b')).toEqual(['5m', '1h', 'a,b']);
  });

  it('are filtered by a regular expression', () => {
    const options = ['up{shop="rome"} 1', 'up{shop="oslo"} 0', 'other'];
    expect(filterOptions(options, '/shop="([^"]+)"/')).toEqual(['rome', 'oslo']);
    expect(filterOptions(options, '/(x)?shop="(?<value>[^"]+)"/')).toEqual(['rome', 'oslo']);
    expect(filterOptions(options, 'oth')).toEqual(['other']);
    expect(filterOptions(['a', 'a'], '')).toEqual(['a']);
  });

  it.each([
    [0, ['b10', 'B2', 'a3']],
    [1, ['B2', 'a3', 'b10']],
    [2, ['b10', 'a3', 'B2']],
    [3, ['B2', 'a3', 'b10']],
    [4, ['b10', 'a3', 'B2']],
    [5, ['a3', 'b10', 'B2']],
    [7, ['a3', 'B2', 'b10']],
    [8, ['b10', 'B2', 'a3']],
  ])('are sorted by number %i', (sort, expected) => {
    expect(sortOptions(['b10', 'B2', 'a3'], sort)).toEqual(expected);
  });
});
