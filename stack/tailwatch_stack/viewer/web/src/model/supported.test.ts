import { readdirSync, readFileSync } from 'node:fs';
import { standardTransformers } from '@grafana/data';
import { describe, expect, it } from 'vitest';
import type { Dashboard, Panel } from './dashboard';
import { TRANSFORMATIONS, unsupportedInDashboard, unsupportedInPanel } from './supported';

const SHIPPED = `${import.meta.dirname}/../../../../../../dashboards`;
const shipped = readdirSync(SHIPPED).filter((name) => name.endsWith('.json'));

it('finds the shipped dashboards', () => {
  expect(shipped.length).toBeGreaterThanOrEqual(4);
});

it.each(shipped)('%s uses only what is supported', (name) => {
  const dashboard = JSON.parse(readFileSync(`${SHIPPED}/${name}`, 'utf8')) as Dashboard;
  expect(unsupportedInDashboard(dashboard)).toEqual([]);
});

it('lists only transformations that @grafana/data has', () => {
  const known = Object.values(standardTransformers).map(({ id }) => String(id));
  expect(TRANSFORMATIONS.filter((id) => !known.includes(id))).toEqual([]);
});

describe('unsupportedInPanel', () => {
  const panel: Panel = { id: 1, type: 'stat', gridPos: { x: 0, y: 0, w: 1, h: 1 } };

  it.each<[string, Partial<Panel>]>([
    ['Panel type "piechart"', { type: 'piechart' }],
    ['Transformation "makeCoffee"', { transformations: [{ id: 'makeCoffee', options: {} }] }],
    ['"repeat"', { repeat: 'host' }],
    ['"timeShift"', { timeShift: '1d' }],
    ['Query A is not for Prometheus', { targets: [{ refId: 'A', datasource: { type: 'loki' } }] }],
    [
      'Override of "custom.glow"',
      {
        fieldConfig: {
          defaults: {},
          overrides: [
            {
              matcher: { id: 'byName', options: 'x' },
              properties: [{ id: 'custom.glow', value: 1 }],
            },
          ],
        },
      },
    ],
    [
      'Override matcher "byMood"',
      { fieldConfig: { defaults: {}, overrides: [{ matcher: { id: 'byMood' }, properties: [] }] } },
    ],
  ])('names %s', (expected, rest) => {
    expect(unsupportedInPanel({ ...panel, ...rest }).join()).toContain(expected);
  });

  it('ignores a transformation that is switched off', () => {
    const transformations = [{ id: 'makeCoffee', options: {}, disabled: true }];
    expect(unsupportedInPanel({ ...panel, transformations })).toEqual([]);
  });
});
