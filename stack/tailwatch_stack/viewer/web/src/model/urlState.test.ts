import { expect, it } from 'vitest';
import { parseTime, readUrlState, writeUrlState } from './urlState';

it('reads what Grafana writes', () => {
  expect(readUrlState('?from=now-6h&to=now&refresh=10s&var-host=a&var-host=b&kiosk')).toEqual({
    from: 'now-6h',
    to: 'now',
    refresh: '10s',
    choices: { host: ['a', 'b'] },
  });
});

it('writes the state and keeps what is not its own', () => {
  const state = { from: 'now-1h', to: 'now', choices: { host: ['a', 'b c'] } };
  expect(writeUrlState(state, '?theme=light&var-old=1&refresh=5s')).toBe(
    '?theme=light&from=now-1h&to=now&var-host=a&var-host=b+c',
  );
});

it('reads times', () => {
  expect(parseTime('now-5m')).toBe('now-5m');
  expect(parseTime('1767225600000')).toEqual(new Date('2026-01-01T00:00:00Z'));
  expect(parseTime('2026-01-01T00:00:00Z')).toEqual(new Date('2026-01-01T00:00:00Z'));
});

it.each(['yesterdayish', 'now-banana', '99999999999999999999', ''])('"%s" is no time', (text) => {
  expect(() => parseTime(text)).toThrow(`"${text}" is not a time`);
});
