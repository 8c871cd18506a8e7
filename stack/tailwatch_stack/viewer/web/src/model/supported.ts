import type { AnnotationModel, Dashboard, DatasourceRef, Panel, VariableModel } from './dashboard';
import { allPanels } from './dashboard';

/** What the viewer draws. Anything else is named in the panel instead of being left out silently. */
export const PANEL_TYPES = [
  'timeseries',
  'stat',
  'gauge',
  'bargauge',
  'table',
  'heatmap',
  'state-timeline',
  'text',
] as const;

export type PanelType = (typeof PANEL_TYPES)[number];

/** Transformations of @grafana/data. */
export const TRANSFORMATIONS = [
  'calculateField',
  'concatenate',
  'convertFieldType',
  'filterByRefId',
  'filterByValue',
  'filterFieldsByName',
  'formatString',
  'formatTime',
  'groupBy',
  'groupingToMatrix',
  'joinByField',
  'labelsToFields',
  'limit',
  'merge',
  'organize',
  'reduce',
  'renameByRegex',
  'seriesToRows',
  'sortBy',
  'transpose',
] as const;

export const VARIABLE_TYPES = [
  'constant',
  'custom',
  'datasource',
  'interval',
  'query',
  'textbox',
] as const;

/** Field options that an override may set, outside of `custom`. */
export const FIELD_OPTIONS = [
  'color',
  'decimals',
  'description',
  'displayName',
  'fieldMinMax',
  'filterable',
  'links',
  'mappings',
  'max',
  'min',
  'noValue',
  'thresholds',
  'unit',
] as const;

/** Field options under `custom`, in overrides spelt with that prefix. */
export const CUSTOM_OPTIONS = [
  'align',
  'axisBorderShow',
  'axisCenteredZero',
  'axisColorMode',
  'axisGridShow',
  'axisLabel',
  'axisPlacement',
  'axisSoftMax',
  'axisSoftMin',
  'axisWidth',
  'barAlignment',
  'barMaxWidth',
  'barWidthFactor',
  'cellOptions',
  'drawStyle',
  'fillBelowTo',
  'fillColor',
  'fillOpacity',
  'filterable',
  'gradientMode',
  'hidden',
  'hideFrom',
  'insertNulls',
  'inspect',
  'lineColor',
  'lineInterpolation',
  'lineStyle',
  'lineWidth',
  'minWidth',
  'neutral',
  'pointSize',
  'scaleDistribution',
  'showPoints',
  'spanNulls',
  'stacking',
  'thresholdsStyle',
  'transform',
  'width',
  'wrapText',
] as const;

const MATCHERS = [
  'byName',
  'byNames',
  'byRegexp',
  'byRegexpOrNames',
  'byType',
  'byFrameRefID',
  'byValue',
];

const KNOWN_TRANSFORMATIONS = new Set<string>(TRANSFORMATIONS);

/** One sentence per thing in the panel that the viewer cannot honour. */
export function unsupportedInPanel(panel: Panel): string[] {
  const problems: string[] = [];
  if (!isPanelType(panel.type)) {
    problems.push(
      `Panel type "${panel.type}" is not supported; supported are ${PANEL_TYPES.join(', ')}.`,
    );
  }
  for (const { id, disabled } of panel.transformations ?? []) {
    if (!disabled && !KNOWN_TRANSFORMATIONS.has(id)) {
      problems.push(`Transformation "${id}" is not supported.`);
    }
  }
  for (const { matcher, properties } of panel.fieldConfig?.overrides ?? []) {
    if (!MATCHERS.includes(matcher.id)) {
      problems.push(`Override matcher "${matcher.id}" is not supported.`);
    }
    for (const { id } of properties) {
      if (!isFieldOption(id)) {
        problems.push(`Override of "${id}" is not supported.`);
      }
    }
  }
  for (const target of panel.targets ?? []) {
    const ref = target.datasource ?? panel.datasource;
    if (!isPrometheus(ref)) {
      problems.push(`Query ${target.refId} is not for Prometheus: ${JSON.stringify(ref)}.`);
    }
  }
  for (const key of ['repeat', 'timeFrom', 'timeShift', 'libraryPanel'] as const) {
    if (panel[key]) {
      problems.push(`The panel option "${key}" is not supported.`);
    }
  }
  return problems;
}

/** One sentence per thing anywhere in the dashboard that the viewer cannot honour. */
export function unsupportedInDashboard(dashboard: Dashboard): string[] {
  const panels = allPanels(dashboard)
    .filter((panel) => panel.type !== 'row')
    .flatMap((panel) =>
      unsupportedInPanel(panel).map((problem) => `panel "${panel.title}": ${problem}`),
    );
  return [...panels, ...unsupportedAroundPanels(dashboard)];
}

/** The same for rows, variables and annotations, which have no place of their own to say it in. */
export function unsupportedAroundPanels(dashboard: Dashboard): string[] {
  const rows = allPanels(dashboard)
    .filter((panel) => panel.type === 'row' && panel.repeat)
    .map((panel) => `row "${panel.title}": The panel option "repeat" is not supported.`);
  return [
    ...rows,
    ...(dashboard.templating?.list ?? []).flatMap(unsupportedInVariable),
    ...(dashboard.annotations?.list ?? []).flatMap(unsupportedInAnnotation),
  ];
}

function unsupportedInVariable({ name, type }: VariableModel): string[] {
  return (VARIABLE_TYPES as readonly string[]).includes(type)
    ? []
    : [`variable "${name}": Type "${type}" is not supported.`];
}

function unsupportedInAnnotation(annotation: AnnotationModel): string[] {
  return annotation.builtIn || isPrometheus(annotation.datasource)
    ? []
    : [`annotation "${annotation.name}": It is not for Prometheus.`];
}

export function isPanelType(type: string): type is PanelType {
  return (PANEL_TYPES as readonly string[]).includes(type);
}

function isFieldOption(id: string): boolean {
  return id.startsWith('custom.')
    ? (CUSTOM_OPTIONS as readonly string[]).includes(id.slice('custom.'.length).split('.')[0] ?? '')
    : (FIELD_OPTIONS as readonly string[]).includes(id);
}

function isPrometheus(ref: DatasourceRef | string | null | undefined): boolean {
  if (ref === null || ref === undefined || typeof ref === 'string') {
    return !ref?.startsWith('-- '); // '-- Mixed --', '-- Dashboard --', '-- Grafana --'
  }
  return ref.type === undefined || ref.type === 'prometheus' || ref.type === 'datasource'
    ? !ref.uid?.startsWith('-- ')
    : false;
}
