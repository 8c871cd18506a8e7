"""The time that DistributedDataParallel waits for gradients, and the gradient's norm before.

DDP averages gradients in buckets while the backward pass goes on. What costs time is the rest: from
the moment the last bucket is handed over until it is back. A communication hook sees both.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from tailwatch_tracing.training.gradients import total_norm
from tailwatch_tracing.training.phases import Wait

Hook = Callable[[Any, Any], "torch.futures.Future[torch.Tensor]"]


class BucketTimes:
    """Goes around a communication hook of DDP.

    Args:
        hook: What communicates.
        wants_norm: Returns whether the norm before communication is wanted of this step.
        note_wait: Is told of the wait of each backward pass that communicates.
        note_error: Is called in an `except`.
    """

    def __init__(
        self,
        hook: Hook,
        wants_norm: Callable[[], bool],
        note_wait: Callable[[Wait], None],
        note_error: Callable[[], None],
    ) -> None:
        self._hook = hook
        self._wants_norm = wants_norm
        self._note_wait = note_wait
        self._note_error = note_error
        self._wait = Wait()
        self._norms: list[torch.Tensor] = []

    def __call__(self, state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Be DDP's hook: communicate one bucket, and mark when it goes and when it is back."""
        buffer = bucket.buffer()
        on_gpu = buffer.is_cuda
        try:
            self._before(bucket, buffer, on_gpu)
        except Exception:
            self._note_error()
        wait = self._wait

        def is_back(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            try:
                wait.end(on_gpu=on_gpu)
            except Exception:
                self._note_error()
            return future.value()

        return self._hook(state, bucket).then(is_back)

    def take_local_norm(self) -> torch.Tensor | None:
        """Return the norm before communication, of the last backward pass; None if not computed."""
        norms, self._norms = self._norms, []
        return total_norm(norms) if norms else None

    def _before(self, bucket: Any, buffer: torch.Tensor, on_gpu: bool) -> None:
        if bucket.index() == 0:
            self._norms = []
            self._wait = Wait()
            self._note_wait(self._wait)
        if self._wants_norm():
            self._norms.append(total_norm([buffer]))
        self._wait.begin(on_gpu=on_gpu)


def averaging_hook() -> Hook:
    """Return the hook that does what DDP does without one."""
    hooks = import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    hook: Hook = hooks.allreduce_hook
    return hook
