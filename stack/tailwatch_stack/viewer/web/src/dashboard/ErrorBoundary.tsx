import { Component, type ReactNode } from 'react';
import { messageOf } from './usePanelData';

interface Props {
  /** A new value, such as new data, tries to draw again. */
  resetOn: unknown;
  onError: (message: string | undefined) => void;
  children: ReactNode;
}

/** Keep a panel that cannot be drawn from taking the dashboard with it. */
export class ErrorBoundary extends Component<Props, { failedOn?: unknown; failed: boolean }> {
  override state = { failed: false, failedOn: undefined };

  static getDerivedStateFromError() {
    return { failed: true };
  }

  override componentDidCatch(error: unknown): void {
    this.setState({ failedOn: this.props.resetOn });
    this.props.onError(messageOf(error));
  }

  override componentDidUpdate(): void {
    const { failed, failedOn } = this.state;
    if (failed && failedOn !== undefined && failedOn !== this.props.resetOn) {
      this.setState({ failed: false, failedOn: undefined });
      this.props.onError(undefined);
    }
  }

  override render(): ReactNode {
    return this.state.failed ? null : this.props.children;
  }
}
