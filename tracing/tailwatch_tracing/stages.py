"""`stage`: one interval of what a request spends its time on.

A stage only notes when it opened and closed, on the wall's clock and on its thread's CPU clock;
the rest is done when its unit of work ends.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

from tailwatch_tracing import clock, cpu, units
from tailwatch_tracing.cpu import CpuClock, find_clock, here
from tailwatch_tracing.cuda import GpuInterval
from tailwatch_tracing.decorators import timed
from tailwatch_tracing.service import default_service
from tailwatch_tracing.units import NO_UNIT, OutermostUnit, Unit, current_unit

Function = TypeVar("Function", bound=Callable[..., Any])


class stage:
    """Time one interval of a named stage, inside a request or outside any.

    Use it as a context manager, sync or async, or as a decorator of a sync or async function:

        with stage("preprocess"):
            ...

        @stage("inference")
        async def predict(batch): ...

    Known names are `ingress`, `preprocess`, `inference` and `postprocess`; others are allowed, up
    to 64 in a service. Stages may nest and overlap: each interval's wall time is observed, and
    every instant counts as exclusive time of the one opened last. A stage that is open when its
    request ends is cut there. Outside a request the outermost stage is the unit of work, and its
    service is the first one of the process.

    Args:
        name: The label `stage`.
        cuda: Observe the time that the GPU takes for the work launched on the current stream, in
            place of the host's time for launching it. Exclusive seconds stay the host's. Without
            torch, or before CUDA has begun, nothing changes.
    """

    __slots__ = (
        "_own_unit",
        "cpu_clock",
        "cpu_ns",
        "cpu_start_ns",
        "end_ns",
        "frame",
        "gpu",
        "name",
        "outer",
        "start_ns",
    )

    _own_unit: OutermostUnit  # of an outermost one
    # While it is open, of cpu.py:
    cpu_clock: CpuClock | None
    cpu_start_ns: int
    outer: stage | None
    frame: FrameType | None

    def __init__(self, name: str, *, cuda: bool = False) -> None:
        self.name = name
        self.gpu = GpuInterval() if cuda else None
        self.start_ns = 0  # not entered
        self.end_ns = 0  # not left
        self.cpu_ns = 0  # above 0 only once it has ended, if it is certain
        self.cpu_clock = None

    def __enter__(self) -> stage:
        """Open the interval."""
        if self.start_ns:
            return self._enter_again()
        self.start_ns = -1  # taken: another thread that enters the same object comes again
        unit = current_unit.get()
        log = unit.log
        if log is None:
            if unit.is_open:
                # The first stages may open in two threads: there is no call since the log was read.
                unit.log = log = []
            else:
                log = self._begin_unit(unit)
        elif len(log) >= units.FOLD_AT:
            unit.fold()
        cpu_clock = here.clock or self._find_cpu_clock()
        self.start_ns = clock.now_ns()
        log.append(self)
        if self.gpu is not None:
            self._mark_gpu(self.gpu.begin)
        if cpu_clock is not None:
            self.cpu_clock = cpu_clock
            self.outer = cpu_clock.innermost
            cpu_clock.innermost = self
            self.cpu_start_ns = clock.cpu_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the interval."""
        if self.end_ns:
            self._exit_special()
            return
        cpu_clock = self.cpu_clock
        if cpu_clock is not None:
            if cpu_clock is here.clock and cpu_clock.is_good() and cpu_clock.innermost is self:
                used_ns = clock.cpu_ns() - self.cpu_start_ns
                self.cpu_ns += used_ns
                cpu_clock.innermost = outer = self.outer
                if outer is not None:
                    outer.cpu_ns -= used_ns
            else:
                self._stop_cpu()
        if self.gpu is not None:
            self._mark_gpu(self.gpu.end)
        self.end_ns = clock.now_ns()

    async def __aenter__(self) -> stage:
        """Open the interval."""
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the interval."""
        self.__exit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Return `function` timed as this stage at every call.

        Raises:
            TypeError: a generator function, whose call does not run it.
        """
        name, cuda = self.name, self.gpu is not None
        return timed(function, lambda: stage(name, cuda=cuda), f"stage({name!r})", cpu.drive)

    def copy(self) -> stage:
        """Return the interval as it is now."""
        copy = stage(self.name)
        copy.start_ns = self.start_ns
        copy.end_ns = self.end_ns
        copy.cpu_ns = self.cpu_ns
        copy.gpu = self.gpu
        return copy

    def _find_cpu_clock(self) -> CpuClock | None:
        try:
            return find_clock(self)
        except Exception:  # as of an event loop of an unusual kind
            current_unit.get().service.note_error("stage")
            return None

    def _mark_gpu(self, mark: Callable[[], None]) -> None:
        try:
            mark()
        except Exception:  # as of a device that has failed, which the service will see for itself
            current_unit.get().service.note_error("stage")

    def _stop_cpu(self) -> None:
        try:
            is_certain = cpu.stop(self)
        except Exception:
            current_unit.get().service.note_error("stage")
            return
        if not is_certain:
            unit = current_unit.get()
            if unit.is_open and unit.is_request:
                unit.service.has_suspended_stages = True

    def _begin_unit(self, around: Unit) -> list[stage]:
        """Return the log of a unit that begins and ends with this stage."""
        service = default_service() if around is NO_UNIT else around.service
        self._own_unit = unit = OutermostUnit(service, around)
        self.end_ns = _OUTERMOST
        log: list[stage] = []
        unit.log = log
        current_unit.set(unit)
        return log

    def _exit_special(self) -> None:
        for interval in reversed(current_unit.get().log or ()):
            if isinstance(interval, _StandIn) and interval.of is self and interval.end_ns <= 0:
                interval.__exit__(None, None, None)
                return
        was = self.end_ns
        if was < 0:
            self._stop_cpu()
            if self.gpu is not None:
                self._mark_gpu(self.gpu.end)
            self.end_ns = clock.now_ns()
        if was == _OUTERMOST:
            self._own_unit.finish(self.end_ns)

    def _enter_again(self) -> stage:
        """Open a new interval for an object that has one: from now on it stands for others."""
        if self.end_ns == 0:
            self.end_ns = _SHARED
        _StandIn(self).__enter__()
        return self


# What `end_ns` is, below 0, while an interval is open that ends in a special way.
_OUTERMOST = -1  # its end is that of its unit
_SHARED = -2  # the object was entered again meanwhile: an exit may mean another interval


class _StandIn(stage):
    """An interval of a stage object that is entered more than once."""

    __slots__ = ("of",)

    def __init__(self, of: stage) -> None:
        super().__init__(of.name, cuda=of.gpu is not None)
        self.of = of
