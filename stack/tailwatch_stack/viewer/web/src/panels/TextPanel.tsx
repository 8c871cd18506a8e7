import { renderMarkdown, textUtil } from '@grafana/data';
import { optionsOf } from './options';
import type { PanelProps } from './props';

export function TextPanel({ panel, replace, height }: PanelProps) {
  const { mode, content } = optionsOf(panel, { mode: 'markdown', content: '' });
  const text = replace(content, undefined, 'text');
  const html = mode === 'markdown' ? renderMarkdown(text) : textUtil.sanitize(text);
  if (mode === 'code') {
    return <pre style={{ height, overflow: 'auto' }}>{text}</pre>;
  }
  return (
    <div
      className="markdown-html"
      style={{ height, overflow: 'auto' }}
      dangerouslySetInnerHTML={{ __html: html }}
    />
  );
}
