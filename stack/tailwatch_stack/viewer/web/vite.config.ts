import { cp } from 'node:fs/promises';
import react from '@vitejs/plugin-react';
import type { Plugin } from 'vite';
import { defineConfig } from 'vitest/config';

const OUT = '../dist';
const MODULES = 'node_modules';

/** What @grafana/ui fetches at run time: the file names are the ones that it asks for. */
const ASSETS: Record<string, string> = {
  '@grafana/ui/dist/public/img/icons': 'build/img/icons',
  'inter-ui/web/Inter-Regular.woff2': 'fonts/inter/Inter-Regular.woff2',
  'inter-ui/web/Inter-Medium.woff2': 'fonts/inter/Inter-Medium.woff2',
  'inter-ui/web/Inter-Italic.woff2': 'fonts/inter/Inter-Italic.woff2',
  'inter-ui/web/Inter-MediumItalic.woff2': 'fonts/inter/Inter-MediumItalic.woff2',
  '@fontsource/roboto-mono/files/roboto-mono-latin-400-normal.woff2':
    'fonts/roboto/L0xTDF4xlVMF-BfR8bXMIhJHg45mwgGEFl0_3vrtSM1J-gEPT5Ese6hmHSh0mQ.woff2',
  'inter-ui/LICENSE.txt': 'fonts/inter/LICENSE.txt',
  '@fontsource/roboto-mono/LICENSE': 'fonts/roboto/LICENSE.txt',
};

function copyAssets(): Plugin {
  return {
    name: 'copy-assets',
    apply: 'build',
    async closeBundle() {
      for (const [from, to] of Object.entries(ASSETS)) {
        await cp(`${MODULES}/${from}`, `${OUT}/${to}`, { recursive: true });
      }
    },
  };
}

/** Editors and map formats that @grafana/ui can load and no panel here does. */
function leaveOut(...packages: string[]): Plugin {
  const pattern = new RegExp(`^(${packages.join('|')})(/|$)`);
  return {
    name: 'leave-out',
    enforce: 'pre',
    resolveId: (id) => (pattern.test(id) ? `\0absent:${id}` : undefined),
    load: (id) =>
      id.startsWith('\0absent:')
        ? `throw new Error(${JSON.stringify(`${id.slice(8)} is not part of the viewer`)});
           export default undefined; export const loader = undefined;`
        : undefined,
  };
}

export default defineConfig({
  plugins: [leaveOut('monaco-editor', '@monaco-editor/react', 'ol'), react(), copyAssets()],
  define: { global: 'globalThis' },
  build: {
    outDir: OUT,
    emptyOutDir: true,
    license: { fileName: 'licenses.md' },
    chunkSizeWarningLimit: 10_000,
  },
  test: {
    // Node cannot load the ES modules of @grafana/data: they name exports of CommonJS ones.
    alias: {
      '@grafana/data': `${import.meta.dirname}/${MODULES}/@grafana/data/dist/cjs/index.cjs`,
    },
  },
});
