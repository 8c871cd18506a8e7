"""What the demo's processes must agree on."""

SERVICE = "content-type"  # the label `service` of everything the demo service measures
ADDRESS = "127.0.0.1"
SERVICE_PORT = 12164
WEBHOOK_PORT = 12165
SLO_SECONDS = 0.5
CLIENT_TIMEOUT_SECONDS = 5.0
