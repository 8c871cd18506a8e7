import { ThemeContext } from '@grafana/data';
import { Alert, GlobalStyles, PortalContainer } from '@grafana/ui';
import { useEffect, useMemo, useState } from 'react';
import { IndexPage } from './IndexPage';
import { LoadedDashboardPage } from './LoadedDashboardPage';
import { ModeContext } from './ModeContext';
import { PageErrorBoundary } from './PageErrorBoundary';
import { PageHeader } from './PageHeader';
import { RunbookPage } from './RunbookPage';
import { RunbooksPage } from './RunbooksPage';
import { type Route, routeOf } from './routes';
import { initialMode, type Mode, rememberMode, themeFor } from './theme';

export function App() {
  const [mode, setMode] = useState<Mode>(initialMode);
  const theme = useMemo(() => themeFor(mode), [mode]);
  const modeContext = useMemo(
    () => ({
      mode,
      setMode: (next: Mode) => {
        rememberMode(next);
        setMode(next);
      },
    }),
    [mode],
  );
  useEffect(() => {
    document.body.style.background = theme.colors.background.canvas;
  }, [theme]);
  return (
    <ThemeContext.Provider value={theme}>
      <ModeContext.Provider value={modeContext}>
        <GlobalStyles />
        <PageErrorBoundary>
          <Page route={routeOf(location.pathname)} />
        </PageErrorBoundary>
        <PortalContainer />
      </ModeContext.Provider>
    </ThemeContext.Provider>
  );
}

function Page({ route }: { route: Route }) {
  switch (route.page) {
    case 'index':
      return <IndexPage />;
    case 'dashboard':
      return <LoadedDashboardPage uid={route.uid} />;
    case 'runbooks':
      return <RunbooksPage />;
    case 'runbook':
      return <RunbookPage alert={route.alert} />;
    case 'unknown':
      return (
        <>
          <PageHeader title="Not found" />
          <Alert title={`There is no page ${route.path}`} severity="error" />
        </>
      );
  }
}
