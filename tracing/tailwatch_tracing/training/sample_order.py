"""In which order a data loader takes its samples: how many, and whether an order comes again.

Seen at the sampler, in the process of the loop: the samples themselves are never looked at.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

ORDER_SAMPLES = 64
"""Samples from an epoch's beginning that tell its order."""
_FEWEST_SAMPLES = 8
"""Of fewer the same order comes by chance: of 8 once in 40,320."""


class Order(NamedTuple):
    """The order of one epoch, counted from 1 as the loader was gone through."""

    epoch: int
    digest: str


class SampleOrder:
    """What one data loader's sampler hands out.

    Args:
        note_order: Is told the order of each epoch, as soon as it is known.
    """

    def __init__(self, note_order: Callable[[Order], None]) -> None:
        self._note_order = note_order
        self._epoch = 0
        self._sizes: deque[int | None] = deque()

    def batch_size(self) -> int | None:
        """Return how many samples the loader's next batch has, None if that is not known.

        A loader hands batches out in the order in which it asked for them.
        """
        return self._sizes.popleft() if self._sizes else None

    def watch(self, sampled: Any) -> Iterator[Any]:
        """Yield what a sampler yields: indices, or lists of them."""
        self._epoch += 1
        self._sizes.clear()
        first: list[Any] | None = []
        for each in sampled:
            is_batch = isinstance(each, (list, tuple))
            indices = each if is_batch else [each]
            self._sizes.append(len(indices) if is_batch else None)  # one item may be a batch
            if first is not None:
                first.extend(indices)
                if len(first) >= ORDER_SAMPLES:
                    self._tell(first[:ORDER_SAMPLES])
                    first = None
            yield each
        if first is not None and len(first) >= _FEWEST_SAMPLES:
            self._tell(first)

    def _tell(self, indices: list[Any]) -> None:
        digest = hashlib.blake2b(repr(list(map(str, indices))).encode(), digest_size=8)
        self._note_order(Order(self._epoch, digest.hexdigest()))


class _Watched:
    """Stands in for a sampler; all but the iteration is the sampler's own."""

    def __init__(self, sampler: Any, order: SampleOrder) -> None:
        self._sampler = sampler
        self._order = order

    def __iter__(self) -> Iterator[Any]:
        return self._order.watch(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle ask before there is a sampler
            raise AttributeError(name)
        return getattr(self.__dict__["_sampler"], name)


@contextmanager
def watched(loader: Any, order: SampleOrder) -> Iterator[None]:
    """While a DataLoader is asked for its iterator, let that iterator's sampler be watched.

    torch refuses to have the attribute set, lest the loader's other attributes disagree with it;
    here none does, and it is put back. Of any other loader, and of an iterable data set, nothing is
    seen.
    """
    # accelerate's loader, which transformers uses, has the one that is asked inside.
    asked = getattr(loader, "base_dataloader", loader)
    attributes = getattr(asked, "__dict__", {})
    name = "batch_sampler" if attributes.get("batch_sampler") is not None else "sampler"
    sampler = attributes.get(name)
    # torchdata's stateful loader asks its sampler's iterator for a state.
    if sampler is None or _counts_nothing(sampler) or hasattr(asked, "state_dict"):
        yield
        return
    attributes[name] = _Watched(sampler, order)
    try:
        yield
    finally:
        attributes[name] = sampler


def _counts_nothing(sampler: Any) -> bool:
    """Return whether it is an iterable data set's, which asks for batches until there are none."""
    return type(getattr(sampler, "sampler", sampler)).__name__ == "_InfiniteConstantSampler"
