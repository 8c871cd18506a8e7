"""This process among the others, as torch.distributed and its launchers know it."""

from __future__ import annotations

import os
from collections import Counter

import torch  # pyright: ignore[reportMissingImports]

from tailwatch_tracing.training.ranks import Ranks

_calls: Counter[str] = Counter()


def has_process_group() -> bool:
    """Return whether torch.distributed's default process group exists."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def own_rank() -> int:
    """Return the rank: the process group's, else that of the variable RANK, else 0."""
    return int(torch.distributed.get_rank()) if has_process_group() else _variable("RANK", 0)


def world_size() -> int:
    """Return the number of ranks: the process group's, else WORLD_SIZE, else 1."""
    if has_process_group():
        return int(torch.distributed.get_world_size())
    return _variable("WORLD_SIZE", 1)


def find_ranks(prefix: str) -> Ranks | None:
    """Return the other ranks, through the store of the process group; None without one.

    Every call has keys of its own, those of other ranks' call of the same number.
    """
    # torch has no public name for that store.
    store_of = getattr(torch.distributed.distributed_c10d, "_get_default_store", None)
    if store_of is None or not has_process_group() or world_size() < 2:
        return None
    _calls[prefix] += 1
    return Ranks(store_of(), f"{prefix}/{_calls[prefix]}", own_rank(), world_size())


def _variable(name: str, otherwise: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else otherwise
