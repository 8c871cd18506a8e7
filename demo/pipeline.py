"""A request's way through the service: queue -> preprocess -> batch -> inference -> label."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from threading import get_native_id

from demo.batcher import DynamicBatcher
from demo.classifier import Classifier, Label, Scores, Tokens
from demo.device_model import SimulatedGpu
from demo.faults import FaultSwitch
from tailwatch_tracing import BatchPlace, RequestBatcher, RequestQueue, stage

MAX_BATCH = 6
BATCH_WINDOW_SECONDS = 0.010
BATCHES_PER_DEVICE = 3  # one runs, two are queued behind it: the device outlasts a busy host


class QueueFull(Exception):
    """The request was not admitted: as many as the limit are waiting."""


class Pipeline:
    """Runs requests through the model on one event loop.

    At most four batches per device are past the queue: three on the device and one that fills.
    Everybody else waits in the queue, so its depth is the number of requests that wait for a
    thread or a device, and its limit is the service's back-pressure.

    Args:
        classifier: the model and its pre- and postprocessing.
        gpus: devices that batches take their time on; none: the CPU's own time counts.
        faults: injects what is switched on into the two steps and the queue's limit.
    """

    def __init__(
        self, classifier: Classifier, gpus: Sequence[SimulatedGpu], faults: FaultSwitch
    ) -> None:
        self._classifier = classifier
        self._gpus = gpus
        self._faults = faults
        self._queue = RequestQueue("preprocess")
        concurrency = BATCHES_PER_DEVICE * max(1, len(gpus))
        self._room = asyncio.Semaphore(MAX_BATCH * (concurrency + 1))
        self._preprocess_turn = asyncio.Lock()
        self._preprocess_thread = ThreadPoolExecutor(
            1, thread_name_prefix="preprocess", initializer=name_this_thread("preprocess")
        )
        self._batches = RequestBatcher(
            "inference", max_size=MAX_BATCH, window_seconds=BATCH_WINDOW_SECONDS
        )
        self._batcher: DynamicBatcher[BatchPlace[Tokens], Scores] = DynamicBatcher(
            self._batches.wrap(self._infer),
            max_batch=MAX_BATCH,
            window_seconds=BATCH_WINDOW_SECONDS,
            concurrency=concurrency,
        )

    @property
    def capacity_per_second(self) -> float | None:
        """Return requests per second at full batches; None where no device model limits them."""
        if not self._gpus:
            return None
        return sum(MAX_BATCH / gpu.spec.kernel_seconds(MAX_BATCH) for gpu in self._gpus)

    async def classify(self, content: bytes) -> Label:
        """Return the label of a file's content.

        Raises:
            QueueFull: the queue's limit is reached.
        """
        limit = self._faults.active.queue_limit
        if limit is not None and self._queue.depth >= limit:
            self._queue.reject()
            raise QueueFull(f"{limit} requests are waiting, the limit is {limit}")
        async with AsyncExitStack() as room:
            async with AsyncExitStack() as turn:
                with self._queue.enter():
                    await room.enter_async_context(self._room)
                    await turn.enter_async_context(self._preprocess_turn)
                with stage("preprocess"):
                    prepared = await asyncio.get_running_loop().run_in_executor(
                        self._preprocess_thread, self._preprocess, content
                    )
            if isinstance(prepared, Label):
                return prepared
            async with self._batches.join(prepared) as place:
                member = self._batcher.submit(place)
                await member.started
                scores = await member.result
        with stage("postprocess"):
            self._faults.in_postprocess()
            return self._classifier.postprocess(scores)

    async def close(self) -> None:
        """Finish the batches that run and end the threads."""
        await self._batcher.close()
        self._preprocess_thread.shutdown()

    def _preprocess(self, content: bytes) -> Tokens | Label:
        self._faults.in_preprocess()
        return self._classifier.preprocess(content)

    @stage("inference")
    def _infer(self, batch: Sequence[Tokens]) -> list[Scores]:
        if not self._gpus:
            return self._classifier.infer(batch)
        # The answer is the real model's. The CPU computes it while the simulated device is busy.
        gpu = min(self._gpus, key=lambda gpu: gpu.free_at)
        done_at = gpu.launch(
            items=len(batch),
            received_bytes=sum(tokens.nbytes for tokens in batch),
            sent_bytes=len(batch) * self._classifier.scores_bytes,
        )
        scores = self._classifier.infer(batch)
        gpu.wait_until(done_at)
        return scores


def name_this_thread(name: str) -> Callable[[], None]:
    """Return an initializer that gives the calling thread a name the kernel shows, as in top."""

    def initialize() -> None:
        # Python sets only its own name before 3.14. Without /proc there is nothing to set.
        with suppress(OSError):
            Path(f"/proc/self/task/{get_native_id()}/comm").write_text(name)

    return initialize
