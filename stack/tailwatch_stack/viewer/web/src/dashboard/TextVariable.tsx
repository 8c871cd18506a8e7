import { Input } from '@grafana/ui';
import { useState } from 'react';

interface TextVariableProps {
  label: string;
  value: string;
  onChange: (values: string[]) => void;
}

/** A variable that is typed; it counts once Enter is pressed or the field is left. */
export function TextVariable({ label, value, onChange }: TextVariableProps) {
  const [text, setText] = useState(value);
  const commit = () => text !== value && onChange([text]);
  return (
    <Input
      aria-label={label}
      width={20}
      value={text}
      onChange={(event) => setText(event.currentTarget.value)}
      onBlur={commit}
      onKeyDown={(event) => event.key === 'Enter' && commit()}
    />
  );
}
