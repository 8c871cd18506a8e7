"""The embedded viewer: the shipped dashboards and runbooks in a browser, without Grafana."""
