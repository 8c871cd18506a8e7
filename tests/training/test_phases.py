"""Phases on a GPU: against a torch.cuda whose one stream runs on the test's clock."""

from __future__ import annotations

import pytest

from tailwatch_tracing.cells import Cell
from tailwatch_tracing.training.phases import (
    COMPUTE,
    DATA,
    OPTIMIZER,
    PENDING_LIMIT,
    PHASES,
    PhaseClock,
    Wait,
)
from tests.tracing.conftest import Clock
from tests.tracing.test_cuda import Gpu, gpu

__all__ = ["gpu"]


@pytest.fixture
def cell() -> Cell:
    return Cell([0] * len(PHASES))


def seconds(cell: Cell) -> dict[str, float]:
    pairs = zip(PHASES, cell.counts, strict=True)
    return {phase: count / 1e9 for phase, count in pairs if count}


def test_waiting_for_data_is_free_while_the_gpu_is_busy(clock: Clock, gpu: Gpu, cell: Cell) -> None:
    """The host waits 0.3 s for the second batch; the GPU has work for 1 s, and idles not at all."""
    phases = PhaseClock(cell)
    for _ in range(2):
        phases.switch(DATA)
        clock.advance(0.3)
        phases.switch(COMPUTE)
        gpu.launch(1)
        phases.switch(OPTIMIZER)
        gpu.launch(0.25)
    phases.switch(None)
    assert seconds(cell) == {"data": 0.3}  # the GPU is not done: nothing waits for it
    gpu.wait()
    phases.credit_finished()
    assert seconds(cell) == {"data": 0.3, "compute": 2, "optimizer": 0.5}
    assert sum(seconds(cell).values()) == 0.3 + 2 * 1.25


def test_data_that_the_gpu_waits_for_is_a_phase(clock: Clock, gpu: Gpu, cell: Cell) -> None:
    phases = PhaseClock(cell)
    phases.switch(COMPUTE)
    gpu.launch(1)
    phases.switch(DATA)
    clock.advance(1.5)
    phases.switch(None)
    assert seconds(cell) == {"compute": 1, "data": 0.5}


def test_communication_is_what_is_waited_for(clock: Clock, gpu: Gpu, cell: Cell) -> None:
    """The last bucket is handed over after 1 s, and back 0.5 s later: by the GPU's time."""
    phases = PhaseClock(cell)
    phases.switch(COMPUTE)
    wait = Wait()
    phases.add_wait(wait)
    for compute, communicate in ((0.5, 0), (0.5, 0.5)):
        gpu.launch(compute)
        wait.begin(on_gpu=True)
        gpu.launch(communicate)
        wait.end(on_gpu=True)
    phases.switch(None)
    gpu.wait()
    phases.credit_finished()
    assert seconds(cell) == {"compute": 1, "communication": 0.5}


def test_a_wait_is_no_longer_than_its_phase(clock: Clock, cell: Cell) -> None:
    phases = PhaseClock(cell)
    phases.switch(COMPUTE)
    wait = Wait()
    wait.begin(on_gpu=False)
    phases.add_wait(wait)
    clock.advance(1)
    phases.switch(None)
    clock.advance(5)
    wait.end(on_gpu=False)
    phases.credit_finished()
    assert sum(seconds(cell).values()) == 1


def test_a_gpu_that_is_never_done_costs_bounded_memory(clock: Clock, gpu: Gpu, cell: Cell) -> None:
    """The oldest interval gets the host's time."""
    gpu.launch(10**6)
    phases = PhaseClock(cell)
    for _ in range(PENDING_LIMIT + 1):
        phases.switch(COMPUTE)
        clock.advance(1)
    assert seconds(cell) == {}
    phases.switch(None)
    assert seconds(cell) == {"compute": 1}
