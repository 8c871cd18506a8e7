/** What Grafana's core supplies to @grafana/data and @grafana/ui, and an embedding has to. */
import {
  booleanOverrideProcessor,
  createFieldConfigRegistry,
  dataLinksOverrideProcessor,
  displayNameOverrideProcessor,
  type FieldConfigPropertyItem,
  identityOverrideProcessor,
  numberOverrideProcessor,
  standardFieldConfigEditorRegistry,
  standardTransformers,
  standardTransformersRegistry,
  stringOverrideProcessor,
  thresholdsOverrideProcessor,
  type TransformerRegistryItem,
  unitOverrideProcessor,
  valueMappingsOverrideProcessor,
} from '@grafana/data';
import { CUSTOM_OPTIONS, type FIELD_OPTIONS, TRANSFORMATIONS } from '../model/supported';

declare global {
  interface Window {
    __grafana_public_path__?: string;
  }
}

type Processor = FieldConfigPropertyItem['process'];

const PROCESSORS: Record<(typeof FIELD_OPTIONS)[number], Processor> = {
  color: identityOverrideProcessor,
  decimals: numberOverrideProcessor,
  description: stringOverrideProcessor,
  displayName: displayNameOverrideProcessor,
  fieldMinMax: booleanOverrideProcessor,
  filterable: booleanOverrideProcessor,
  links: dataLinksOverrideProcessor,
  mappings: valueMappingsOverrideProcessor,
  max: numberOverrideProcessor,
  min: numberOverrideProcessor,
  noValue: stringOverrideProcessor,
  thresholds: thresholdsOverrideProcessor,
  unit: unitOverrideProcessor,
};

const noEditor = () => null;

/** Run once, before anything is drawn. */
export function setUpGrafana(): void {
  window.__grafana_public_path__ = '/'; // icons come from /build/img/icons
  standardFieldConfigEditorRegistry.setInit(() =>
    Object.entries(PROCESSORS).map(([id, process]) => fieldOption(id, process)),
  );
  standardTransformersRegistry.setInit(() =>
    Object.values(standardTransformers)
      .filter(({ id }) => (TRANSFORMATIONS as readonly string[]).includes(id))
      .filter(({ id }, index, all) => all.findIndex((other) => other.id === id) === index)
      .map((transformer): TransformerRegistryItem => ({
        id: transformer.id,
        name: transformer.name,
        description: transformer.description,
        transformation: async () => transformer,
        editor: noEditor,
        imageDark: '',
        imageLight: '',
      })),
  );
}

/** The options that a panel's fields may have; the ones under `custom` included. */
export function fieldOptionRegistry() {
  return createFieldConfigRegistry(
    {
      useCustomConfig: (builder) => {
        for (const path of CUSTOM_OPTIONS) {
          builder.addCustomEditor(fieldOption(path, identityOverrideProcessor));
        }
      },
    },
    'tailwatch',
  );
}

function fieldOption(id: string, process: Processor): FieldConfigPropertyItem {
  return {
    id,
    path: id,
    name: id,
    editor: noEditor,
    override: noEditor,
    process,
    shouldApply: () => true,
    getItemsCount: () => 0,
  };
}
