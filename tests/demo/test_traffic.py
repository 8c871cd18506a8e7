"""The traffic generator against a service that a test controls."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from demo.traffic import Interval, Shape, Traffic, main, quantile, real_files

Handler = Callable[[web.Request], Awaitable[web.Response]]


async def serve(classify: Handler, faults: Handler | None = None) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.router.add_post("/classify", classify)
    if faults:
        app.router.add_get("/faults", faults)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


def test_a_service_that_stands_still_is_sent_no_less() -> None:
    """It answers nothing for a second: who waits for answers sends one burst of four."""
    arrived: list[float] = []

    async def classify(request: web.Request) -> web.Response:
        arrived.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1.0)
        return web.json_response({})

    async def test() -> Traffic:
        runner, url = await serve(classify)
        traffic = Traffic(url, shape=Shape(40, 4), timeout_seconds=10)
        await traffic.run(1.0)
        await runner.cleanup()
        return traffic

    traffic = asyncio.run(test())
    assert 12 <= len(arrived) <= 60
    assert traffic.outcomes == {"ok": len(arrived)}


def test_outcomes_are_told_apart() -> None:
    statuses = iter(range(1_000_000))

    async def classify(request: web.Request) -> web.Response:
        await request.read()
        number = next(statuses) % 4
        if number == 3:
            await asyncio.sleep(3)
        return web.Response(status=(200, 429, 500, 200)[number])

    async def test() -> Traffic:
        runner, url = await serve(classify)
        traffic = Traffic(url, shape=Shape(80, 4), timeout_seconds=1.0)
        await traffic.run(0.5)
        await runner.cleanup()
        return traffic

    outcomes = asyncio.run(test()).outcomes
    assert set(outcomes) == {"ok", "rejected", "error", "timeout"}


def test_a_service_that_is_gone_is_an_error_and_no_crash() -> None:
    traffic = Traffic("http://127.0.0.1:9", shape=Shape(50, 5))
    asyncio.run(traffic.run(0.3))
    assert set(traffic.outcomes) == {"error"}


def test_the_load_follows_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    state = {"active": None, "load": {"rate_per_second": 20.0, "burst": 2}}
    bodies: list[int] = []

    async def classify(request: web.Request) -> web.Response:
        bodies.append(len(await request.read()))
        return web.json_response({})

    async def faults(request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(state), content_type="application/json")

    async def test() -> None:
        runner, url = await serve(classify, faults)
        traffic = Traffic(url)
        sending = asyncio.create_task(traffic.run(2.5))
        await asyncio.sleep(0.5)
        state.update(active="overload", load={"rate_per_second": 60.0, "burst": 3})
        await sending
        await runner.cleanup()

    asyncio.run(test())
    assert capsys.readouterr().out.splitlines() == [
        "traffic: healthy: 20.0 requests/s in bursts of 2",
        "traffic: overload: 60.0 requests/s in bursts of 3",
    ]
    assert 60 < len(bodies) < 150
    assert all(0 < size <= 32 * 1024 for size in bodies)


def test_the_summary_line() -> None:
    interval = Interval(sent=101, latencies=[0.1] * 98 + [0.7, 0.9], lags=[0.001] * 101)
    interval.outcomes.update(ok=100, timeout=1)
    assert interval.line(10, Shape(10, 8)) == (
        "offered 10.0/s, sent 10.1/s (lag p99 1 ms); ok 100 rejected 0 timeout 1 error 0;"
        " p50 100 ms p99 700 ms"
    )


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.51, 3), (0.99, 4), (0.0, 1)])
def test_quantiles_are_those_of_the_nearest_rank(share: float, value: float) -> None:
    assert quantile([4, 1, 3, 2], share) == value


def test_the_files_are_real_and_of_many_kinds() -> None:
    files = real_files()
    assert len(files) > 20
    assert any(content.startswith(b"#!") or b"import " in content for content in files)


def test_a_signal_ends_it_with_its_counts() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "demo.traffic", "--url", "http://127.0.0.1:9", "--interval", "0.2"],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "traffic: waiting for http://127.0.0.1:9\n"
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert output.splitlines()[-1] == "traffic: nothing sent"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rate", "0"], "--rate is 0, expected a number above 0"),
        (["--rate", "inf"], "--rate is inf, expected a number above 0"),
        (["--rate", "1", "--burst", "-1"], "--burst is -1, expected a number above 0"),
        (["--burst", "4"], "--burst needs --rate"),
        (["--duration", "x"], "invalid float value: 'x'"),
    ],
)
def test_bad_usage_is_told(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err
