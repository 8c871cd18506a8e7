import { Alert } from '@grafana/ui';
import { Component, type ReactNode } from 'react';
import { messageOf } from '../dashboard/usePanelData';
import { PageHeader } from './PageHeader';

/** Say what went wrong where a page cannot be drawn at all, such as for an address it cannot read. */
export class PageErrorBoundary extends Component<{ children: ReactNode }, { message?: string }> {
  override state: { message?: string } = {};

  static getDerivedStateFromError(error: unknown) {
    return { message: messageOf(error) };
  }

  override render(): ReactNode {
    const { message } = this.state;
    return message === undefined ? (
      this.props.children
    ) : (
      <>
        <PageHeader title="This page cannot be shown" />
        <Alert title={message} severity="error" />
      </>
    );
  }
}
