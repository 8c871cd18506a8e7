import { expect, it } from 'vitest';
import { routeOf } from './routes';

it.each([
  ['/', { page: 'index' }],
  ['/d/tailwatch-gpu', { page: 'dashboard', uid: 'tailwatch-gpu' }],
  ['/d/a%20b/any-slug', { page: 'dashboard', uid: 'a b' }],
  ['/runbooks/', { page: 'runbooks' }],
  ['/runbooks/TargetDown', { page: 'runbook', alert: 'TargetDown' }],
  ['/d/a/b/c', { page: 'unknown', path: '/d/a/b/c' }],
  ['/d/%E0%A4%A', { page: 'unknown', path: '/d/%E0%A4%A' }],
])('%s', (path, route) => {
  expect(routeOf(path)).toEqual(route);
});
