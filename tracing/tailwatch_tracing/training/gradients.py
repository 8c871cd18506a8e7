"""Norms of gradients, computed where the gradients are and left there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]


def gradients(optimizer: Any) -> list[torch.Tensor]:
    """Return the gradients that an optimizer is about to take; of a sharded one this rank's part.

    Nothing is exchanged between ranks: a DTensor is asked for its local part only.
    """
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    local = [local_part(each.grad) for each in parameters if each.grad is not None]
    return [each.coalesce().values() if each.is_sparse else each for each in local]


def local_part(tensor: Any) -> Any:
    """Return this rank's part of a DTensor, and any other tensor as it is."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def total_norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of all elements together, a tensor of no dimension.

    Half precision is summed in single: its squares would overflow.
    """
    with torch.no_grad():
        norms = [_norm(each) for each in tensors]
        return torch.linalg.vector_norm(torch.stack([each.to(norms[0].device) for each in norms]))


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    precise = tensor.dtype in (torch.float32, torch.float64)
    return torch.linalg.vector_norm(tensor, dtype=None if precise else torch.float32).float()


def are_sharded(model: Any, parameters: Iterable[Any]) -> bool:
    """Return whether this rank holds only a part of the gradient.

    That is so under FSDP of either version, and with all tensors that torch has distributed.
    """
    return any(hasattr(each, "to_local") for each in parameters) or any(
        type(module).__name__ == "FullyShardedDataParallel" for module in modules(model)
    )


def modules(model: Any) -> Iterator[Any]:
    """Yield a model's modules, of none nothing."""
    if model is not None:
        yield from model.modules()
