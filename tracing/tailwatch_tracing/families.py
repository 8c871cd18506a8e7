"""Every metric that the library publishes, in the order of the page.

A metric is declared here and nowhere else: the page, the sum over workers and the reference come
from these declarations.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

NANOSECONDS = 10**9
"""What a cell of nanoseconds is divided by to give seconds."""

RATIO_UNIT = 10**6
"""What a cell of millionths is divided by to give a ratio."""

# Hundredths of a millisecond. Neighbours are at most a ratio of 1.2 apart; usual objectives (0.1,
# 0.2, 0.25, 0.5, 1, 2, 2.5, 5, 10, 30 and 60 s) are edges, so that a share under them is exact.
_DECADE = (100, 120, 144, 170, 200, 225, 250, 300, 350, 420, 500, 600, 700, 840)
EDGES_NS: tuple[int, ...] = (
    *(step * 10**decade * 10_000 for decade in range(5) for step in _DECADE),
    100 * 10**9,
    120 * 10**9,
)
"""Upper bounds of the latency buckets in nanoseconds, 1 ms to 120 s."""

DEFAULT_SERIES_LIMIT = 2000
"""Label sets of a metric with the label `route`."""


class Grid(NamedTuple):
    """Upper bounds of a histogram's buckets, ascending, in the unit of its cells.

    `unit` is how many of it make one on the page.
    """

    edges: tuple[int, ...]
    unit: int

    @property
    def published(self) -> tuple[float, ...]:
        """The bounds as the page has them."""
        return tuple(edge / self.unit for edge in self.edges)


LATENCY = Grid(EDGES_NS, NANOSECONDS)
LIFETIME = Grid(
    tuple(
        milliseconds * 10**6
        for milliseconds in (
            *(100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000),
            *(600_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 43_200_000, 86_400_000),
        )
    ),
    NANOSECONDS,
)
"""Connections live from 0.1 s to a day."""
COUNT = Grid(
    (*(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512), 768, 1024), 1
)
"""Members of a batch: powers of two, and what is halfway between."""
RATIO = Grid(
    tuple(
        thousandths * RATIO_UNIT // 1000
        for thousandths in (
            *(0, 10, 20, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 550, 600, 650, 700, 750),
            *(800, 820, 840, 860, 880, 900, 910, 920, 930, 940, 950, 960, 970, 980, 990, 1000),
        )
    ),
    RATIO_UNIT,
)
"""0 to 1, finest near 1, where similarities lie."""


class Metric(NamedTuple):
    """One family.

    Args:
        name: Full name, as in the page.
        kind: Of counters and histograms a process keeps cells; a gauge is a level that it tells.
        help: One sentence.
        labels: Names beside `service`.
        row: Closed set of the last label's values: one cell holds a number for each, all of them
            on the page from the start.
        unit: What a counter's cell is divided by on the page.
        grid: A histogram's buckets.
        across_workers: How a gauge of several processes becomes one; cells are always summed.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    row: tuple[str, ...] = ()
    unit: int = 1
    grid: Grid | None = None
    across_workers: Literal["sum", "max"] = "sum"


REQUESTS = Metric(
    "inference_requests_total",
    "counter",
    "Finished requests. route is the template, __unmatched__ without one and __other__ beyond "
    "the series limit; an unknown method is _OTHER. status is the code sent, 500 for an exception "
    "before the response, 499 for a cancellation before it or a failure after the client had left.",
    ("route", "method", "status", "outcome"),
)
OUTCOMES = Metric(
    "inference_outcomes_total",
    "counter",
    "Finished requests by outcome only, each there from the start. Errors for an objective are "
    "error, error_midstream, timeout and rejected.",
    ("outcome",),
    row=(
        "ok",
        "client_error",
        "error",
        "error_midstream",
        "client_disconnect",
        "timeout",
        "cancelled",
        "rejected",
    ),
)
"""Derived from REQUESTS, so that the two cannot disagree; a service's own cell stays 0."""
REQUEST_DURATION = Metric(
    "inference_request_duration_seconds",
    "histogram",
    "From a request's arrival to its last body message, without background tasks; admitted "
    "requests only.",
    ("route",),
    grid=LATENCY,
)
RESPONSE_START = Metric(
    "inference_time_to_response_start_seconds",
    "histogram",
    "From a request's arrival to the start of its response, of responses in several messages: "
    "streams, server-sent events, large files. One that comes in one message starts when it "
    "ends.",
    ("route",),
    grid=LATENCY,
)
FIRST_CHUNK = Metric(
    "inference_time_to_first_chunk_seconds",
    "histogram",
    "From a request's arrival to the first body message that is not empty, of the same "
    "responses: the time to the first token of a model that streams.",
    ("route",),
    grid=LATENCY,
)
CHUNK_GAP = Metric(
    "inference_chunk_gap_seconds",
    "histogram",
    "Between one such message and the next, observed as they are sent: the time per token, and "
    "where a stream stalls.",
    ("route",),
    grid=LATENCY,
)
BACKGROUND = Metric(
    "inference_background_seconds",
    "histogram",
    "For how long the application went on after the last body message, if more than 1 ms: "
    "background tasks, and what middlewares do afterwards.",
    ("route",),
    grid=LATENCY,
)
UPSTREAM_WAIT = Metric(
    "inference_upstream_wait_seconds",
    "histogram",
    "From a trusted proxy's X-Request-Start to the arrival here: the proxy's queue, the listen "
    "backlog, and a blocked event loop.",
    grid=LATENCY,
)
IN_FLIGHT = Metric(
    "inference_requests_in_flight", "gauge", "Requests that have arrived and not finished."
)
OLDEST_IN_FLIGHT = Metric(
    "inference_oldest_in_flight_seconds",
    "gauge",
    "Age of the oldest request in flight, 0 without one: a hang never finishes.",
    across_workers="max",
)

WEBSOCKET_CONNECTIONS = Metric(
    "inference_websocket_connections",
    "gauge",
    "Websockets that have arrived and not closed.",
)
WEBSOCKET_DURATION = Metric(
    "inference_websocket_duration_seconds",
    "histogram",
    "From the arrival of a websocket that was accepted to its close.",
    grid=LIFETIME,
)
WEBSOCKET_CLOSES = Metric(
    "inference_websocket_closes_total",
    "counter",
    "Websockets closed, by the close code of whichever side closed first: 1005 is none given, "
    "1006 a broken connection or an application that just ended, 1011 one that failed. Three "
    "digits are the HTTP status with which the handshake was refused.",
    ("code",),
)

STAGE_DURATION = Metric(
    "inference_stage_duration_seconds",
    "histogram",
    "Wall time of each interval of a stage. An implicit stage (ingress, postprocess, "
    "unattributed) has one interval per request, the sum of its pieces.",
    ("stage",),
    grid=LATENCY,
)
STAGE_SECONDS = Metric(
    "inference_stage_seconds_total",
    "counter",
    "Exclusive time: every instant of a request is in exactly one stage, so stages add up to "
    "request time. slow is true for requests over the objective.",
    ("stage", "slow"),
    row=("false", "true"),
    unit=NANOSECONDS,
)
STAGE_CPU = Metric(
    "inference_stage_cpu_seconds_total",
    "counter",
    "Exclusive CPU time of explicit stages, of those intervals in which it is certain that "
    "nothing else ran in their thread; absent while there is none.",
    ("stage",),
    unit=NANOSECONDS,
)

DOWNSTREAM = Metric(
    "inference_downstream_seconds",
    "histogram",
    "Time of each call to a database, a retrieval service, another model, observed when it "
    "ends; failed ones, too.",
    ("target",),
    grid=LATENCY,
)

QUEUE_DEPTH = Metric("inference_queue_depth", "gauge", "Requests waiting in a queue.", ("queue",))
QUEUE_WAIT = Metric(
    "inference_queue_wait_seconds",
    "histogram",
    "How long those waited in a queue that have left it.",
    ("queue",),
    grid=LATENCY,
)
REJECTED = Metric(
    "inference_rejected_total",
    "counter",
    "Requests that a queue refused; the reason full is there from the start.",
    ("queue", "reason"),
)

BATCH_SIZE = Metric(
    "inference_batch_size",
    "histogram",
    "Members of each batch that was run.",
    ("batcher",),
    grid=COUNT,
)
BATCH_WAIT = Metric(
    "inference_batch_wait_seconds",
    "histogram",
    "How long each member waited until its batch was run, or until it left.",
    ("batcher",),
    grid=LATENCY,
)
BATCH_PADDING = Metric(
    "inference_batch_padding_ratio",
    "histogram",
    "What share of each batch is padding, where it is told.",
    ("batcher",),
    grid=RATIO,
)
BATCH_MAX_SIZE = Metric(
    "inference_batch_max_size",
    "gauge",
    "Most members of a batch, as configured.",
    ("batcher",),
    across_workers="max",
)
BATCH_WINDOW = Metric(
    "inference_batch_window_seconds",
    "gauge",
    "Longest time that a member waits for others, as configured.",
    ("batcher",),
    across_workers="max",
)

CACHE_REQUESTS = Metric(
    "inference_cache_requests_total",
    "counter",
    "Lookups in a cache of results: answered by the very same request, by a similar one, or not.",
    ("cache", "result"),
    row=("exact", "semantic", "miss"),
)
CACHE_SIMILARITY = Metric(
    "inference_cache_similarity_ratio",
    "histogram",
    "Similarity of the cached request whose result was used, of each semantic hit.",
    ("cache",),
    grid=RATIO,
)
CASCADE_REQUESTS = Metric(
    "inference_cascade_requests_total",
    "counter",
    "Requests by the tier of a cascade that answered them.",
    ("tier",),
)
TOKENS = Metric(
    "inference_tokens_total",
    "counter",
    "Tokens of prompts and of output, both there from the first tokens on.",
    ("kind",),
    row=("prompt", "output"),
)
TIME_PER_OUTPUT_TOKEN = Metric(
    "inference_time_per_output_token_seconds",
    "histogram",
    "One value a request: from its first output token to its last, over the tokens after the "
    "first. In a stream these are the first and the last chunk that is not empty.",
    ("route",),
    grid=LATENCY,
)

MODEL_INFO = Metric(
    "inference_model_info",
    "gauge",
    "1 for each model and version that is loaded; in a hot swap both versions are.",
    ("model", "version"),
    across_workers="max",
)
MODEL_LOAD = Metric(
    "inference_model_load_seconds",
    "gauge",
    "How long loading such a model took, the longest of several; absent where that was not "
    "measured.",
    ("model", "version"),
    across_workers="max",
)

SLO = Metric(
    "inference_slo_seconds",
    "gauge",
    "Configured latency objective, on an edge of the latency buckets.",
    across_workers="max",
)
CLIENT_TIMEOUT = Metric(
    "inference_client_timeout_seconds",
    "gauge",
    "Configured time after which clients give up.",
    across_workers="max",
)
GPU_INFO = Metric(
    "inference_gpu_info",
    "gauge",
    "1 for each GPU that the service computes on.",
    ("uuid",),
    across_workers="max",
)

EVENT_LOOP_LOST = Metric(
    "python_event_loop_lost_seconds_total",
    "counter",
    "Time by which the event loop ran timers late, beyond 5 ms each; watched from the first "
    "request on.",
    unit=NANOSECONDS,
)
EVENT_LOOP_LAG_MAX = Metric(
    "python_event_loop_lag_max_seconds",
    "gauge",
    "Longest such delay of the last 60 s; a scrape does not reset it.",
    across_workers="max",
)
GIL_WAIT = Metric(
    "python_gil_wait_seconds_total",
    "counter",
    "Time that a thread which asks now and again waited for the interpreter's lock (GIL).",
    unit=NANOSECONDS,
)
GIL_WAIT_MAX = Metric(
    "python_gil_wait_max_seconds",
    "gauge",
    "Longest such wait of the last 60 s.",
    across_workers="max",
)
GC_PAUSE = Metric(
    "python_gc_pause_seconds_total",
    "counter",
    "Time in garbage collection, all generations.",
    unit=NANOSECONDS,
)
GC_PAUSE_MAX = Metric(
    "python_gc_pause_max_seconds",
    "gauge",
    "Longest collection of the last 60 s.",
    across_workers="max",
)

THREADPOOL_BUSY = Metric(
    "python_threadpool_busy",
    "gauge",
    "Calls that a thread pool runs.",
    ("pool",),
)
THREADPOOL_LIMIT = Metric(
    "python_threadpool_limit",
    "gauge",
    "Calls that a thread pool may run at once.",
    ("pool",),
)
THREADPOOL_WAITING = Metric(
    "python_threadpool_waiting",
    "gauge",
    "Calls that wait for a thread.",
    ("pool",),
)
THREADPOOL_WAIT = Metric(
    "python_threadpool_wait_seconds_total",
    "counter",
    "Time that calls waited for a thread: it grows by those that wait, each second by one, and "
    "by the last wait of those that were cancelled.",
    ("pool",),
    unit=NANOSECONDS,
)
WORKERS = Metric(
    "python_workers",
    "gauge",
    "Workers of this service. configured: what gunicorn, uvicorn or hypercorn was told, where "
    "that can be seen. alive: workers that serve now, with a workers directory.",
    ("state",),
    across_workers="max",
)

CGROUP_CPU_LIMIT = Metric(
    "cgroup_cpu_limit_cores",
    "gauge",
    "CPU quota of this process's control group, or of the tightest one above it that is visible"
    " here.",
    across_workers="max",
)
CGROUP_CPU_USAGE = Metric(
    "cgroup_cpu_usage_seconds_total",
    "counter",
    "CPU time of that group, other processes in it included.",
)
CGROUP_CPU_THROTTLED = Metric(
    "cgroup_cpu_throttled_seconds_total",
    "counter",
    "Time that the group's threads stood still because its quota was used up.",
)
CGROUP_CPU_PERIODS = Metric(
    "cgroup_cpu_periods_total",
    "counter",
    "Periods in which the group ran.",
)
CGROUP_CPU_THROTTLED_PERIODS = Metric(
    "cgroup_cpu_throttled_periods_total",
    "counter",
    "Periods in which the group was throttled.",
)

CUDA_MEMORY = Metric(
    "torch_cuda_memory_bytes",
    "gauge",
    "Device memory of PyTorch's allocator in this process. allocated: held by tensors. "
    "reserved: taken from the driver. active: allocated, or freed but still used by a stream. "
    "inactive_split: free pieces of blocks in use, which cannot be given back. limit: the "
    "quota, where one is set.",
    ("uuid", "kind"),
)
CUDA_LARGEST_FREE_BLOCK = Metric(
    "torch_cuda_largest_free_block_bytes",
    "gauge",
    "Largest block that the allocator has reserved and not given out, those of captured CUDA "
    "graphs left out.",
    ("uuid",),
    across_workers="max",
)
CUDA_ALLOC_RETRIES = Metric(
    "torch_cuda_alloc_retries_total",
    "counter",
    "Failed cudaMalloc calls after which the allocator emptied its cache and tried again.",
    ("uuid",),
)
CUDA_OOMS = Metric(
    "torch_cuda_ooms_total",
    "counter",
    "Out-of-memory errors that the allocator raised.",
    ("uuid",),
)

_OF_RANK = ("job_name", "rank")

TRAINING_PHASE = Metric(
    "training_phase_seconds_total",
    "counter",
    "Time of the training loop: its phases add up to it. communication is what was waited for, not "
    "what ran beside compute. On CUDA it is the GPU's time.",
    (*_OF_RANK, "phase"),
    row=("data", "compute", "communication", "optimizer", "checkpoint"),
    unit=NANOSECONDS,
)
TRAINING_STEPS = Metric(
    "training_steps_total",
    "counter",
    "Optimizer steps, those that a loss scaler skipped included; micro-steps of an accumulation "
    "are not.",
    _OF_RANK,
)
TRAINING_SAMPLES = Metric(
    "training_samples_total", "counter", "Samples that this rank has taken in.", _OF_RANK
)
TRAINING_LOSS = Metric(
    "training_loss",
    "gauge",
    "Mean of the finite losses since the reading before.",
    _OF_RANK,
    across_workers="max",
)
TRAINING_EXPECTED_LOSS = Metric(
    "training_expected_loss",
    "gauge",
    "Loss that the given curve has at this step.",
    _OF_RANK,
    across_workers="max",
)
TRAINING_NONFINITE = Metric(
    "training_nonfinite_total", "counter", "Losses that were infinite or not a number.", _OF_RANK
)
TRAINING_GRAD_NORM = Metric(
    "training_grad_norm",
    "gauge",
    "L2 norm of the gradient, unscaled, of the step that was read. kind is local before the "
    "average over ranks and where there is one rank, reduced as the optimizer takes it, alike on "
    "all ranks of a dp_group, and sharded of a rank's part, which is nothing to compare.",
    (*_OF_RANK, "dp_group", "kind"),
    across_workers="max",
)
TRAINING_LEARNING_RATE = Metric(
    "training_learning_rate",
    "gauge",
    "Highest learning rate of the parameter groups.",
    _OF_RANK,
    across_workers="max",
)
TRAINING_LOSS_SCALE = Metric(
    "training_loss_scale",
    "gauge",
    "Factor of the loss scaler.",
    _OF_RANK,
    across_workers="max",
)
TRAINING_SKIPPED = Metric(
    "training_skipped_steps_total",
    "counter",
    "Optimizer steps that the loss scaler skipped because a gradient was not finite.",
    _OF_RANK,
)
TRAINING_CLIPPED = Metric(
    "training_clipped_steps_total",
    "counter",
    "Optimizer steps whose finite gradient norm was over the limit, where the loop tells both.",
    _OF_RANK,
)
TRAINING_WORLD_SIZE = Metric(
    "training_world_size", "gauge", "Ranks of the job.", _OF_RANK, across_workers="max"
)
TRAINING_EFFECTIVE_BATCH = Metric(
    "training_effective_batch_size",
    "gauge",
    "Samples of an optimizer step over all data-parallel ranks: the most since the reading before, "
    "as an epoch's last step has fewer.",
    _OF_RANK,
    across_workers="max",
)
TRAINING_BN_SPREAD = Metric(
    "training_bn_spread_ratio",
    "gauge",
    "How far BatchNorm's running statistics differ from another rank's, each of them by turns: the "
    "standard deviation between the two, of means in running standard deviations, or of the "
    "logarithm of the latter, whichever is larger.",
    _OF_RANK,
    across_workers="max",
)
TRAINING_ORDER_REPEATS = Metric(
    "training_sample_order_repeats_total",
    "counter",
    "Epochs whose samples came in an order seen before: across is epochs for that of the epoch "
    "before, ranks for that of another rank.",
    (*_OF_RANK, "across"),
)
TRAINING_LOADER_WAIT = Metric(
    "training_loader_wait_seconds_total",
    "counter",
    "Time that the host waited for the next batch, whether or not a GPU had work meanwhile.",
    _OF_RANK,
    unit=NANOSECONDS,
)
TRAINING_LOADER_INFO = Metric(
    "training_loader_info",
    "gauge",
    "Settings of the DataLoader.",
    (*_OF_RANK, "num_workers", "prefetch_factor", "pin_memory", "persistent_workers"),
    across_workers="max",
)

BUILD_INFO = Metric(
    "tailwatch_build_info",
    "gauge",
    "1, by the version of tailwatch in this process.",
    ("version",),
    across_workers="max",
)
ERRORS = Metric(
    "tailwatch_errors_total",
    "counter",
    "Errors of the instrumentation itself; none of them failed a request or a training step.",
    ("where",),
    row=(
        "request",
        "route",
        "metrics",
        "stage",
        "spans",
        "registry",
        "workers",
        "training",
        "push",
    ),
)
SERIES_OVERFLOW = Metric(
    "tailwatch_series_overflow_total",
    "counter",
    "Uses of an overflow series because a cap was reached.",
    ("metric",),
)
SPANS_DROPPED = Metric(
    "tailwatch_spans_dropped_total",
    "counter",
    "Spans that were not delivered, where spans are on.",
    ("reason",),
    row=("export_failed", "queue_full", "stage_limit", "keep_limit"),
)
WORKER_FILES_SKIPPED = Metric(
    "tailwatch_worker_files_skipped_total",
    "counter",
    "Files of the workers directory that a scrape could not count, and refusals to write one.",
    ("reason",),
    row=("foreign", "torn", "unwritable", "version"),
)

METRICS: dict[str, Metric] = {
    value.name: value for value in list(globals().values()) if isinstance(value, Metric)
}
"""By name, in the order above."""
