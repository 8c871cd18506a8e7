import { Combobox, type ComboboxOption, InlineLabel, MultiCombobox } from '@grafana/ui';
import type { VariableModel } from '../model/dashboard';
import type { Variable } from '../model/interpolate';
import { ALL, type Resolved } from '../model/variables';
import { TextVariable } from './TextVariable';

interface VariableControlsProps {
  models: VariableModel[];
  resolved: Resolved;
  onChoose: (name: string, values: string[]) => void;
}

/** Pickers for the variables that a person can change. */
export function VariableControls({ models, resolved, onChoose }: VariableControlsProps) {
  return models.filter(isShown).map((model) => {
    const variable = resolved.variables[model.name];
    return (
      variable && (
        <div key={model.name} data-variable={model.name} style={{ display: 'flex' }}>
          {model.hide !== 1 && <InlineLabel width="auto">{model.label || model.name}</InlineLabel>}
          <VariableControl
            model={model}
            variable={variable}
            options={resolved.options[model.name] ?? []}
            onChoose={(values) => onChoose(model.name, values)}
          />
        </div>
      )
    );
  });
}

/** There is one data source, so nothing to choose; a constant is not to be chosen. */
function isShown({ type, hide }: VariableModel): boolean {
  return hide !== 2 && type !== 'datasource' && type !== 'constant';
}

interface VariableControlProps {
  model: VariableModel;
  variable: Variable;
  options: string[];
  onChoose: (values: string[]) => void;
}

function VariableControl({ model, variable, options, onChoose }: VariableControlProps) {
  const label = model.label || model.name;
  if (model.type === 'textbox') {
    const value = variable.values[0] ?? '';
    return <TextVariable key={value} label={label} value={value} onChange={onChoose} />;
  }
  const choices: ComboboxOption[] = [
    ...(model.includeAll ? [{ label: 'All', value: ALL }] : []),
    ...options.map((value) => ({ label: value, value })),
  ];
  const chosen = variable.isAll ? [ALL] : variable.values;
  const width = { width: 'auto', minWidth: 16, maxWidth: 60 } as const;
  if (!model.multi) {
    return (
      <Combobox
        {...width}
        aria-label={label}
        options={choices}
        value={chosen[0] ?? null}
        onChange={({ value }) => onChoose([value])}
      />
    );
  }
  return (
    <MultiCombobox
      {...width}
      aria-label={label}
      options={choices}
      value={chosen}
      onChange={(picked) =>
        onChoose(
          withoutStaleAll(
            picked.map(({ value }) => value),
            chosen,
          ),
        )
      }
    />
  );
}

/** All and single values exclude each other: the one chosen last stays. */
function withoutStaleAll(picked: string[], before: string[]): string[] {
  if (!picked.includes(ALL)) {
    return picked;
  }
  return before.includes(ALL) && picked.length > 1 ? picked.filter((one) => one !== ALL) : [ALL];
}
