"""Small trainings on the CPU, run in the ranks; each returns what a test compares.

What is expected is computed here by other means than the monitor's: on copies of the model, by
torch's own functions, and over collectives, which the monitor does not use.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import urllib.request
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

from tailwatch_tracing import TrainingMonitor, clock, render_metrics, serve_metrics
from tailwatch_tracing.exposition import render_families
from tailwatch_tracing.serving import collect

SAMPLES = 64


def page() -> str:
    return render_metrics()[0].decode()


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(SAMPLES, 4, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True) ** 2)


def sgd(model: nn.Module, lr: float = 0.01) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


def mse(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def train(
    monitor: TrainingMonitor, model: nn.Module, optimizer: Any, loader: Any, epochs: int = 1
) -> None:
    """Train as the how-to does."""
    for _ in range(epochs):
        for batch in monitor.batches(loader):
            loss = mse(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.loss(loss)


def gathered(value: torch.Tensor) -> list[torch.Tensor]:
    every = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(every, value.contiguous())
    return every


def own_batches(batch_size: int = 8, **options: Any) -> DataLoader:
    sampler = DistributedSampler(dataset(), seed=3)
    return DataLoader(dataset(), batch_size=batch_size, sampler=sampler, **options)


# --- one rank ---


def plain_loop(every_steps: int = 1) -> dict[str, Any]:
    """Eight steps of one epoch; the expected values are of a second, unwatched training."""
    expected_losses = []
    model = small_model()
    optimizer = sgd(model)
    loader = DataLoader(dataset(), batch_size=8)
    for batch in loader:
        loss = mse(model, batch)
        loss.backward()
        expected_norm = get_total_norm([each.grad for each in model.parameters()]).item()
        optimizer.step()
        optimizer.zero_grad()
        expected_losses.append(loss.item())

    watched = small_model()
    optimizer = sgd(watched)
    monitor = TrainingMonitor(
        "plain",
        optimizer=optimizer,
        model=watched,
        every_steps=every_steps,
        expected_loss=lambda step: 10 / step,
    )
    train(monitor, watched, optimizer, loader)
    text = page()
    monitor.close()
    same = all(
        torch.equal(a, b) for a, b in zip(model.parameters(), watched.parameters(), strict=True)
    )
    return {
        "page": text,
        "after": page(),
        "losses": expected_losses,
        "norm": expected_norm,
        "same": same,
    }


def accumulation(accumulate: int = 4) -> str:
    """Eight batches of 8, a step every `accumulate`-th; the last epoch ends within a step."""
    model = small_model()
    optimizer = sgd(model, lr=0.02)
    monitor = TrainingMonitor("accumulation", optimizer=optimizer, every_steps=1)
    for index, batch in enumerate(monitor.batches(DataLoader(dataset(), batch_size=8)), 1):
        loss = mse(model, batch)
        (loss / accumulate).backward()
        if index % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        monitor.loss(loss)
    return page()


def not_finite() -> list[str]:
    """The third and the fifth of eight losses are none."""
    model = small_model()
    optimizer = sgd(model)
    monitor = TrainingMonitor("broken", optimizer=optimizer, every_steps=4)
    pages = []
    for index, batch in enumerate(monitor.batches(DataLoader(dataset(), batch_size=8)), 1):
        loss = mse(model, batch)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        told = {3: torch.tensor(float("nan")), 5: float("inf")}.get(index, torch.tensor(2.0))
        monitor.loss(told)
        pages.append(page())
    pages.append(page())
    return pages


def reused_loss() -> str:
    """Every step writes its loss into the same tensor, as a captured CUDA graph does."""
    loss = torch.zeros(())
    monitor = TrainingMonitor("graph", every_steps=4)
    for index in monitor.batches(range(5)):
        loss.fill_(float(index))
        monitor.loss(loss)
        with monitor.optimizer_step():
            pass
        loss.fill_(1000.0)
    return page()


def without_batches() -> str:
    """A loop that tells its losses, and whose loader the monitor does not know."""
    model = small_model()
    optimizer = sgd(model)
    monitor = TrainingMonitor("loose", optimizer=optimizer, every_steps=2)
    for index, batch in enumerate(DataLoader(dataset(), batch_size=16)):
        mse(model, batch).backward()
        optimizer.step()
        monitor.loss(torch.tensor(float(index)))
    return page()


def uneven_steps() -> str:
    """Between two readings, steps of 8, 12 and 2 samples."""
    monitor = TrainingMonitor("uneven", every_steps=4, data_parallel_size=3)
    for _ in monitor.batches([torch.ones(n) for n in (1, 8, 12, 2, 1)]):
        with monitor.optimizer_step():
            pass
    return page()


def only_not_finite() -> str:
    """All losses are none: there is no loss to show."""
    monitor = TrainingMonitor("broken", every_steps=1)
    for _ in monitor.batches([1, 2]):
        monitor.loss(float("nan"))
        with monitor.optimizer_step():
            pass
    return page()


def scaled(fused: bool = False, enabled: bool = True) -> dict[str, Any]:
    """Four steps with a real GradScaler; the gradients of the second are infinite."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=enabled)
    monitor = TrainingMonitor("scaled", optimizer=optimizer, scaler=scaler, every_steps=1)
    scales, norms = [], []
    batches = list(DataLoader(dataset(), batch_size=16))
    for index, batch in enumerate(monitor.batches(batches)):
        loss = mse(model, batch)
        reference = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        norms.append(get_total_norm(reference).item())
        scaler.scale(loss * float("inf") if index == 1 else loss).backward()
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        monitor.loss(loss)
    result = {"page": page(), "scales": scales, "norms": norms, "scale": scaler.get_scale()}
    monitor.close()
    result["released"] = "step" not in vars(scaler)
    return result


def clipped() -> dict[str, Any]:
    """Eight steps clipped to the median of their norms."""
    loader = DataLoader(dataset(), batch_size=8)
    model = small_model()
    optimizer = sgd(model, lr=0.0)
    norms = []
    for batch in loader:
        gradient = torch.autograd.grad(mse(model, batch), list(model.parameters()))
        norms.append(get_total_norm(gradient).item())
    limit = sorted(norms)[4]
    monitor = TrainingMonitor("clipped", optimizer=optimizer, every_steps=8)
    for batch in monitor.batches(loader):
        mse(model, batch).backward()
        monitor.grad_norm(clip_grad_norm_(model.parameters(), limit), max_norm=limit)
        optimizer.step()
        optimizer.zero_grad()
    return {"page": page(), "norms": norms, "limit": limit}


def closure() -> dict[str, Any]:
    """LBFGS computes its gradients within the step."""
    model = small_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=1)
    monitor = TrainingMonitor("closure", optimizer=optimizer, every_steps=1)
    batch = next(iter(DataLoader(dataset(), batch_size=SAMPLES)))
    norms = []

    def compute() -> torch.Tensor:
        optimizer.zero_grad()
        loss = mse(model, batch)
        loss.backward()
        norms.append(get_total_norm([each.grad for each in model.parameters()]).item())
        return loss

    for _ in monitor.batches([batch, batch]):
        monitor.loss(optimizer.step(compute))
    return {"page": page(), "norm": norms[-1]}


class Ticks:
    """A clock that is told to go on."""

    def __init__(self) -> None:
        self.now_ns = 10**9

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@contextmanager
def told_time() -> Iterator[Ticks]:
    ticks = Ticks()
    with mock.patch.object(clock, "now_ns", ticks):
        yield ticks


def phases() -> str:
    """Two steps of 0.5 s for data, 2 s to compute, 0.25 s for the optimizer; and a checkpoint."""
    with told_time() as ticks:

        def slow_loader() -> Iterator[int]:
            for index in range(2):
                ticks.advance(0.5)
                yield index

        model = small_model()
        optimizer = sgd(model)
        monitor = TrainingMonitor("phases", optimizer=optimizer)
        with mock.patch.object(
            optimizer, "_optimizer_step_code", lambda: ticks.advance(0.25), create=True
        ):
            for index in monitor.batches(slow_loader()):
                ticks.advance(2)
                optimizer.step()
                ticks.advance(0.125)
                if index == 1:
                    with monitor.phase("checkpoint"):
                        ticks.advance(4)
                    with monitor.phase("communication"):
                        ticks.advance(0.0625)
                    with monitor.pause():
                        ticks.advance(100)
        ticks.advance(1000)
        return page()


def slow_data_loader() -> dict[str, Any]:
    """A real loader of two processes whose data set takes 20 ms a sample, and computes nothing."""

    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 32

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.02)
            return torch.ones(1)

    monitor = TrainingMonitor("slow", every_steps=1)
    loader = DataLoader(Slow(), batch_size=4, num_workers=1, prefetch_factor=3)
    begin = time.perf_counter()
    for _ in monitor.batches(loader):
        pass
    return {"page": page(), "seconds": time.perf_counter() - begin}


def sample_counts() -> str:
    """The same 20 samples by four loaders, the last batch of 8 being one of 4."""

    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[torch.Tensor]:
            yield from torch.arange(20.0)

    twenty = TensorDataset(torch.arange(20.0))
    odd: dict[str, Any] = {"batch_size": 8, "collate_fn": lambda samples: [{"odd": samples}]}
    batch_of: dict[str, Any] = {
        "map": DataLoader(twenty, batch_size=8),
        "workers": DataLoader(twenty, batch_size=8, num_workers=2),
        "collated": DataLoader(twenty, **odd),
        "stream": DataLoader(Stream(), batch_size=8),
        "tensors": [{"x": torch.ones(8, 3)}, (torch.ones(8), 1), [torch.ones(4)]],
        "unknown": [object(), {}, torch.tensor(1.0)],
    }
    for name, loader in batch_of.items():
        for _ in TrainingMonitor(name).batches(loader):
            pass

    class Stateful(DataLoader):
        """As torchdata's: it asks its sampler's iterator for a state."""

        def __iter__(self) -> Any:
            assert type(self.batch_sampler) is BatchSampler
            return super().__iter__()

        def state_dict(self) -> dict[str, Any]:
            return {}

    for _ in TrainingMonitor("stateful").batches(Stateful(twenty, batch_size=8)):
        pass
    twos = TensorDataset(torch.ones(10, 2))
    for _ in TrainingMonitor("unbatched").batches(DataLoader(twos, batch_size=None)):
        pass
    monitor = TrainingMonitor("told")
    for _ in monitor.batches(["abc", "de"], samples=len):
        pass
    return page()


def persistent_order(set_epoch: bool) -> str:
    """Three epochs of a loader whose processes and iterator stay."""
    sampler = DistributedSampler(dataset(), num_replicas=1, rank=0, seed=3)
    loader = DataLoader(
        dataset(), batch_size=8, sampler=sampler, num_workers=1, persistent_workers=True
    )
    monitor = TrainingMonitor("persistent")
    before = dict(vars(loader))
    for epoch in range(3):
        if set_epoch:
            sampler.set_epoch(epoch)
        for _ in monitor.batches(loader):
            pass
    assert vars(loader)["batch_sampler"] is before["batch_sampler"]
    reference = weakref.ref(loader)
    del loader
    assert reference() is None  # else its processes would outlive it
    return page()


def leaves_errors_alone() -> dict[str, Any]:
    """What a loop raises comes out; what the monitor raises does not."""
    seen = []
    for error in (ValueError("of the loop"), KeyboardInterrupt()):
        try:
            for _ in TrainingMonitor("errors").batches([1]):
                raise error
        except BaseException as raised:
            seen.append(raised is error)

    def broken_loader() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    try:
        list(TrainingMonitor("errors").batches(broken_loader()))
    except OSError as raised:
        seen.append(str(raised) == "disk")
    model = small_model()
    optimizer = sgd(model)
    monitor = TrainingMonitor("errors", optimizer=optimizer, every_steps=1)
    with mock.patch("tailwatch_tracing.training.steps.total_norm", side_effect=ZeroDivisionError):
        train(monitor, model, optimizer, DataLoader(dataset(), batch_size=8))
    monitor.loss(object())  # type: ignore[arg-type]
    failing = TrainingMonitor("errors")
    try:
        with failing.optimizer_step():
            raise ValueError
    except ValueError:
        seen.append(True)
    return {"page": page(), "seen": seen}


class _Reads:
    """How often, and in which step, a tensor's value is asked for or a device waited for."""

    METHODS = ("item", "tolist", "__float__", "__bool__", "__int__", "cpu", "numpy", "nonzero")

    def __init__(self) -> None:
        self.step = 0
        self.by_step: Counter[int] = Counter()

    def __enter__(self) -> _Reads:
        self._patches = [self._counting(torch.Tensor, name) for name in self.METHODS]
        self._patches.append(self._counting(torch.cuda, "synchronize"))
        self._patches.append(self._counting(torch.cuda.Event, "synchronize"))
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *error: object) -> None:
        for patch in self._patches:
            patch.stop()

    def _counting(self, where: Any, name: str) -> Any:
        original = getattr(where, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.by_step[self.step] += 1
            return original(*args, **kwargs)

        return mock.patch.object(where, name, counting)


def reads(every_steps: int, watched: bool) -> dict[str, int]:
    """Sixty steps with everything on; by step, how often a value was asked for."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    batches = [next(iter(DataLoader(dataset(), batch_size=8)))] * 60
    if watched:
        monitor = TrainingMonitor(
            "reads", optimizer=optimizer, model=model, every_steps=every_steps
        )
    with _Reads() as reads:
        for batch in monitor.batches(batches) if watched else batches:
            reads.step += 1
            loss = nn.functional.mse_loss(model(batch[0]), batch[1])
            loss.backward()
            if watched:
                monitor.grad_norm(clip_grad_norm_(model.parameters(), 1.0), max_norm=1.0)
                monitor.loss(loss)
            else:
                clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return {str(step): count for step, count in reads.by_step.items()}


def late_device() -> list[list[float]]:
    """A device whose copies are complete only when its event says so."""
    from tailwatch_tracing.training.readings import Readings

    class Event:
        is_complete = False

        def query(self) -> bool:
            return self.is_complete

        def synchronize(self) -> None:
            self.is_complete = True

    events: list[Event] = []

    def mark(device: torch.device) -> Event:
        events.append(Event())
        return events[-1]

    readings = Readings(mark)
    got: list[float] = []
    steps = []
    with mock.patch("tailwatch_tracing.training.readings._is_host", lambda device: False):
        readings.take([torch.tensor(1.0), torch.tensor([2.0, 3.0])], got.extend)
        readings.take([torch.tensor(4.0)], got.extend)
    for complete in (None, 1, 0):  # in order: the second is not read before the first
        if complete is not None:
            events[complete].is_complete = True
        readings.read()
        steps.append(list(got))
    return steps


# --- two ranks ---


def distributed(communicate: str = "ddp") -> dict[str, Any]:
    """One step of 8 samples a rank; the gradients are averaged, or not by rank 1, or by none."""
    model = small_model()
    batch = next(iter(own_batches()))
    alone = torch.autograd.grad(mse(model, batch), list(model.parameters()))
    local = get_total_norm(alone)
    averaged = [sum(gathered(each)) / dist.get_world_size() for each in alone]
    expected = {"local": local.item(), "reduced": get_total_norm(averaged).item()}

    wrapped: nn.Module = model
    if communicate.startswith("ddp"):
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.0001)
    optimizer = sgd(model)
    monitor = TrainingMonitor("job", optimizer=optimizer, model=wrapped, every_steps=1)
    if communicate == "ddp":
        monitor.watch_communication(wrapped)
    forward = model if communicate == "ddp_bypassed" else wrapped
    for each in monitor.batches([batch]):
        loss = mse(forward, each)
        loss.backward()
        if communicate == "by hand, not rank 1":
            with monitor.phase("communication"):
                for parameter in model.parameters():
                    average = parameter.grad.clone()
                    dist.all_reduce(average, dist.ReduceOp.SUM)
                    if monitor.rank == 0:
                        parameter.grad = average / dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        monitor.loss(loss)
    return {"page": page(), "expected": expected}


def ddp_is_unchanged() -> bool:
    """A training of 16 steps ends at the same weights with the monitor and without."""
    ends = []
    for watch in (False, True):
        model = small_model()
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.0001)
        optimizer = sgd(model)
        loader = own_batches()
        if watch:
            monitor = TrainingMonitor("same", optimizer=optimizer, model=wrapped)
            monitor.watch_communication(wrapped)
            train(monitor, wrapped, optimizer, loader, epochs=4)
        else:
            for _ in range(4):
                for batch in loader:
                    mse(wrapped, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()
        ends.append([each.detach().clone() for each in model.parameters()])
    return all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def scaled_ddp() -> dict[str, Any]:
    """Norms before and after communication, of gradients that are scaled."""
    model = small_model()
    batch = next(iter(own_batches()))
    alone = torch.autograd.grad(mse(model, batch), list(model.parameters()))
    averaged = [sum(gathered(each)) / dist.get_world_size() for each in alone]
    wrapped = DistributedDataParallel(model)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    monitor = TrainingMonitor("job", optimizer=optimizer, scaler=scaler, every_steps=1)
    monitor.watch_communication(wrapped)
    for each in monitor.batches([batch]):
        scaler.scale(mse(wrapped, each)).backward()
        scaler.step(optimizer)
        scaler.update()
    expected = {"local": get_total_norm(alone).item(), "reduced": get_total_norm(averaged).item()}
    return {"page": page(), "expected": expected}


def grown_batch(accumulate: int) -> str:
    """Steps of 4 samples times `accumulate` in each of two ranks, at one learning rate."""
    model = small_model()
    wrapped = DistributedDataParallel(model)
    optimizer = sgd(model, lr=0.03)
    monitor = TrainingMonitor("grown", optimizer=optimizer, every_steps=2)
    monitor.watch_communication(wrapped)
    for index, batch in enumerate(monitor.batches(own_batches(batch_size=4)), 1):
        is_last = index % accumulate == 0
        if is_last:
            mse(wrapped, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with wrapped.no_sync():
                mse(wrapped, batch).backward()
    return page()


def sample_order(sampler: str, epochs: int = 4) -> str:
    """Epochs of 128 samples, chosen in different ways; DDP keeps the ranks in step."""
    options: dict[str, Any] = {"batch_size": 8}
    samples = ConcatDataset([dataset(), dataset()])
    if sampler == "shuffle":  # as without a DistributedSampler: the same seed everywhere
        torch.manual_seed(7)
        options["shuffle"] = True
    else:
        options["sampler"] = DistributedSampler(samples, seed=3)
    loader = DataLoader(samples, **options)
    model = DistributedDataParallel(small_model())
    optimizer = sgd(model)
    monitor = TrainingMonitor("order", optimizer=optimizer, every_steps=2)
    for epoch in range(epochs):
        if sampler == "set_epoch":
            options["sampler"].set_epoch(epoch)
        train(monitor, model, optimizer, loader)
    return page()


def batch_norm(shift: float, stretch: float) -> dict[str, Any]:
    """Three steps on inputs that are shifted or stretched in rank 1."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = sgd(model)
    monitor = TrainingMonitor("bn", optimizer=optimizer, model=wrapped, every_steps=2)
    batch = next(iter(DataLoader(dataset(), batch_size=16)))
    rank = dist.get_rank()
    batches = [(batch[0] * (1 + stretch * rank) + shift * rank, batch[1])] * 3
    expected = 0.0
    for step, each in enumerate(monitor.batches(batches), 1):
        mse(wrapped, each).backward()
        if step == 2:
            layer = model[0]
            means = torch.stack(gathered(layer.running_mean.double()))
            variances = torch.stack(gathered(layer.running_var.double()))
            of_means = means.std(0) / variances.mean(0).sqrt()
            of_deviations = variances.sqrt().log().std(0)
            expected = max(
                of_means.square().mean().sqrt().item(), of_deviations.square().mean().sqrt().item()
            )
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
    return {"page": page(), "expected": expected}


def straggler() -> str:
    """Rank 1 computes 0.1 s longer in each of four steps; rank 0 waits for it."""
    model = small_model()
    wrapped = DistributedDataParallel(model)
    optimizer = sgd(model)
    monitor = TrainingMonitor("straggler", optimizer=optimizer)
    monitor.watch_communication(wrapped)
    dist.barrier()
    for batch in monitor.batches(own_batches()):
        loss = mse(wrapped, batch)
        time.sleep(0.02 + 0.1 * monitor.rank)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return page()


def only_rank_0_watches() -> str:
    """A monitor in one rank holds nobody up."""
    model = small_model()
    wrapped = DistributedDataParallel(model)
    optimizer = sgd(model)
    if dist.get_rank() == 0:
        monitor = TrainingMonitor("lonely", optimizer=optimizer, model=wrapped, every_steps=1)
        train(monitor, wrapped, optimizer, own_batches())
    else:
        for batch in own_batches():
            mse(wrapped, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return page()


def sharded(how: str, told: str = "") -> dict[str, Any]:
    """One step; the expected norms are of the whole gradient, computed on a copy."""
    model = small_model()
    batch = next(iter(own_batches()))
    alone = torch.autograd.grad(mse(model, batch), list(model.parameters()))
    averaged = [sum(gathered(each)) / dist.get_world_size() for each in alone]
    whole = get_total_norm(averaged).item()
    wrapped: nn.Module
    if how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        wrapped = fully_shard(model, mesh=mesh)
        optimizer: Any = sgd(wrapped)
    elif how == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        optimizer = sgd(wrapped)
    else:
        wrapped = DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.SGD, lr=0.01
        )
    monitor = TrainingMonitor("sharded", optimizer=optimizer, model=wrapped, every_steps=1)
    for each in monitor.batches([batch]):
        loss = mse(wrapped, each)
        loss.backward()
        if told == "dtensor":
            monitor.grad_norm(clip_grad_norm_(wrapped.parameters(), 1e9))
        elif told and how == "fsdp2":
            monitor.grad_norm(clip_grad_norm_(wrapped.parameters(), 1e9).full_tensor())
        elif told:
            monitor.grad_norm(wrapped.clip_grad_norm_(1e9))
        optimizer.step()
        optimizer.zero_grad()
        monitor.loss(loss)
    return {"page": page(), "whole": whole}


def whole_page() -> str:
    """A page with every metric, of numbers that are exact in binary; ranks have gradients 3 and 5.

    Four steps of 0.25 s for data, 1 s to compute, and so on; the second step is skipped.
    """
    rank = dist.get_rank()
    inputs = torch.full((2, 1), 3.0 + 2 * rank)
    torch.manual_seed(7)
    model = nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 1, bias=False))
    model[1].weight.data.fill_(1.0)
    model[0].running_mean.fill_(float(rank))
    model[0].running_var.fill_(2.0)
    model.eval()  # its statistics stay
    layer = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    optimizer = sgd(layer, lr=0.125)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with told_time() as ticks:

        class Slow(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return 8

            def __getitem__(self, index: int) -> torch.Tensor:
                ticks.advance(0.125)
                return inputs[0]

        monitor = TrainingMonitor(
            "resnet50",
            optimizer=optimizer,
            model=model,
            scaler=scaler,
            every_steps=1,
            expected_loss=lambda step: 4 / step,
        )
        monitor.watch_communication(layer)
        loader = DataLoader(Slow(), batch_size=2)
        for epoch in range(2):
            for index, batch in enumerate(monitor.batches(loader)):
                loss = layer(batch).mean()
                is_lost = epoch == 0 and index == 1
                scaler.scale(loss * float("inf") if is_lost else loss).backward()
                scaler.unscale_(optimizer)
                norm = clip_grad_norm_(layer.parameters(), 2.0)
                monitor.grad_norm(norm, max_norm=2.0)
                ticks.advance(1)
                with monitor.phase("communication"):
                    ticks.advance(0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                told = float("nan") if is_lost else 2.5
                monitor.loss(torch.tensor(told))
                dist.barrier()
            with monitor.phase("checkpoint"):
                ticks.advance(2)
        text = render_families(each for each in collect() if each.name.startswith("training_"))
    return text.decode()


def refusals() -> dict[str, str]:
    """What a monitor refuses, by what it says."""

    class Hidden:
        """As DeepSpeed's optimizers."""

    monitor = TrainingMonitor("refusing")
    attempts: dict[str, Any] = {
        "name": lambda: TrainingMonitor(""),
        "every_steps": lambda: TrainingMonitor("job", every_steps=0),
        "optimizer": lambda: TrainingMonitor("job", optimizer=Hidden()),
        "phase": lambda: monitor.phase("backward").__enter__(),
        "push": lambda: monitor.push_to("127.0.0.1:9", every_seconds=0),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (ValueError, TypeError) as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def shared_page(directory: str, port: int) -> str | None:
    """Both ranks serve at one port, through a directory; rank 0 returns what the port answers."""
    model = small_model()
    optimizer = sgd(model)
    monitor = TrainingMonitor("together", optimizer=optimizer, every_steps=1)
    train(monitor, model, optimizer, own_batches())
    server = serve_metrics(port, workers_dir=directory)
    dist.barrier()
    text = None
    if monitor.rank == 0:
        time.sleep(0.6)  # a sibling's gauges are told four times a second
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    dist.barrier()
    server.close()
    return text


def example(source: str) -> str:
    """Run a how-to's example where it may leave files."""
    namespace: dict[str, Any] = {"__name__": "example"}
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        with mock.patch.object(dist, "init_process_group"):  # there is one
            exec(compile(source, "docs/how-to/train.md", "exec"), namespace)
        text = page()
    if "server" in namespace:
        namespace["server"].close()
    return text
