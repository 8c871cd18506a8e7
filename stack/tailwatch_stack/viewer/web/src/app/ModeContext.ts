import { createContext } from 'react';
import type { Mode } from './theme';

/** Which theme is shown, and how to change it. */
export const ModeContext = createContext<{ mode: Mode; setMode: (mode: Mode) => void }>({
  mode: 'dark',
  setMode: () => undefined,
});
