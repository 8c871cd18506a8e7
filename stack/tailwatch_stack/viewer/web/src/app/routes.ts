export type Route =
  | { page: 'index' }
  | { page: 'dashboard'; uid: string }
  | { page: 'runbooks' }
  | { page: 'runbook'; alert: string }
  | { page: 'unknown'; path: string };

/** Which page a path is; paths are the same as under Grafana. */
export function routeOf(path: string): Route {
  try {
    return knownRoute(path) ?? { page: 'unknown', path };
  } catch {
    return { page: 'unknown', path }; // its percent signs encode no text
  }
}

function knownRoute(path: string): Route | undefined {
  const dashboard = /^\/d\/([^/]+)(?:\/[^/]*)?\/?$/.exec(path);
  if (dashboard) {
    return { page: 'dashboard', uid: decodeURIComponent(dashboard[1]!) };
  }
  const runbook = /^\/runbooks\/([^/]+)\/?$/.exec(path);
  if (runbook) {
    return { page: 'runbook', alert: decodeURIComponent(runbook[1]!) };
  }
  if (/^\/runbooks\/?$/.test(path)) {
    return { page: 'runbooks' };
  }
  return path === '/' ? { page: 'index' } : undefined;
}
