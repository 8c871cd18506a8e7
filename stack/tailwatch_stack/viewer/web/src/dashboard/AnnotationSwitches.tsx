import { InlineSwitch } from '@grafana/ui';
import type { Annotations } from './useAnnotations';

/** A switch for each kind of mark on the graphs. */
export function AnnotationSwitches({ annotations }: { annotations: Annotations }) {
  const { models, switchedOff, toggle } = annotations;
  return models
    .filter(({ hide }) => !hide)
    .map(({ name }) => (
      <InlineSwitch
        key={name}
        label={name}
        showLabel
        value={!switchedOff.has(name)}
        onChange={() => toggle(name)}
      />
    ));
}
