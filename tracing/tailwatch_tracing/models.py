"""Which models are loaded, in which version, and how long loading took."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from types import TracebackType

from tailwatch_tracing import clock
from tailwatch_tracing.cells import OVERFLOW
from tailwatch_tracing.families import MODEL_INFO, MODEL_LOAD, NANOSECONDS, SERIES_OVERFLOW
from tailwatch_tracing.page import Level
from tailwatch_tracing.service import Service, service_named
from tailwatch_tracing.units import current_service

_MODEL_LIMIT = 64


class Models:
    """The models that one service has loaded now."""

    def __init__(self, service: Service) -> None:
        self._loaded: dict[LoadedModel, None] = {}
        self._overflow = service.store.counter(SERIES_OVERFLOW, MODEL_INFO.name)
        service.report(self._levels)

    def add(self, model: LoadedModel) -> None:
        """Have one more."""
        self._loaded[model] = None
        if len({(each.name, each.version) for each in list(self._loaded)}) > _MODEL_LIMIT:
            self._overflow.counts[0] += 1

    def remove(self, model: LoadedModel) -> None:
        """Have it no longer."""
        self._loaded.pop(model, None)

    def _levels(self) -> Iterator[Level]:
        seconds: dict[tuple[str, str], float | None] = {}
        for model in list(self._loaded):
            values = (model.name, str(model.version))
            if values not in seconds and len(seconds) >= _MODEL_LIMIT:
                values = (OVERFLOW, OVERFLOW)
            seconds[values] = model.load_seconds
        for values, load_seconds in seconds.items():
            yield Level(MODEL_INFO, values, 1)
            if load_seconds is not None:
                yield Level(MODEL_LOAD, values, load_seconds)


class LoadedModel:
    """A model in memory, on the page until `unload`. Of two of one version the later is seen.

    `load_seconds` is None where nobody has measured it.
    """

    def __init__(
        self, models: Models, name: str, version: str, load_seconds: float | None = None
    ) -> None:
        self.name = name
        self.version = version
        self.load_seconds = load_seconds
        self._models = models

    def unload(self) -> None:
        """Take the model off the page, when the service has let go of it. Again is harmless."""
        self._models.remove(self)


class model_loading:
    """Time the loading of a model, and have it on the page once it is loaded.

    Use it as a context manager, sync or async:

        with model_loading("encoder", version="7") as encoder_7:
            model = load("encoder-7.onnx")
        ...
        encoder_7.unload()

    In a hot swap both versions are loaded for a while, and both are on the page. A block that
    raises has loaded nothing.

    Args:
        name: The label `model`.
        version: The label `version`. Where it is only known from what was loaded, set the
            attribute `version` of what the block is given. At most 64 models and versions at a
            time are kept apart in a service.
        service: The service that has loaded it; by default that of the request, or the process's
            first one.

    Raises:
        ValueError: an empty name.
    """

    __slots__ = ("_model", "_models", "_start_ns")

    def __init__(self, name: str, *, version: str, service: str | None = None) -> None:
        self._models, self._model = _new_model(name, version, None, service)
        self._start_ns = 0

    def __enter__(self) -> LoadedModel:
        """Begin to load."""
        self._start_ns = clock.now_ns()
        return self._model

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Have the model loaded, or not."""
        if error is None:
            self._model.load_seconds = (clock.now_ns() - self._start_ns) / NANOSECONDS
            self._models.add(self._model)

    async def __aenter__(self) -> LoadedModel:
        """Begin to load."""
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Have the model loaded, or not."""
        self.__exit__(kind, error, traceback)


def model_loaded(
    name: str, *, version: str, load_seconds: float | None = None, service: str | None = None
) -> LoadedModel:
    """Have a model on the page that is loaded already, and return what unloads it.

    Args:
        name: The label `model`.
        version: The label `version`.
        load_seconds: How long that took, if it was measured.
        service: As of `model_loading`.

    Raises:
        ValueError: an empty name, seconds below 0.
    """
    models, model = _new_model(name, version, load_seconds, service)
    models.add(model)
    return model


def _new_model(
    name: str, version: str, load_seconds: float | None, service: str | None
) -> tuple[Models, LoadedModel]:
    if not isinstance(name, str) or not name:
        raise ValueError(f"model {name!r}: expected a name that is not empty")
    if load_seconds is not None and not (
        isinstance(load_seconds, numbers.Real) and 0 <= load_seconds < math.inf
    ):
        raise ValueError(f"model {name}: load_seconds={load_seconds!r}: expected 0 or more")
    if load_seconds is not None:
        load_seconds = float(load_seconds)
    owner = current_service() if service is None else service_named(service)
    models = owner.part(Models)
    return models, LoadedModel(models, name, str(version), load_seconds)
