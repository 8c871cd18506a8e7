# Images of docker-compose.yml: `exporter` (host and GPU metrics) and `demo` (the demo service, its
# traffic and its webhook). No BuildKit feature is used, so that the classic builder does too.
FROM python:3.11.14-slim-bookworm AS source
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_LINK_MODE=copy
COPY requirements/uv.lock requirements/dev.lock requirements/
RUN pip install -r requirements/uv.lock && python -m venv /venv
# The wheel carries dashboards, rules and runbooks: without them it does not build.
COPY pyproject.toml README.md LICENSE ./
COPY exporters exporters
COPY tracing tracing
COPY stack stack
COPY dashboards dashboards
COPY alert_rules alert_rules
COPY runbooks runbooks

FROM source AS exporter-build
RUN uv pip install --python /venv/bin/python --constraints requirements/dev.lock ".[exporters]"

FROM source AS demo-build
RUN uv pip install --python /venv/bin/python --constraints requirements/dev.lock ".[stack,tracing]" \
 && uv pip install --python /venv/bin/python --constraints requirements/dev.lock --group demo

FROM python:3.11.14-slim-bookworm AS exporter
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=exporter-build /venv /venv
USER 65534:65534
EXPOSE 12160
ENTRYPOINT ["tailwatch", "exporter"]
CMD ["--web.listen-address=0.0.0.0:12160"]

FROM python:3.11.14-slim-bookworm AS demo
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
COPY --from=demo-build /venv /venv
WORKDIR /app
COPY demo demo
USER 65534:65534
EXPOSE 12164 12165
ENTRYPOINT ["python"]
CMD ["-m", "demo.service", "--host=0.0.0.0"]
