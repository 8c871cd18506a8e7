"""The batches of a data loader, with the time that the loop waits for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

Batch = TypeVar("Batch")
Batch_co = TypeVar("Batch_co", covariant=True)


class Loop(Protocol):
    """Who wants to know when the loop waits for a batch, and when it has one."""

    def open(self, loader: Any) -> Iterator[Any]:
        """Return the loader's iterator."""
        ...

    def await_batch(self) -> None:
        """Be told that the next batch is asked for."""
        ...

    def begin_batch(self, samples: int | None) -> None:
        """Be told that it is there."""
        ...

    def leave(self) -> None:
        """Be told that there are no more, or that the loop was left."""
        ...


class Batches(Generic[Batch_co]):
    """Yields a loader's batches, as often as it is gone through; as long as the loader.

    Args:
        loader: What is gone through.
        loop: Is told of every batch.
        samples: Returns how many samples a batch has.
    """

    def __init__(
        self, loader: Iterable[Batch_co], loop: Loop, samples: Callable[[Batch_co], int | None]
    ) -> None:
        self._loader = loader
        self._loop = loop
        self._samples = samples

    def __len__(self) -> int:
        """Return the loader's length, for a progress bar."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch_co]:
        """Go through the loader once."""
        loop = self._loop
        loop.await_batch()
        try:
            for batch in loop.open(self._loader):
                loop.begin_batch(self._samples(batch))
                yield batch
                loop.await_batch()
        finally:
            loop.leave()


def leading_dimension(batch: Any) -> int | None:
    """Return the first dimension of a batch's first tensor, None if there is none."""
    while not hasattr(batch, "shape"):
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, (list, tuple)):
            batch = batch[0] if batch else None
        else:
            return None
    return int(batch.shape[0]) if len(batch.shape) else None


def loader_settings(loader: Any) -> tuple[str, str, str, str] | None:
    """Return workers, prefetch factor, pinned memory and persistent workers of a DataLoader.

    None for what is no DataLoader. The prefetch factor is 0 without workers, which prefetch.
    """
    if not hasattr(loader, "num_workers"):
        return None
    prefetch = getattr(loader, "prefetch_factor", None)
    return (
        str(loader.num_workers),
        str(prefetch or 0) if loader.num_workers else "0",
        _truth(getattr(loader, "pin_memory", False)),
        _truth(getattr(loader, "persistent_workers", False)),
    )


def _truth(value: object) -> str:
    return "true" if value else "false"
