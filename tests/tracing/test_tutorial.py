"""The tutorial's code, block after block as a reader has it, and what it says that one will see."""

from __future__ import annotations

import ast
import asyncio
import functools
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailwatch_tracing import middleware, serving
from tests.tracing.asgi import Exchange, http_scope, nonzero, page_values, request, values

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial/instrument-a-service.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
BARE, COUNTED, STAGED, FASTER, THREADED, PROMISED = range(6)

WORDS = " ".join(f"w{i * 97 % 20000}" for i in range(400)).encode()


def name_of(statement: ast.stmt) -> str | None:
    """Return what tells a statement apart that a later block may replace."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return statement.name
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func)
    return None


def applied(service: str, block: str) -> str:
    """Return the service with a block in it: replaced by name, else above or below the app."""
    body = ast.parse(service).body
    for statement in ast.parse(block).body:
        name = name_of(statement)
        same = [i for i, old in enumerate(body) if name and name_of(old) == name]
        if same:
            body[same[0]] = statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            body.insert(0, statement)
        else:
            app = next(i for i, old in enumerate(body) if ast.unparse(old).startswith("app ="))
            body.insert(app + 1, statement)
    return ast.unparse(ast.Module(body, []))


def service_after(step: int) -> dict[str, Any]:
    """Return the names of service.py as a reader has it after this block."""
    source = functools.reduce(applied, BLOCKS[1 : step + 1], BLOCKS[0])
    names: dict[str, Any] = {"__name__": "service"}
    exec(compile(source, "service.py", "exec"), names)
    return names


async def embed(service: dict[str, Any]) -> bytes:
    exchange = Exchange()
    messages = iter([{"type": "http.request", "body": WORDS, "more_body": False}])

    async def receive() -> Any:
        return next(messages, None) or await exchange.receive()

    await service["app"](http_scope("/embed", "POST"), receive, exchange.send)
    assert exchange.status == 200
    return exchange.body


def after_three_requests(step: int) -> dict[str, Any]:
    service = service_after(step)

    async def main() -> None:
        for _ in range(3):
            assert await embed(service) == b'{"vector":[400.0]}'

    asyncio.run(main())
    return service


def seconds_by_stage() -> dict[str, float]:
    return {stage: s for (stage,), s in values("inference_stage_seconds_total", "stage").items()}


def test_there_are_the_blocks_that_are_tested_here() -> None:
    assert len(BLOCKS) == 6


def test_the_bare_service_answers() -> None:
    after_three_requests(BARE)


def test_two_lines_count_and_time_by_template() -> None:
    service = after_three_requests(COUNTED)
    page = asyncio.run(request(service["app"], "/metrics")).body.decode()
    counted = page_values(page, "inference_requests_total", ["route", "status", "outcome"])
    assert counted == {("/embed", "200", "ok"): 3}
    (duration,) = (s for (r,), s in durations().items() if r == "/embed")
    assert duration > 3 * 0.02


def durations() -> dict[tuple[str, ...], float]:
    return values("inference_request_duration_seconds_sum", "route")


def test_stages_add_up_to_the_requests() -> None:
    after_three_requests(STAGED)
    seconds = seconds_by_stage()
    assert set(seconds) == {"ingress", "preprocess", "inference", "postprocess", "unattributed"}
    assert sum(seconds.values()) == pytest.approx(sum(durations().values()))
    assert seconds["inference"] > 3 * 0.02
    assert seconds["preprocess"] > 0


def test_a_dictionary_takes_the_preprocessing_away_and_leaves_the_inference() -> None:
    """By CPU time, which a busy machine does not change much."""
    used = []
    for step in (STAGED, FASTER):
        before = cpu_of_preprocess()
        after_three_requests(step)
        used.append(cpu_of_preprocess() - before)
    assert used[1] < used[0] / 3
    assert seconds_by_stage()["inference"] > 6 * 0.02


def cpu_of_preprocess() -> float:
    return values("inference_stage_cpu_seconds_total", "stage").get(("preprocess",), 0)


def model_that(waits: Callable[[], object]) -> Callable[[list[int]], list[float]]:
    def run_model(tokens: list[int]) -> list[float]:
        waits()
        return [float(len(tokens))]

    return run_model


def test_a_blocked_event_loop_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    service = service_after(FASTER)
    monkeypatch.setattr(middleware, "runtime", serving.runtime)
    service["run_model"] = model_that(lambda: time.sleep(0.1))

    async def main() -> None:
        await embed(service)
        async with asyncio.timeout(10):
            while values("python_event_loop_lost_seconds_total")[()] < 0.05:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_in_threads_requests_wait_for_the_model_side_by_side() -> None:
    service = service_after(THREADED)
    both = threading.Barrier(2)
    service["run_model"] = model_that(lambda: both.wait(10))

    async def main() -> None:
        await asyncio.gather(embed(service), embed(service))

    asyncio.run(main())
    assert nonzero("inference_stage_duration_seconds_count", ["stage"])[("inference",)] == 2


def test_promises_are_on_the_page_and_split_off_the_slow() -> None:
    service = service_after(PROMISED)
    service["run_model"] = model_that(lambda: time.sleep(0.12))
    asyncio.run(embed(service))
    assert values("inference_slo_seconds") == {(): 0.1}
    assert values("inference_client_timeout_seconds") == {(): 2}
    slow = nonzero("inference_stage_seconds_total", ["stage", "slow"])
    assert slow[("inference", "true")] > 0.12
    assert not any(is_slow == "false" for _, is_slow in slow)
