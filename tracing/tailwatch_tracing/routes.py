"""Route templates: `/items/{id}` for a request that a router has answered.

Routers leave the route, the endpoint and, below mounts, the concrete prefix in the scope. From the
first request of a route its template is found by matching anew through the routes, which knows the
prefixes of included routers and the parameters of mounts; the answer is kept by the route object.
Only names that Starlette documents are used, and FastAPI's public `iter_route_contexts`, so that an
unknown kind of route ends in a shorter template or `__unmatched__`, never in an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, MutableMapping
from typing import Any

from tailwatch_tracing.service import RouteCells, Service

Scope = MutableMapping[str, Any]

UNMATCHED = "__unmatched__"

_KEPT = 4096  # routes and concrete places below mounts, together
_LONGEST_KEPT = 256  # characters: a client chooses its paths, and may send 64 KiB of them each time
_DEEPEST = 32  # mounts and wrappers that are looked through


class RouteTable:
    """Scope of a finished request -> cells of its route template, through a bounded cache.

    `by_route` has those of a route that is not below a mount, by its id; FastAPI's by two ids.
    `app` is the wrapped application, for scopes that name none.
    """

    __slots__ = ("_app", "_by_place", "_kept", "by_route", "service", "unmatched")

    def __init__(self, service: Service, app: object) -> None:
        self.service = service
        self._app = app
        self.unmatched = service.route_cells(UNMATCHED)
        self.by_route: dict[Any, RouteCells] = {}
        self._by_place: dict[Any, RouteCells] = {}
        self._kept: list[object] = []  # an id is a key as long as its object lives

    def find(self, scope: Scope) -> RouteCells:
        """Return the cells; the scope is read after the application has handled the request."""
        if "route" not in scope or "app_root_path" in scope:
            return self._find_place(scope)
        key: object = id(scope["route"])
        if "fastapi" in scope:
            key = (key, id(_included(scope)))
        cells = self.by_route.get(key)
        if cells is None:
            cells = self.service.route_cells(find_template(scope, self._app))
            self._keep(self.by_route, key, cells, (scope["route"], _included(scope)))
        return cells

    def _find_place(self, scope: Scope) -> RouteCells:
        """Return the cells of a request below a mount, or one whose route the scope lacks."""
        route, endpoint = scope.get("route"), scope.get("endpoint")
        if endpoint is None and "router" in scope:
            return self.unmatched  # a router has looked and found nothing
        included = _included(scope)
        # Below a mount the routes and the concrete prefix decide; without a route the path does.
        where = (scope.get("root_path") or "") if route is not None else scope["path"]
        method = scope["method"]
        key = (id(route), id(endpoint), id(included), where, method)
        cells = self._by_place.get(key)
        if cells is None:
            cells = self.service.route_cells(find_template(scope, self._app))
            if len(where) + len(method) <= _LONGEST_KEPT:
                self._keep(self._by_place, key, cells, (route, endpoint, included))
        return cells

    def _keep(
        self, cache: dict[Any, RouteCells], key: object, cells: RouteCells, alive: object
    ) -> None:
        if len(self._kept) >= _KEPT:
            self.by_route.clear()
            self._by_place.clear()
            self._kept.clear()
        cache[key] = cells
        self._kept.append(alive)


def find_template(scope: Scope, app: object) -> str:
    """Return the template of a handled request by matching through the routes.

    They are those of the router or the application that the scope names. It names neither where a
    middleware has handed a copy of it on: then they are those within `app`. Falls back to the route
    that the scope names, and to `__unmatched__` without one.
    """
    routes = _routes_inside(scope.get("router") or scope.get("app") or app)
    outermost = {**scope, "root_path": scope.get("app_root_path", scope.get("root_path", ""))}
    for leftover in ("app_root_path", "path_params", "fastapi", "route", "endpoint"):
        outermost.pop(leftover, None)
    if routes:
        found = _match(routes, outermost, scope, _DEEPEST)
        if found is not None:
            return found
    return _own_template(scope.get("route")) or UNMATCHED


def _match(routes: Iterable[Any], scope: dict[str, Any], handled: Scope, depth: int) -> str | None:
    partial: str | None = None
    for route in _flat(routes):
        if not hasattr(route, "matches"):  # another framework's, as Litestar's
            return None
        match, child = route.matches(scope)
        if match.name == "NONE":
            continue
        # A router takes a full match at once, else the first partial one (a wrong method).
        if match.name == "PARTIAL" and partial is not None:
            continue
        template = _template_below(route, {**scope, **child}, handled, depth)
        if match.name == "FULL":
            return template
        partial = template
    return partial


def _template_below(route: Any, scope: dict[str, Any], handled: Scope, depth: int) -> str:
    if _is_leaf(route):
        return _own_template(route) or UNMATCHED
    prefix = (getattr(route, "path_format", None) or "").removesuffix("/{path}")
    inner = _routes_inside(route.app)
    if inner is None or depth == 0:
        final = handled.get("route")
        if final is None or not _is_leaf(final):
            return _own_template(route) or UNMATCHED
        return prefix + (_own_template(final) or "")
    below = _match(inner, scope, handled, depth - 1)
    return UNMATCHED if below in (None, UNMATCHED) else prefix + str(below)


def _routes_inside(app: Any) -> Iterable[Any] | None:
    """Return the routes of a mounted application, looking through middlewares' `.app`."""
    for _ in range(_DEEPEST):
        routes: Iterable[Any] | None = getattr(app, "routes", None)
        if routes:
            return routes
        app = getattr(app, "app", None)
        if app is None:
            return None
    return None


def _flat(routes: Iterable[Any]) -> Iterable[Any]:
    """Return the routes with those of FastAPI's included routers in their place."""
    fastapi = sys.modules.get("fastapi.routing")
    iter_route_contexts = getattr(fastapi, "iter_route_contexts", None)
    return routes if iter_route_contexts is None else iter_route_contexts(routes)


def _is_leaf(route: Any) -> bool:
    return getattr(route, "endpoint", None) is not None or not hasattr(route, "app")


def _own_template(route: Any) -> str | None:
    template = getattr(route, "path_format", None) or getattr(route, "path", None)
    return template if isinstance(template, str) else None


def _included(scope: Scope) -> object:
    """Return what tells the inclusions of one route apart: FastAPI's context, as an opaque key."""
    return scope["fastapi"].get("effective_route_context") if "fastapi" in scope else None
