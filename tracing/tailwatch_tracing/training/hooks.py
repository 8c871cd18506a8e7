"""How the monitor notices that an optimizer takes a step, or that a loss scaler skips one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any


def has_hooks(optimizer: Any) -> bool:
    """Return whether steps can be hooked: with torch.optim's they can, with DeepSpeed's not."""
    return hasattr(optimizer, "register_step_post_hook")


def hook_optimizer(
    optimizer: Any, begin: Callable[[Any], None], end: Callable[[], None]
) -> Callable[[], None]:
    """Have every step begun and ended; return what undoes it.

    A step with a closure computes its gradients within: it is begun at its end, where they are
    there to be read.
    """
    is_begun = False

    def before(optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        nonlocal is_begun
        is_begun = not any(map(callable, args)) and kwargs.get("closure") is None
        if is_begun:
            begin(optimizer)

    def after(optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if not is_begun:
            begin(optimizer)
        end()

    handles = (
        optimizer.register_step_pre_hook(before),
        optimizer.register_step_post_hook(after),
    )

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def watch_scaler(
    scaler: Any, steps: Callable[[], int], skipped: Callable[[], None]
) -> Callable[[], None]:
    """Notice when a GradScaler's `step` comes back without a step; return what undoes it.

    It knows no hooks, so its method is replaced on this one object.

    Args:
        scaler: The GradScaler.
        steps: Returns how many steps there were.
        skipped: Is called after one that was skipped.
    """
    original = scaler.step

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        before = steps()
        result = original(*args, **kwargs)
        if steps() == before:
            skipped()
        return result

    scaler.step = step
    return lambda: scaler.__dict__.pop("step", None)
