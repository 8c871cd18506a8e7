"""The demo service: POST a file's bytes to /classify, get its content type.

    python -m demo.service --simulate-gpu 1 --nvml-mock-file /tmp/gpu.txt

It is an ordinary FastAPI service with tailwatch's middleware in it. What the faults need beside
that is under /faults: GET tells which one is on and the load that belongs to it, POST turns one
on, DELETE turns it off; both only from this machine.
"""

import argparse
import asyncio
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from demo import flags
from demo.classifier import MODEL_NAME, Classifier
from demo.device_model import SimulatedGpu
from demo.faults import FAULTS, HEALTHY, Fault, FaultSwitch
from demo.mock_file import MockFileWriter
from demo.pipeline import Pipeline, QueueFull
from demo.settings import ADDRESS, CLIENT_TIMEOUT_SECONDS, SERVICE, SERVICE_PORT, SLO_SECONDS
from tailwatch_tracing import StageTimingMiddleware, model_loading

MAX_BODY_BYTES = 1 << 20
MAX_GPUS = 8


class FaultName(BaseModel):
    """The body of POST /faults."""

    name: str


def create_app(gpu_count: int, mock_file: Path | None, fault: Fault = HEALTHY) -> FastAPI:
    """Return the service.

    Args:
        gpu_count: simulated GPUs that inference takes its time on; 0: the CPU alone.
        mock_file: where their counters go for the mock NVML; needed with GPUs.
        fault: the fault that is on from the start.
    """
    with model_loading("magika", version=MODEL_NAME, service=SERVICE):
        classifier = Classifier()
    gpus = [SimulatedGpu(index, weights_bytes=classifier.model_bytes) for index in range(gpu_count)]
    switch = FaultSwitch()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pipeline = app.state.pipeline = Pipeline(classifier, gpus, switch)
        counters = MockFileWriter(mock_file, gpus) if mock_file and gpus else None
        if counters:
            counters.start()
        turning_on = asyncio.create_task(asyncio.to_thread(switch.set, fault))
        try:
            yield
        finally:
            await turning_on
            await pipeline.close()
            if counters:
                counters.close()

    # FastAPI's pages about the API load their scripts from the internet.
    app = FastAPI(title=SERVICE, lifespan=lifespan, openapi_url=None)
    app.add_middleware(
        StageTimingMiddleware,
        service=SERVICE,
        metrics_path="/metrics",
        slo_seconds=SLO_SECONDS,
        client_timeout_seconds=CLIENT_TIMEOUT_SECONDS,
        exclude=("/healthz", "/faults"),
        gpu_uuids=[gpu.uuid for gpu in gpus],
    )

    @app.post("/classify")
    async def classify(request: Request) -> JSONResponse:
        content = await read_body(request)
        try:
            label = await request.app.state.pipeline.classify(content)
        except QueueFull as error:
            raise HTTPException(429, str(error), headers={"Retry-After": "1"}) from error
        return JSONResponse({"label": label.name, "score": round(label.score, 4)})

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok", "simulated_gpus": gpu_count})

    def state(pipeline: Pipeline) -> dict[str, Any]:
        load = switch.active.load
        return {
            "active": None if switch.active is HEALTHY else switch.active.name,
            "load": {
                "rate_per_second": load.rate_per_second(pipeline.capacity_per_second or 0.0),
                "burst": load.burst,
            },
            "faults": {fault.name: fault.description for fault in FAULTS.values()},
        }

    @app.get("/faults")
    async def show_faults(request: Request) -> JSONResponse:
        return JSONResponse(state(request.app.state.pipeline))

    @app.post("/faults")
    async def turn_on(request: Request, body: FaultName) -> JSONResponse:
        refuse_strangers(request)
        if body.name not in FAULTS:
            raise HTTPException(404, f"no fault {body.name!r}, there are: {', '.join(FAULTS)}")
        if problem := missing_gpu(FAULTS[body.name], gpu_count):
            raise HTTPException(409, problem)
        await asyncio.to_thread(switch.set, FAULTS[body.name])
        return JSONResponse(state(request.app.state.pipeline))

    @app.delete("/faults")
    async def turn_off(request: Request) -> JSONResponse:
        refuse_strangers(request)
        await asyncio.to_thread(switch.set, HEALTHY)
        return JSONResponse(state(request.app.state.pipeline))

    return app


async def read_body(request: Request) -> bytes:
    """Return the request's body.

    Raises:
        HTTPException: 413, beyond MAX_BODY_BYTES.
    """
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise HTTPException(413, f"a file has at most {MAX_BODY_BYTES} bytes here")
    return bytes(content)


def refuse_strangers(request: Request) -> None:
    """Let only clients on this machine switch faults.

    Raises:
        HTTPException: 403, for a client from elsewhere.
    """
    host = request.client.host if request.client else ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:  # not an address: a Unix socket's or a test's peer
        local = False
    if not local:
        raise HTTPException(403, f"faults are switched from 127.0.0.1 only, not from {host!r}")


def missing_gpu(fault: Fault, gpu_count: int) -> str | None:
    """Return why the fault cannot be injected without a simulated GPU, None where it can."""
    if fault.needs_simulated_gpu and not gpu_count:
        return f"fault {fault.name} needs a simulated GPU: start the service with --simulate-gpu 1"
    return None


def can_write(path: Path) -> bool:
    """Return whether `path` can be made or replaced."""
    return not path.is_dir() and os.access(path.parent, os.W_OK)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line; a mistake in it ends with one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m demo.service", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--host", default=ADDRESS, help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=flags.port, default=SERVICE_PORT, help="port (%(default)s)")
    parser.add_argument("--fault", choices=tuple(FAULTS), help="start with this fault on")
    parser.add_argument(
        "--simulate-gpu",
        type=int,
        default=0,
        metavar="N",
        help="run inference on N simulated GPUs (%(default)s: on the CPU)",
    )
    parser.add_argument(
        "--nvml-mock-file",
        type=Path,
        default=os.environ.get("NVML_MOCK_FILE"),
        metavar="PATH",
        help="write the simulated GPUs' counters there (default: $NVML_MOCK_FILE)",
    )
    arguments = parser.parse_args(argv)
    gpus = arguments.simulate_gpu
    if not 0 <= gpus <= MAX_GPUS:
        parser.error(f"--simulate-gpu is {gpus}, expected 0 to {MAX_GPUS}")
    if gpus and not arguments.nvml_mock_file:
        parser.error("--simulate-gpu needs --nvml-mock-file or NVML_MOCK_FILE")
    if gpus and not can_write(arguments.nvml_mock_file):
        parser.error(
            f"--nvml-mock-file {arguments.nvml_mock_file}: expected a file in a writable folder"
        )
    if arguments.fault and (problem := missing_gpu(FAULTS[arguments.fault], gpus)):
        parser.error(problem)
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; return the exit code."""
    arguments = parse_arguments(argv)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((arguments.host, arguments.port))
    except OSError as error:
        listener.close()
        print(
            f"demo service: cannot listen on {arguments.host}:{arguments.port}: {error.strerror}",
            file=sys.stderr,
        )
        return 1
    # uvicorn hands a signal on once it has shut down; that is no failure then.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    app = create_app(
        arguments.simulate_gpu,
        arguments.nvml_mock_file,
        FAULTS[arguments.fault] if arguments.fault else HEALTHY,
    )
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,  # an unbounded queue would take minutes to answer
    )
    with listener:
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except SystemExit as end:  # uvicorn has a code of its own for a start that fails
            return int(bool(end.code))
    return 0


if __name__ == "__main__":
    sys.exit(main())
