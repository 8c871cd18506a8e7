"""What is counted of every optimizer step, and what is read of every n-th one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from tailwatch_tracing import clock, families
from tailwatch_tracing.training.gradients import gradients, local_part, total_norm
from tailwatch_tracing.training.readings import Readings
from tailwatch_tracing.training.record import RankRecord

_READ_LOSSES_NS = 5_000_000_000  # at least this often, however long a step takes


class Losses:
    """Losses told batch by batch; they stay where they are until they are read together."""

    def __init__(self, record: RankRecord, readings: Readings) -> None:
        self._record = record
        self._readings = readings
        self._losses: list[Any] = []
        self._read_ns = clock.now_ns()

    def add(self, loss: Any) -> None:
        """Keep one, by a copy: a captured CUDA graph writes the next into the same tensor."""
        self._losses.append(
            local_part(loss).detach().clone() if hasattr(loss, "detach") else float(loss)
        )

    def read(self, *, is_due: bool) -> None:
        """Have them read if it is due, or was not for 5 s."""
        now_ns = clock.now_ns()
        if is_due or now_ns - self._read_ns >= _READ_LOSSES_NS:
            losses, self._losses = self._losses, []
            self._read_ns = now_ns
            self._readings.take(losses, self._show)

    def _show(self, losses: list[float]) -> None:
        finite = [loss for loss in losses if math.isfinite(loss)]
        self._record.count(families.TRAINING_NONFINITE, by=len(losses) - len(finite))
        mean = sum(finite) / len(finite) if finite else math.nan
        self._record.show(families.TRAINING_LOSS, mean)


class Steps:
    """The optimizer steps of one rank.

    Args:
        record: Where they are counted.
        readings: Through which tensors are read.
        every_steps: Which steps are read, beside the first.
        data_parallel_size: Ranks that share a step's samples.
        dp_group: The label of the norms.
        scaler: The GradScaler, or None.
        has_shards: Returns whether an optimizer's gradients are only a part.
        computes_norm: Whether a norm that is not told is computed.
    """

    def __init__(
        self,
        record: RankRecord,
        readings: Readings,
        *,
        every_steps: int,
        data_parallel_size: int,
        dp_group: str,
        scaler: Any,
        has_shards: Callable[[Any], bool],
        computes_norm: bool,
    ) -> None:
        self._record = record
        self._readings = readings
        self._every_steps = every_steps
        self._data_parallel_size = data_parallel_size
        self._dp_group = dp_group
        self._scaler = scaler
        self._has_shards = has_shards
        self._computes_norm = computes_norm
        self.count = 0
        self.take_local_norm: Callable[[], torch.Tensor | None] = lambda: None
        self._told_norm: Any = None
        self._limited_norms: list[tuple[Any, float]] = []
        self._found_infinite: list[torch.Tensor] = []
        self._samples = 0
        self._most_samples = 0
        record.count(families.TRAINING_STEPS, by=0)

    def is_read(self) -> bool:
        """Return whether the step under way is one that is read."""
        return (self.count + 1) % self._every_steps == 0 or not self.count

    def is_between_readings(self) -> bool:
        """Return whether the last step was halfway from one that is read to the next."""
        return self.count % self._every_steps == self._every_steps // 2

    def add_samples(self, samples: int) -> None:
        """Count a batch's samples towards the step under way."""
        self._record.count(families.TRAINING_SAMPLES, by=samples)
        self._samples += samples

    def tell_norm(self, norm: Any, max_norm: float | None) -> None:
        """Take the norm of the whole gradient instead of computing it.

        Raises:
            TypeError: it is a DTensor, whose value only all ranks together can ask for.
        """
        if hasattr(norm, "full_tensor"):
            raise TypeError("grad_norm got a DTensor: expected what its full_tensor() returns")
        self._told_norm = norm.detach() if hasattr(norm, "detach") else float(norm)
        if max_norm is not None:
            self._limited_norms.append((self._told_norm, max_norm))

    def show_norm(self, norm: Any) -> None:
        """Show the norm of the whole gradient."""
        self._read_norm(self._kind(is_whole=True), norm)

    def begin(self, optimizer: Any) -> None:
        """Look at the gradients that are about to be taken; None for unknown ones."""
        # A fused optimizer is told whether a gradient is infinite, and skips by itself.
        infinite = getattr(optimizer, "found_inf", None)
        if infinite is not None:
            self._found_infinite.append(infinite.detach().clone())
        if self.is_read():
            self._read(optimizer)

    def end(self) -> None:
        """Count a step, skipped or not."""
        self.count += 1
        self._record.count(families.TRAINING_STEPS)
        self._told_norm = None
        self._most_samples = max(self._most_samples, self._samples)
        self._samples = 0

    def read_counts(self) -> None:
        """Have read what was gathered over the steps since the reading before."""
        if self._most_samples:
            samples = self._most_samples * self._data_parallel_size
            self._record.show(families.TRAINING_EFFECTIVE_BATCH, samples)
            self._most_samples = 0
        found, self._found_infinite = self._found_infinite, []
        self._readings.take(
            found,
            lambda each: self._record.count(families.TRAINING_SKIPPED, by=sum(map(bool, each))),
        )
        limited, self._limited_norms = self._limited_norms, []
        norms, limits = [norm for norm, _ in limited], [limit for _, limit in limited]
        self._readings.take(norms, lambda each: self._count_clipped(each, limits))

    def _count_clipped(self, norms: list[float], limits: list[float]) -> None:
        pairs = zip(norms, limits, strict=True)
        over = sum(limit < norm < math.inf for norm, limit in pairs)
        self._record.count(families.TRAINING_CLIPPED, by=over)

    def _read(self, optimizer: Any) -> None:
        rates = [group["lr"] for group in getattr(optimizer, "param_groups", ())]
        self._readings.take(
            rates, lambda each: self._record.show(families.TRAINING_LEARNING_RATE, max(each))
        )
        held = [] if optimizer is None else gradients(optimizer)
        scale = self._scale(held)
        if scale is not None:
            self._readings.take(
                [scale], lambda each: self._record.show(families.TRAINING_LOSS_SCALE, each[0])
            )
        local = self.take_local_norm()
        if local is not None:
            self._read_norm("local", local if scale is None else local / scale)
        if self._told_norm is not None:
            self.show_norm(self._told_norm)
        elif held and self._computes_norm:
            norm = total_norm(held)
            factor = getattr(optimizer, "grad_scale", None)  # a fused one unscales by itself
            kind = self._kind(is_whole=not self._has_shards(optimizer))
            self._read_norm(kind, norm if factor is None else norm / factor)

    def _scale(self, held: list[torch.Tensor]) -> torch.Tensor | None:
        if self._scaler is None or not held or not self._scaler.is_enabled():
            return None
        # `get_scale` would wait for the device.
        scale: torch.Tensor = self._scaler.scale(torch.ones((), device=held[0].device))
        return scale

    def _kind(self, *, is_whole: bool) -> str:
        if not is_whole:
            return "sharded"
        return "reduced" if self._data_parallel_size > 1 else "local"

    def _read_norm(self, kind: str, norm: Any) -> None:
        self._readings.take(
            [norm],
            lambda each: self._record.show(
                families.TRAINING_GRAD_NORM, each[0], self._dp_group, kind
            ),
        )
