"""What a training run does, rank by rank, for PyTorch loops and the frameworks around them.

`monitor` is the entry: `from tailwatch_tracing import TrainingMonitor`. The other modules know
nothing of each other, and those that compute with tensors are the only ones to import torch.
"""
