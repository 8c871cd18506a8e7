import { Dropdown, IconButton, Menu, ToolbarButton, useTheme2 } from '@grafana/ui';
import { type ReactNode, useContext, useEffect } from 'react';
import type { DashboardSummary } from '../model/links';
import { ModeContext } from './ModeContext';

interface PageHeaderProps {
  title: string;
  /** The page above this one, if that is not the index. */
  parent?: { title: string; url: string };
  /** Where a person can go from here. */
  dashboards?: DashboardSummary[];
  /** The uid of the dashboard shown. */
  current?: string;
  children?: ReactNode;
}

export function PageHeader({ title, parent, dashboards = [], current, children }: PageHeaderProps) {
  const theme = useTheme2();
  const { mode, setMode } = useContext(ModeContext);
  useEffect(() => {
    document.title = `${title} – tailwatch`;
  }, [title]);
  const other = mode === 'dark' ? 'light' : 'dark';
  const menu = (
    <Menu>
      {dashboards.map(({ uid, title }) => (
        <Menu.Item key={uid} label={title} url={`/d/${uid}`} active={uid === current} />
      ))}
    </Menu>
  );
  return (
    <header
      style={{
        position: 'sticky',
        top: 0,
        zIndex: theme.zIndex.navbarFixed,
        display: 'flex',
        flexWrap: 'wrap',
        alignItems: 'center',
        gap: theme.spacing(1),
        padding: theme.spacing(1, 2),
        background: theme.colors.background.primary,
        borderBottom: `1px solid ${theme.colors.border.weak}`,
      }}
    >
      <a href="/" style={{ color: theme.colors.text.secondary }}>
        tailwatch
      </a>
      <span style={{ color: theme.colors.text.secondary }}>/</span>
      {parent && (
        <>
          <a href={parent.url} style={{ color: theme.colors.text.secondary }}>
            {parent.title}
          </a>
          <span style={{ color: theme.colors.text.secondary }}>/</span>
        </>
      )}
      {dashboards.length > 0 ? (
        <Dropdown overlay={menu} placement="bottom-start">
          <ToolbarButton variant="canvas" isOpen={false}>
            <h1 style={{ margin: 0, fontSize: theme.typography.h5.fontSize }}>{title}</h1>
          </ToolbarButton>
        </Dropdown>
      ) : (
        <h1 style={{ margin: 0, fontSize: theme.typography.h5.fontSize }}>{title}</h1>
      )}
      <div style={{ flex: 1 }} />
      {children}
      <IconButton
        name="adjust-circle"
        tooltip={`Switch to the ${other} theme`}
        onClick={() => setMode(other)}
      />
    </header>
  );
}
