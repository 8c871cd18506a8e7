/** A series' name: the legend format with `{{label}}` replaced, or the series written out. */
export function seriesName(
  format: string | undefined,
  labels: Readonly<Record<string, string>>,
  expression: string,
): string {
  if (format && format !== '__auto') {
    return format.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label: string) => labels[label] ?? '');
  }
  const { __name__: metric = '', ...rest } = labels;
  const pairs = Object.entries(rest).map(([name, value]) => `${name}="${value}"`);
  if (!metric && pairs.length === 0) {
    return expression;
  }
  return pairs.length ? `${metric}{${pairs.join(', ')}}` : metric;
}
