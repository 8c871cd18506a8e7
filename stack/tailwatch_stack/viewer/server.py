"""The viewer's web application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tailwatch_stack.errors import TailwatchError
from tailwatch_stack.viewer.address import ListenAddress
from tailwatch_stack.viewer.documents import Dashboards, Runbooks
from tailwatch_stack.viewer.prometheus import PrometheusProxy, PrometheusServer
from tailwatch_stack.viewer.security import LoopbackHostOnly, SecurityHeaders

DIST = Path(__file__).resolve().parent / "dist"


@dataclass(frozen=True)
class ViewerSettings:
    """What the viewer shows, from where, and to whom.

    Args:
        listen: decides whether requests under another host name are refused.
        scrape_interval_seconds: of the targets; sets the smallest step and $__rate_interval.
    """

    listen: ListenAddress
    prometheus: PrometheusServer
    dashboards: Dashboards
    runbooks: Runbooks
    scrape_interval_seconds: float
    dist: Path = DIST


def create_app(settings: ViewerSettings) -> Starlette:
    """Build the application.

    Raises:
        TailwatchError: the bundle is not built, or the dashboards cannot be read.
    """
    index = settings.dist / "index.html"
    if not index.is_file():
        raise TailwatchError(f"no viewer bundle in {settings.dist}: run `make viewer` to build it")
    settings.dashboards.all()
    client = settings.prometheus.client()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    api = _Api(settings)
    page = _Page(settings, index)
    middleware = [Middleware(SecurityHeaders)]
    if settings.listen.is_loopback:
        middleware.append(Middleware(LoopbackHostOnly, listen_host=settings.listen.host))
    return Starlette(
        routes=[
            Route("/-/healthy", _healthy),
            Route("/api/settings", api.settings),
            Route("/api/dashboards", api.dashboards),
            Route("/api/dashboards/{uid}", api.dashboard),
            Route("/api/runbooks", api.runbooks),
            Route("/api/runbooks/{alert}", api.runbook),
            Route(
                "/prom/api/v1/{path:path}",
                PrometheusProxy(settings.prometheus, client).answer,
                methods=["GET", "POST", "PUT", "DELETE", "PATCH"],
            ),
            Route("/", page.always),
            Route("/d/{uid}", page.dashboard),
            Route("/d/{uid}/{slug}", page.dashboard),  # Grafana's own links end so
            Route("/runbooks", page.always),
            Route("/runbooks/{alert}", page.runbook),
            Mount("/", _Bundle(directory=settings.dist)),
        ],
        middleware=middleware,
        exception_handlers={HTTPException: page.http_error, TailwatchError: page.failure},
        lifespan=lifespan,
    )


class _Api:
    """What the page asks of this server."""

    def __init__(self, settings: ViewerSettings) -> None:
        self._settings = settings

    async def settings(self, _request: Request) -> Response:
        return JSONResponse({"scrapeIntervalSeconds": self._settings.scrape_interval_seconds})

    async def dashboards(self, _request: Request) -> Response:
        return JSONResponse(
            [
                {
                    "uid": one["uid"],
                    "title": one["title"],
                    "description": one.get("description") or "",
                    "tags": one.get("tags") or [],
                }
                for one in self._settings.dashboards.all()
            ]
        )

    async def dashboard(self, request: Request) -> Response:
        uid = request.path_params["uid"]
        dashboard = self._settings.dashboards.get(uid)
        if dashboard is None:
            raise HTTPException(404, f"There is no dashboard {uid}")
        return JSONResponse(dashboard)

    async def runbooks(self, _request: Request) -> Response:
        return JSONResponse(self._settings.runbooks.names())

    async def runbook(self, request: Request) -> Response:
        alert = request.path_params["alert"]
        markdown = self._settings.runbooks.get(alert)
        if markdown is None:
            raise HTTPException(404, f"There is no runbook for {alert}")
        return JSONResponse({"alert": alert, "markdown": markdown})


class _Page:
    """The one HTML page; its script shows what the path asks for."""

    def __init__(self, settings: ViewerSettings, index: Path) -> None:
        self._settings = settings
        self._index = index

    async def always(self, _request: Request) -> Response:
        return self._answer(200)

    async def dashboard(self, request: Request) -> Response:
        known = self._settings.dashboards.get(request.path_params["uid"]) is not None
        return self._answer(200 if known else 404)

    async def runbook(self, request: Request) -> Response:
        known = self._settings.runbooks.get(request.path_params["alert"]) is not None
        return self._answer(200 if known else 404)

    async def http_error(self, request: Request, error: Exception) -> Response:
        """Answer a person with the page, which says what is missing, and a program with JSON."""
        assert isinstance(error, HTTPException)
        if error.status_code == 404 and _is_for_a_person(request):
            return self._answer(404)
        return JSONResponse(
            {"detail": error.detail}, status_code=error.status_code, headers=error.headers
        )

    async def failure(self, request: Request, error: Exception) -> Response:
        """Answer a person with the page, which asks again and shows the words, as above."""
        if _is_for_a_person(request):
            return self._answer(500)
        return JSONResponse({"detail": str(error)}, status_code=500)

    def _answer(self, status: int) -> Response:
        return FileResponse(self._index, status_code=status, headers={"Cache-Control": "no-cache"})


class _Bundle(StaticFiles):
    """The built files; those with a hash in their name may be kept for good."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        forever = path.startswith("assets/") and response.status_code == 200
        response.headers["Cache-Control"] = (
            "public, max-age=31536000, immutable" if forever else "public, max-age=3600"
        )
        return response


async def _healthy(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


def _is_for_a_person(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")
