import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { App } from './app/App';
import { loadFonts } from './app/fonts';
import { setUpGrafana } from './grafana/setup';

setUpGrafana();
await loadFonts();
createRoot(document.getElementById('root')!).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
