"""Running statistics of a model's BatchNorm layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

CHANNELS = 64
"""Of how many channels, over all layers, the statistics are compared."""


class BatchNormStatistics:
    """A fixed choice of channels, alike on all ranks that have the same model.

    Args:
        modules: All modules of the model.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        layers = [
            each
            for each in modules
            if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)
            and each.running_mean is not None
        ]
        chosen = layers[:: max(1, len(layers) // CHANNELS)][:CHANNELS]
        share = max(1, CHANNELS // max(1, len(chosen)))
        self._channels = [
            (each, slice(None, None, max(1, -(-each.num_features // share)))) for each in chosen
        ]

    def means(self) -> list[torch.Tensor]:
        """Return the running means, a tensor a layer."""
        return [layer.running_mean[channels] for layer, channels in self._channels]

    def variances(self) -> list[torch.Tensor]:
        """Return the running variances, a tensor a layer."""
        return [layer.running_var[channels] for layer, channels in self._channels]
