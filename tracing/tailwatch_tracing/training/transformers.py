"""A callback for the Trainer of Hugging Face's transformers.

trainer = Trainer(..., callbacks=[TrainingMonitorCallback("llama")])
"""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module
from typing import Any

from tailwatch_tracing.training.hooks import has_hooks
from tailwatch_tracing.training.monitor import TrainingMonitor

_TrainerCallback: Any = import_module("transformers").TrainerCallback


class TrainingMonitorCallback(_TrainerCallback):  # type: ignore[misc]
    """Keeps a TrainingMonitor while a Trainer trains; `monitor` is it, None before.

    Loss and gradient norm are those that the Trainer logs, so `logging_steps` says how often; its
    `logging_nan_inf_filter` must be off for a loss that is not finite to be seen.

    Args:
        job_name: As the monitor's.
        options: Further ones of the monitor, but for optimizer, model and scaler.
    """

    def __init__(self, job_name: str, **options: Any) -> None:
        self.monitor: TrainingMonitor | None = None
        self._job_name = job_name
        self._options = options
        self._until_end = ExitStack()
        self._checkpoint = ExitStack()
        self._has_hooks = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch."""
        optimizer = kwargs.get("optimizer")
        own = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's
        self._has_hooks = has_hooks(own)
        options: dict[str, Any] = {"computes_norm": not args.max_grad_norm, **self._options}
        monitor = TrainingMonitor(
            self._job_name,
            model=kwargs.get("model"),
            optimizer=own if self._has_hooks else None,
            scaler=getattr(optimizer, "scaler", None),
            **options,
        )
        self.monitor = self._until_end.enter_context(monitor)
        loader = kwargs.get("train_dataloader")
        if loader is not None:
            self._until_end.enter_context(monitor.watch_loader(loader))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the batches of the first step."""
        if self.monitor is not None:
            self.monitor.await_batch()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Have the batches of a step: all of an accumulation at once."""
        if self.monitor is not None:
            self.monitor.begin_batch(self._samples(args))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the step of an optimizer without hooks, as DeepSpeed's."""
        if self.monitor is not None and not self._has_hooks:
            self.monitor.begin_update(None)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End it."""
        if self.monitor is not None and not self._has_hooks:
            self.monitor.end_update()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Go on to the next batch of an accumulation."""
        if self.monitor is not None:
            self.monitor.add_samples(self._samples(args))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the next step's batches, or for what comes before."""
        self._go_on(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave out what is between epochs, but for a checkpoint."""
        self._go_on(control, is_over=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Take loss and norm."""
        if self.monitor is not None and logs:
            if "loss" in logs:
                self.monitor.loss(logs["loss"])
                self.monitor.read_losses()
            if "grad_norm" in logs:
                self.monitor.show_norm(logs["grad_norm"])

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Go on behind an evaluation, which is left out."""
        self._go_on(control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a checkpoint."""
        self._checkpoint.close()
        self._go_on(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End."""
        self._checkpoint.close()
        self._until_end.close()
        self.monitor = None

    def _go_on(self, control: Any, *, is_over: bool = False) -> None:
        """Enter the phase of what the Trainer does next: no event tells that it begins."""
        if self.monitor is None:
            return
        if is_over or control.should_evaluate:
            self.monitor.leave()
        else:
            self.monitor.await_batch()
        if control.should_save and not control.should_evaluate:
            self._checkpoint.enter_context(self.monitor.phase("checkpoint"))

    def _samples(self, args: Any) -> int:
        assert self.monitor is not None
        return self.monitor.samples_of(None) or int(args.train_batch_size)
