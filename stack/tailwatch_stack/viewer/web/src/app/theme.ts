import { createTheme, type GrafanaTheme2 } from '@grafana/data';

export type Mode = 'dark' | 'light';

const STORED = 'tailwatch-theme';

/** Dark unless the address (?theme=light) or an earlier choice says otherwise. */
export function initialMode(): Mode {
  const wanted = new URLSearchParams(location.search).get('theme') ?? localStorage.getItem(STORED);
  return wanted === 'light' ? 'light' : 'dark';
}

export function rememberMode(mode: Mode): void {
  localStorage.setItem(STORED, mode);
}

export function themeFor(mode: Mode): GrafanaTheme2 {
  return createTheme({ colors: { mode } });
}
