"""A callback for Lightning's Trainer, of the package `lightning` or `pytorch_lightning`.

    trainer = Trainer(callbacks=[TrainingMonitorCallback("resnet50")])

Import Lightning first: whichever of the two is there is used.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from tailwatch_tracing.training.hooks import has_hooks
from tailwatch_tracing.training.monitor import TrainingMonitor

_PACKAGE = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
_Callback: Any = import_module(_PACKAGE).Callback


class TrainingMonitorCallback(_Callback):  # type: ignore[misc]
    """Keeps a TrainingMonitor while a Trainer fits; `monitor` is it, None before.

    Steps are those of the first optimizer, none of one without hooks, as DeepSpeed's. The norm is
    that before clipping. Of the samples' order
    the first epoch is not seen: its iterator exists before callbacks are called.

    Args:
        job_name: As the monitor's.
        watch_communication: Whether to take DDP's communication hook.
        options: Further ones of the monitor, but for optimizer, model and scaler.
    """

    def __init__(self, job_name: str, *, watch_communication: bool = False, **options: Any) -> None:
        super().__init__()
        self.monitor: TrainingMonitor | None = None
        self._job_name = job_name
        self._watches_communication = watch_communication
        self._options = options
        self._until_end = ExitStack()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        model = trainer.strategy.model
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        monitor = TrainingMonitor(self._job_name, model=model, scaler=scaler, **self._options)
        self.monitor = self._until_end.enter_context(monitor)
        if trainer.optimizers and has_hooks(trainer.optimizers[0]):
            # Not by the monitor: the closure that Lightning hands to a step computes gradients.
            hook = trainer.optimizers[0].register_step_post_hook(lambda *_: monitor.end_update())
            self._until_end.callback(hook.remove)
        if self._watches_communication and hasattr(model, "register_comm_hook"):
            monitor.watch_communication(model)
        self._until_end.enter_context(monitor.watch_loader(trainer.train_dataloader))
        self._time_checkpoints(trainer, monitor)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Wait for the first batch."""
        if self.monitor is not None:
            self.monitor.await_batch()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Have a batch."""
        if self.monitor is not None:
            self.monitor.begin_batch(self.monitor.samples_of(batch))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Look at gradients: unscaled, and not clipped yet."""
        if self.monitor is not None and optimizer is trainer.optimizers[0]:
            self.monitor.begin_update(optimizer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the loss, and wait for the next batch."""
        if self.monitor is not None:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if loss is not None:
                # Lightning divides it by the batches of a step.
                self.monitor.loss(loss * trainer.accumulate_grad_batches)
            self.monitor.await_batch()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Leave the validation out."""
        if self.monitor is not None:
            self.monitor.leave()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Go on, within an epoch or at its end."""
        if self.monitor is not None:
            self.monitor.await_batch()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave out what is between epochs."""
        if self.monitor is not None:
            self.monitor.leave()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End."""
        self._end()

    def _end(self) -> None:
        self._until_end.close()
        self.monitor = None

    def _time_checkpoints(self, trainer: Any, monitor: TrainingMonitor) -> None:
        """Time `trainer.save_checkpoint`, whoever calls it: no hook tells when it is done."""
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with monitor.phase("checkpoint"):
                return save(*args, **kwargs)

        trainer.save_checkpoint = timed
        self._until_end.callback(lambda: vars(trainer).pop("save_checkpoint", None))
