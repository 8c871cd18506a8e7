"""TrainingMonitor: what one rank of a training run does, from a few lines in its loop.

Nothing that happens in every step asks a device for a value: losses and norms stay tensors until
a reading, once in `every_steps`, copies them to the host, and the copy is looked at when complete.
An error in here is counted and never reaches the training.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch  # pyright: ignore[reportMissingImports]

from tailwatch_tracing import clock, families
from tailwatch_tracing.service import job_named
from tailwatch_tracing.training import process_group
from tailwatch_tracing.training.batch_norm import BatchNormStatistics
from tailwatch_tracing.training.batches import Batches, leading_dimension, loader_settings
from tailwatch_tracing.training.communication import BucketTimes, Hook, averaging_hook
from tailwatch_tracing.training.comparison import Comparison
from tailwatch_tracing.training.gradients import are_sharded, modules
from tailwatch_tracing.training.hooks import has_hooks, hook_optimizer, watch_scaler
from tailwatch_tracing.training.phases import COMPUTE, DATA, OPTIMIZER, PHASES, PhaseClock
from tailwatch_tracing.training.push import PagePush
from tailwatch_tracing.training.readings import Readings
from tailwatch_tracing.training.record import RankRecord, harmless
from tailwatch_tracing.training.sample_order import Order, SampleOrder, watched
from tailwatch_tracing.training.steps import Losses, Steps

Batch = TypeVar("Batch")


class TrainingMonitor:
    """Counts and times one rank of a training run.

        monitor = TrainingMonitor("resnet50", model=model, optimizer=optimizer)
        serve_metrics(12161 + local_rank)

        for images, labels in monitor.batches(loader):
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.loss(loss)

    To be made after the process group, in every rank, and used from the loop's thread.

    Args:
        job_name: The label `job_name`; the label `service`, too, unless that is given.
        optimizer: Its hooks count steps and time the phase `optimizer`. Without one, as with a
            framework that hides its own, put `with monitor.optimizer_step()` around the step.
        model: For BatchNorm's statistics, and to see that gradients are sharded.
        scaler: The GradScaler: skipped steps and the scale are seen.
        every_steps: Norms, rates, batch sizes and comparisons are of every such step, so that all
            ranks show the same one; losses are read then, and every 5 s. Best are two or three
            scrape intervals: then each value is seen of every rank.
        expected_loss: Returns the loss that is expected of a step, counted from 1.
        rank: By default the process group's, else that of the variable RANK, else 0.
        world_size: Ranks of the job; by default the process group's, else WORLD_SIZE, else 1.
        data_parallel_size: Ranks that share a step's samples: all unless given. They are fewer
            with tensor or pipeline parallelism.
        dp_group: The label `dp_group`: ranks with one name hold the same gradients.
        is_sharded: Whether the optimizer has only a part of the gradient, as under FSDP. Found out
            unless given.
        computes_norm: Whether a norm that is not told is computed, of the steps that are read.
        service: The label `service`.

    Raises:
        ValueError: `every_steps` is below 1, or the name is empty.
        TypeError: the optimizer has no hooks.
    """

    def __init__(
        self,
        job_name: str,
        *,
        optimizer: Any = None,
        model: Any = None,
        scaler: Any = None,
        every_steps: int = 50,
        expected_loss: Callable[[int], float] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        data_parallel_size: int | None = None,
        dp_group: str = "0",
        is_sharded: bool | None = None,
        computes_norm: bool = True,
        service: str | None = None,
    ) -> None:
        if not job_name:
            raise ValueError("job_name is empty: expected the name of the training job")
        if every_steps < 1:
            raise ValueError(f"every_steps={every_steps!r}: expected 1 or more")
        if optimizer is not None and not has_hooks(optimizer):
            raise TypeError(
                f"{type(optimizer).__qualname__} has no step hooks, which torch.optim's have: "
                "leave optimizer out, and put `with monitor.optimizer_step():` around its step"
            )
        self.job_name = job_name
        self.rank = process_group.own_rank() if rank is None else rank
        ranks = process_group.world_size() if world_size is None else world_size
        self._model = model
        self._is_sharded = is_sharded
        self._expected_loss = expected_loss
        self._record = record = RankRecord(job_named(service or job_name), job_name, self.rank)
        record.show(families.TRAINING_WORLD_SIZE, ranks)
        self._readings = Readings()
        self._phases = PhaseClock(record.cell(families.TRAINING_PHASE))
        self._losses = Losses(record, self._readings)
        self._steps = Steps(
            record,
            self._readings,
            every_steps=every_steps,
            data_parallel_size=data_parallel_size or ranks,
            dp_group=str(dp_group),
            scaler=scaler,
            has_shards=self._has_shards,
            computes_norm=computes_norm,
        )
        self._comparison = Comparison(
            record,
            self._readings,
            BatchNormStatistics(list(modules(model))),
            process_group.find_ranks(f"tailwatch/{job_name}/{dp_group}"),
        )
        self._await_ns = 0
        self._is_due = False
        self._interrupted: list[int | None] = []  # the phase that an update is in the midst of
        self._loader: Callable[[], Any] = lambda: None
        self._order = SampleOrder(self._note_order)
        self._push: PagePush | None = None
        self._undo: list[Callable[[], None]] = []
        if optimizer is not None:
            self._undo.append(hook_optimizer(optimizer, self.begin_update, self.end_update))
        if scaler is not None:
            record.count(families.TRAINING_SKIPPED, by=0)
            self._undo.append(watch_scaler(scaler, lambda: self._steps.count, self._end_skipped))

    # --- what a loop tells ---

    def batches(
        self, loader: Iterable[Batch], *, samples: Callable[[Batch], int] | None = None
    ) -> Batches[Batch]:
        """Return the loader's batches; what happens between two of them is timed and counted.

        Args:
            loader: A DataLoader, or any iterable.
            samples: Returns how many samples a batch has. By default that is known from the
                DataLoader's sampler, else from the first dimension of the batch's first tensor.
        """
        return Batches(loader, self, samples or self.samples_of)

    @harmless
    def loss(self, loss: torch.Tensor | float) -> None:
        """Tell the loss of a batch, as a tensor best: its value is not asked for now."""
        self._losses.add(loss)

    @harmless
    def grad_norm(self, norm: torch.Tensor | float, *, max_norm: float | None = None) -> None:
        """Tell the norm of the whole gradient, as `clip_grad_norm_` returns it, before the step.

            monitor.grad_norm(clip_grad_norm_(model.parameters(), 1.0), max_norm=1.0)

        Without this the norm is computed of steps that are read, and is one after clipping.

        Args:
            norm: Before clipping; under a GradScaler after `scaler.unscale_(optimizer)`.
            max_norm: What it is clipped to; steps over it are counted.
        """
        self._steps.tell_norm(norm, max_norm)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block of the loop as another phase.

            with monitor.phase("checkpoint"):
                torch.save(model.state_dict(), path)

        Raises:
            ValueError: the name is none of data, compute, communication, optimizer, checkpoint.
        """
        if name not in PHASES:
            raise ValueError(f"phase {name!r}: expected one of {', '.join(PHASES)}")
        with self._within(PHASES.index(name)):
            yield

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave a block out of all phases, as an evaluation."""
        with self._within(None):
            yield

    @contextmanager
    def optimizer_step(self) -> Iterator[None]:
        """Time and count the step of an optimizer that the monitor does not know.

        with monitor.optimizer_step():
            engine.step()
        """
        self.begin_update(None)
        try:
            yield
        except BaseException:
            self.end_update(is_step=False)
            raise
        self.end_update()

    def watch_communication(self, model: Any, hook: Hook | None = None, state: Any = None) -> None:
        """Time what a DistributedDataParallel waits for, and get norms before communication.

        It takes DDP's one communication hook, before the first forward pass.

        Args:
            model: The DistributedDataParallel.
            hook: What communicates, as for `register_comm_hook`; by default as DDP does itself.
            state: Handed to the hook.

        Raises:
            RuntimeError: as DDP does when it has a hook already.
        """
        buckets = BucketTimes(
            hook or averaging_hook(), self._steps.is_read, self._phases.add_wait, self.note_error
        )
        # DDP refuses annotations other than its own.
        model.register_comm_hook(state, lambda state, bucket: buckets(state, bucket))
        self._steps.take_local_norm = buckets.take_local_norm

    def push_to(self, gateway: str, *, every_seconds: float = 15) -> None:
        """Push the page to a Prometheus Pushgateway, from a thread, until `close`.

        The page is grouped by job (the job's name) and rank. A push that fails is counted, the
        first is logged, and the training goes on.

        Args:
            gateway: Its address, as `127.0.0.1:9091`.
            every_seconds: Time between two pushes.

        Raises:
            ValueError: the interval is not above 0.
        """
        if self._push is not None:
            self._push.close()
        self._push = PagePush(
            gateway,
            self.job_name,
            {"rank": str(self.rank)},
            every_seconds,
            lambda: self._record.job.count_error("push"),
        )

    def close(self) -> None:
        """Read what is left, push a last time, and let go of optimizer and scaler.

        Counters stay on the page, gauges do not: they would go on telling of a run that is over.
        """
        self._finish()
        if self._push is not None:
            self._push.close()
        self._record.clear_gauges()
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> TrainingMonitor:
        """Be closed at the end of a `with` block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    # --- what `batches` and the optimizer tell, or a framework's callback in their place ---

    def open(self, loader: Any) -> Iterator[Any]:
        """Return the loader's iterator, with its order watched and its settings noted."""
        with self.watch_loader(loader):
            return iter(loader)

    @contextmanager
    def watch_loader(self, loader: Any) -> Iterator[None]:
        """Note a loader's settings, and watch the order of the iterators it is asked for within."""
        self._note_loader(loader)
        with watched(loader, self._order):
            yield

    def samples_of(self, batch: Any) -> int | None:
        """Return how many samples the loader's next batch has, None if that is not known."""
        size = self._order.batch_size()
        if size is not None:
            return size
        try:
            return leading_dimension(batch)
        except Exception:  # a batch can be anything
            return None

    @harmless
    def await_batch(self) -> None:
        """Begin to wait for a batch."""
        self._await_ns = clock.now_ns()
        self._phases.switch(DATA)

    @harmless
    def begin_batch(self, samples: int | None) -> None:
        """End the wait: there is a batch of so many samples, of an unknown number with None."""
        waited_ns = clock.now_ns() - self._await_ns
        self._phases.switch(COMPUTE)
        self._record.count(families.TRAINING_LOADER_WAIT, by=waited_ns)
        if samples is not None:
            self._steps.add_samples(samples)
        self._look()

    @harmless
    def add_samples(self, samples: int) -> None:
        """Count further samples of the step under way."""
        self._steps.add_samples(samples)

    @harmless
    def read_losses(self) -> None:
        """Have the losses that were told read now, not with the next step that is read."""
        self._losses.read(is_due=True)

    @harmless
    def show_norm(self, norm: float) -> None:
        """Show the norm of the whole gradient of a step that is over."""
        self._steps.show_norm(norm)

    @harmless
    def leave(self) -> None:
        """Be in no phase, until the next batch is asked for."""
        self._phases.switch(None)
        self._look()
        self._comparison.compare()

    @harmless
    def begin_update(self, optimizer: Any) -> None:
        """Begin the optimizer's step: gradients are complete, and unscaled as far as they will be.

        Args:
            optimizer: Whose gradients and rates are read; None if they cannot be.
        """
        if not self._interrupted:
            self._interrupted.append(self._phases.switch(OPTIMIZER))
        self._look()
        self._steps.begin(optimizer)

    @harmless
    def end_update(self, *, is_step: bool = True) -> None:
        """End the optimizer's step, and count it unless it failed."""
        if self._interrupted:
            self._phases.switch(self._interrupted.pop())
        if not is_step:
            return
        is_read = self._steps.is_read()
        self._steps.end()
        if is_read:
            self._is_due = True  # a loss may still be told of this step
            self._comparison.tell(self._steps.count)
        elif self._steps.is_between_readings():
            self._comparison.compare()

    def note_error(self) -> None:
        """Count an error of the monitor itself, from an `except`."""
        self._record.note_error()

    # ---

    def _end_skipped(self) -> None:
        self._record.count(families.TRAINING_SKIPPED)
        self.end_update()

    def _look(self) -> None:
        """Use what is complete by now, and take the next reading if it is time."""
        self._readings.read()
        is_due, self._is_due = self._is_due, False
        self._losses.read(is_due=is_due)
        if is_due:
            self._steps.read_counts()
            if self._expected_loss is not None:
                expected = float(self._expected_loss(self._steps.count))
                self._record.show(families.TRAINING_EXPECTED_LOSS, expected)

    @harmless
    def _finish(self) -> None:
        self._phases.switch(None)
        self._is_due = True
        self._look()
        self._readings.finish()
        self._phases.credit_finished()

    def _has_shards(self, optimizer: Any) -> bool:
        if self._is_sharded is None:
            parameters = (each for group in optimizer.param_groups for each in group["params"])
            self._is_sharded = are_sharded(self._model, parameters)
        return self._is_sharded

    @harmless
    def _note_loader(self, loader: Any) -> None:
        if loader is self._loader():
            return
        # Not kept alive: a loader's processes end with it.
        self._loader = weakref.ref(loader) if hasattr(loader, "num_workers") else lambda: loader
        self._order = SampleOrder(self._note_order)
        self._comparison.forget_order()
        settings = loader_settings(loader)
        if settings is not None:
            self._record.show(families.TRAINING_LOADER_INFO, 1, *settings)

    @harmless
    def _note_order(self, order: Order) -> None:
        self._comparison.note_order(order)

    @contextmanager
    def _within(self, phase: int | None) -> Iterator[None]:
        before = self._switch(phase)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, phase: int | None) -> int | None:
        try:
            return self._phases.switch(phase)
        except Exception:
            self.note_error()
            return phase
