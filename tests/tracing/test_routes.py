"""Route templates: what a router matched, never a concrete path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router
from starlette.staticfiles import StaticFiles

from tailwatch_tracing import StageTimingMiddleware, routes
from tests.tracing.asgi import App, nonzero, request, requests, values


async def answer(incoming: Request) -> Response:
    return PlainTextResponse("ok")


def things() -> Starlette:
    return Starlette(routes=[Route("/things/{t:int}", answer), Route("/", answer)])


def fastapi_things() -> FastAPI:
    app = FastAPI()

    @app.get("/things/{t}")
    def get_thing(t: int) -> int:
        return t

    return app


def users() -> APIRouter:
    router = APIRouter(prefix="/v2")

    @router.get("/users/{uid}")
    def get_user(uid: int) -> int:
        if uid == 404:
            raise HTTPException(404)
        return uid

    return router


class Opaque:
    """A middleware that does not name what it wraps."""

    def __init__(self, inside: App) -> None:
        self._inside = inside

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._inside(scope, receive, send)


class CopiesScope(Opaque):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._inside(dict(scope), receive, send)


def fastapi_app() -> FastAPI:
    app = FastAPI()
    app.include_router(users(), prefix="/api")
    twice = users()
    app.include_router(twice, prefix="/first")
    app.include_router(twice, prefix="/second")
    nested = APIRouter(prefix="/outer")
    deeper = APIRouter(prefix="/inner")
    deeper.include_router(users())
    nested.include_router(deeper, prefix="/deep")
    nested.mount("/mounted", things())
    app.include_router(nested, prefix="/n")
    app.mount("/sub", fastapi_things())
    app.mount("/t/{tenant}", fastapi_things())
    app.mount("/s/{tenant}", things())
    app.mount("/opaque", Opaque(things()))
    plain = APIRouter()
    plain.add_route("/plain/{p}", answer)
    app.include_router(plain, prefix="/included")

    @app.get("/items/{item_id:int}")
    @app.get("/same/{item_id}")
    async def item(item_id: int) -> int:
        return item_id

    return app


FASTAPI_CASES = [
    ("/items/42", "/items/{item_id}"),
    ("/same/42", "/same/{item_id}"),
    ("/api/v2/users/7", "/api/v2/users/{uid}"),
    ("/api/v2/users/404", "/api/v2/users/{uid}"),
    ("/first/v2/users/7", "/first/v2/users/{uid}"),
    ("/second/v2/users/7", "/second/v2/users/{uid}"),
    ("/n/outer/deep/inner/v2/users/7", "/n/outer/deep/inner/v2/users/{uid}"),
    ("/n/mounted/things/5", "/n/mounted/things/{t}"),
    ("/sub/things/9", "/sub/things/{t}"),
    ("/t/acme/things/9", "/t/{tenant}/things/{t}"),
    ("/s/acme/things/9", "/s/{tenant}/things/{t}"),
    ("/s/acme/", "/s/{tenant}/"),
    ("/opaque/things/9", "/opaque/things/{t}"),
    ("/included/plain/9", "/included/plain/{p}"),
    ("/docs", "/docs"),
    ("/openapi.json", "/openapi.json"),
    ("/nope/1", "__unmatched__"),
    ("/sub/nope/1", "__unmatched__"),
    ("/s/acme/nope", "__unmatched__"),
    ("/n/outer/nope", "__unmatched__"),
]

STARLETTE_CASES = [
    ("/items/42", "/items/{item_id}"),
    ("/files/a/b/c.txt", "/files/{path}"),
    ("/sub/things/9", "/sub/things/{t}"),
    ("/again/things/9", "/again/things/{t}"),
    ("/t/acme/things/9", "/t/{tenant}/things/{t}"),
    ("/t/acme/deep/er/things/9", "/t/{tenant}/deep/{d}/things/{t}"),
    ("/opaque/things/9", "/opaque/things/{t}"),
    ("/wrapped/things/9", "/wrapped/things/{t}"),
    ("/fastapi/things/9", "/fastapi/things/{t}"),
    ("/static/missing.css", "/static/{path}"),
    ("/nope", "__unmatched__"),
    ("/sub/nope", "__unmatched__"),
]


def starlette_app(tmp_path: Any) -> Starlette:
    shared = things()
    return Starlette(
        routes=[
            Route("/items/{item_id:int}", answer),
            Route("/files/{path:path}", answer),
            Mount("/sub", shared),
            Mount("/again", shared),
            Mount(
                "/t/{tenant}",
                routes=[
                    Route("/things/{t}", answer),
                    Mount("/deep/{d}", Router([Route("/things/{t}", answer)])),
                ],
            ),
            Mount("/opaque", Opaque(shared)),
            Mount("/wrapped", CORSMiddleware(shared)),
            Mount("/fastapi", fastapi_things()),
            Mount("/static", StaticFiles(directory=tmp_path)),
        ]
    )


async def templates(app: Any, paths: list[str], method: str = "GET", **more: Any) -> list[str]:
    """The template each path is counted under, asked twice: found, and from the cache."""
    app.add_middleware(StageTimingMiddleware, service="s")
    seen: list[str] = []
    counts: dict[str, float] = {}
    for _ in range(2):
        seen.clear()
        for path in paths:
            await request(app, path, method, **more)
            for (route,), count in values("inference_requests_total", "route").items():
                if count != counts.get(route, 0):
                    counts[route] = count
                    seen.append(route)
    assert nonzero("tailwatch_errors_total", ["where"]) == {}
    return seen


def test_fastapi_templates() -> None:
    """Included routers: trallnag/prometheus-fastapi-instrumentator#370, #379, #388,
    claws/aioprometheus#107, stephenhillier/starlette_exporter#110; mounts:
    perdy/starlette-prometheus#40, elastic/apm-agent-python#1036,
    open-telemetry/opentelemetry-python-contrib#2891.
    """
    paths = [path for path, _ in FASTAPI_CASES]
    assert asyncio.run(templates(fastapi_app(), paths)) == [t for _, t in FASTAPI_CASES]


def test_starlette_templates(tmp_path: Any) -> None:
    paths = [path for path, _ in STARLETTE_CASES]
    assert asyncio.run(templates(starlette_app(tmp_path), paths)) == [
        template for _, template in STARLETTE_CASES
    ]


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "HEAD", "DELETE"])
def test_a_wrong_method_keeps_the_template(method: str) -> None:
    cases = [case for case in FASTAPI_CASES if case[1] != "__unmatched__"][:12]
    paths = [path for path, _ in cases]
    assert asyncio.run(templates(fastapi_app(), paths, method)) == [t for _, t in cases]


def test_of_two_wrong_methods_the_first_route_answers() -> None:
    app = Starlette(
        routes=[
            Route("/{x}", answer, methods=["POST"]),
            Route("/items", answer, methods=["PUT"]),
        ]
    )
    assert asyncio.run(templates(app, ["/items"])) == ["/{x}"]


def test_behind_a_proxy_the_prefix_is_not_part_of_the_template() -> None:
    paths = ["/proxy" + path for path, _ in FASTAPI_CASES]
    found = asyncio.run(templates(fastapi_app(), paths, root_path="/proxy"))
    assert found == [template for _, template in FASTAPI_CASES]


def test_a_middleware_inside_that_copies_the_scope_hides_no_template() -> None:
    app = fastapi_app()
    app.add_middleware(CopiesScope)
    paths = [path for path, _ in FASTAPI_CASES if path != "/opaque/things/9"]
    expected = [template for path, template in FASTAPI_CASES if path != "/opaque/things/9"]
    assert asyncio.run(templates(app, paths)) == expected


def test_an_outermost_wrapper_sees_through_a_middleware_that_copies_the_scope() -> None:
    class Copies:
        def __init__(self, app: App) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(dict(scope), receive, send)

    app = StageTimingMiddleware(Copies(fastapi_app()), service="s")

    async def main() -> None:
        for path, _ in FASTAPI_CASES:
            if path != "/opaque/things/9":
                await request(app, path)

    asyncio.run(main())
    expected = {template for path, template in FASTAPI_CASES if path != "/opaque/things/9"}
    assert {route for (route,) in nonzero("inference_requests_total", ["route"])} == expected


def test_a_preflight_answered_before_the_router_keeps_the_template() -> None:
    app = fastapi_app()
    app.add_middleware(CORSMiddleware, allow_origins=["*"])
    headers = [(b"origin", b"http://a"), (b"access-control-request-method", b"GET")]
    found = asyncio.run(
        templates(app, ["/items/42", "/api/v2/users/7"], "OPTIONS", headers=headers)
    )
    assert found == ["/items/{item_id}", "/api/v2/users/{uid}"]


def test_the_outermost_wrapper_sees_the_same_templates() -> None:
    async def main() -> None:
        app = StageTimingMiddleware(fastapi_app(), service="s")
        for path, _ in FASTAPI_CASES:
            await request(app, path)

    asyncio.run(main())
    assert {route for route, *_ in requests()} == {template for _, template in FASTAPI_CASES}


def test_a_sub_application_instrumented_by_itself_has_the_whole_template() -> None:
    sub = things()
    sub.add_middleware(StageTimingMiddleware, service="s")
    asyncio.run(request(Starlette(routes=[Mount("/t/{tenant}", sub)]), "/t/acme/things/5"))
    assert nonzero("inference_requests_total", ["route"]) == {("/t/{tenant}/things/{t}",): 1}


def test_host_routes_are_looked_through() -> None:
    app = Starlette(routes=[Host("{sub}.example.org", things())])
    found = asyncio.run(templates(app, ["/things/5"], headers=[(b"host", b"api.example.org")]))
    assert found == ["/things/{t}"]


def test_an_application_without_a_router_is_unmatched() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("ok")(scope, receive, send)

    asyncio.run(request(StageTimingMiddleware(app, service="s"), "/a/b"))
    assert nonzero("inference_requests_total", ["route"]) == {("__unmatched__",): 1}


def test_routes_of_another_framework_are_unmatched_and_no_error() -> None:
    """As Litestar's, which is in the scope as `app` and has `routes`, too."""

    class Framework:
        routes = (object(),)

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            scope["app"] = self
            await PlainTextResponse("ok")(scope, receive, send)

    asyncio.run(request(StageTimingMiddleware(Framework(), service="s"), "/a/b"))
    assert nonzero("inference_requests_total", ["route"]) == {("__unmatched__",): 1}
    assert nonzero("tailwatch_errors_total", ["where"]) == {}


def test_scans_make_one_series() -> None:
    """stephenhillier/starlette_exporter#14, #78, sgl-project/sglang#31193."""

    async def main() -> None:
        app = fastapi_app()
        app.add_middleware(StageTimingMiddleware, service="s")
        for i in range(300):
            await request(app, f"/nope/{i}", ("GET", "PROPFIND", f"X{i}")[i % 3])

    asyncio.run(main())
    assert requests() == {
        ("__unmatched__", "GET", "404", "client_error"): 100,
        ("__unmatched__", "_OTHER", "404", "client_error"): 200,
    }


def test_tenants_below_a_mount_make_one_series_and_a_bounded_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "_KEPT", 10)

    async def main() -> int:
        app = StageTimingMiddleware(fastapi_app(), service="s")
        for i in range(100):
            await request(app, f"/t/tenant-{i}/things/{i}")
        table = app._routes
        return len(table._by_place) + len(table.by_route)

    assert asyncio.run(main()) <= 10
    assert nonzero("inference_requests_total", ["route"]) == {("/t/{tenant}/things/{t}",): 100}


def test_paths_that_a_client_makes_long_are_not_kept() -> None:
    """Answered before any router looks, as by an authentication: 4096 of them would be 256 MiB."""

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("who are you", 401)(scope, receive, send)

    async def main() -> None:
        refusing = StageTimingMiddleware(refuse, service="s")
        mounted = StageTimingMiddleware(fastapi_app(), service="s")
        for path, method in (("/x", "GET"), ("/" + "x" * 60_000, "GET"), ("/x", "X" * 60_000)):
            await request(refusing, path, method)
        await request(mounted, f"/t/{'x' * 60_000}/things/1")
        assert len(refusing._routes._by_place) == 1
        assert len(mounted._routes._by_place) == 0

    asyncio.run(main())
    assert nonzero("inference_requests_total", ["route"]) == {
        ("__unmatched__",): 3,
        ("/t/{tenant}/things/{t}",): 1,
    }


def test_a_route_object_that_is_gone_does_not_lend_its_template() -> None:
    """Objects made anew at the address of old ones: the cache must hold what it knows by id."""

    class Leaf:
        def __init__(self, path_format: str) -> None:
            self.path_format = path_format

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["route"] = Leaf(scope["path"] + "/{x}")
        await PlainTextResponse("ok")(scope, receive, send)

    async def main() -> None:
        middleware = StageTimingMiddleware(app, service="s")
        for i in range(50):
            await request(middleware, f"/r{i}")

    asyncio.run(main())
    expected = {(f"/r{i}/{{x}}",): 1 for i in range(50)}
    assert nonzero("inference_requests_total", ["route"]) == expected


def test_the_series_cap_is_hard() -> None:
    async def main() -> None:
        app = Starlette(routes=[Route(f"/r{i}", answer) for i in range(40)])
        app.add_middleware(StageTimingMiddleware, service="s", series_limit=10)
        for _ in range(2):
            for i in range(40):
                await request(app, f"/r{i}")

    asyncio.run(main())
    counted = nonzero("inference_requests_total", ["route"])
    assert sum(counted.values()) == 80
    assert len(counted) <= 11
    assert counted[("__other__",)] == 80 - 2 * (len(counted) - 1)
    assert len(values("inference_request_duration_seconds_count", "route")) <= 11
    overflow = nonzero("tailwatch_series_overflow_total", ["metric"])
    assert overflow[("inference_request_duration_seconds",)] > 0


def test_the_series_cap_holds_for_statuses_too() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response(status_code=int(scope["path"][1:]))(scope, receive, send)

    async def main() -> None:
        middleware = StageTimingMiddleware(app, service="s", series_limit=5)
        for status in range(200, 240):
            await request(middleware, f"/{status}")

    asyncio.run(main())
    by_route = values("inference_requests_total", "route")
    assert sum(by_route.values()) == 40
    assert len([key for key in requests() if key[0] == "__unmatched__"]) == 5
    assert nonzero("tailwatch_series_overflow_total", ["metric"]) == {
        ("inference_requests_total",): 35
    }
