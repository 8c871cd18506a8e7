"""Tokens are counted as told, and the time per token is that of the chunks they came in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tailwatch_tracing import RequestQueue, StageTimingMiddleware, count_tokens
from tests.tracing.asgi import Exchange, http_scope, nonzero, request, values
from tests.tracing.conftest import Clock


def per_token() -> dict[str, tuple[float, float]]:
    """Route -> requests with a time per output token, and the sum of these times."""
    counts = nonzero("inference_time_per_output_token_seconds_count", ["route"])
    sums = values("inference_time_per_output_token_seconds_sum", "route")
    return {route: (count, sums[(route,)]) for (route,), count in counts.items()}


def tokens() -> dict[str, float]:
    return {kind: n for (kind,), n in values("inference_tokens_total", "kind").items()}


def serve(*handlers: Any) -> list[Exchange]:
    routes = [Route(f"/{handler.__name__}", handler) for handler in handlers]
    app = StageTimingMiddleware(Starlette(routes=routes), service="s")

    async def main() -> list[Exchange]:
        return [await request(app, f"/{handler.__name__}") for handler in handlers]

    return asyncio.run(main())


def test_outside_a_request_they_are_the_services() -> None:
    StageTimingMiddleware(Starlette(), service="s")
    assert tokens() == {}
    count_tokens(prompt=7)
    count_tokens(prompt=2, output=5)
    assert values("inference_tokens_total", "service", "kind") == {
        ("s", "prompt"): 9,
        ("s", "output"): 5,
    }
    assert per_token() == {}


def test_a_stream_that_counts_as_it_goes(clock: Clock) -> None:
    async def chat(incoming: Request) -> StreamingResponse:
        count_tokens(prompt=12)

        async def body() -> AsyncIterator[str]:
            clock.advance(0.200)  # to the first token
            for _ in range(5):
                count_tokens(output=1)
                yield "token "
                clock.advance(0.030)

        return StreamingResponse(body())

    serve(chat)
    assert tokens() == {"prompt": 12, "output": 5}
    # Four more tokens in 4 x 30 ms; what follows the last one is not the tokens' time.
    assert per_token() == {"/chat": (1, pytest.approx(0.030))}


def test_a_stream_that_counts_at_its_end_from_a_thread(clock: Clock) -> None:
    """Starlette steps a plain generator in its threads; two tokens come in each chunk."""

    def chat(incoming: Request) -> StreamingResponse:
        def body() -> Iterator[str]:
            try:
                for _ in range(4):
                    yield "two tokens "
                    clock.advance(0.070)
            finally:
                count_tokens(output=8)

        return StreamingResponse(body())

    serve(chat)
    assert per_token() == {"/chat": (1, pytest.approx(3 * 0.070 / 7))}


def test_each_stream_has_one_value_of_its_own(clock: Clock) -> None:
    def stream(name: str, seconds: float, count: int) -> Any:
        async def handler(incoming: Request) -> StreamingResponse:
            async def body() -> AsyncIterator[str]:
                for _ in range(count):
                    count_tokens(output=1)
                    yield "t"
                    clock.advance(seconds)

            return StreamingResponse(body())

        handler.__name__ = name
        return handler

    serve(stream("slow", 0.1, 3), stream("fast", 0.01, 30), stream("one", 0.1, 1))
    assert per_token() == {"/slow": (1, pytest.approx(0.1)), "/fast": (1, pytest.approx(0.01))}
    assert tokens() == {"prompt": 0, "output": 34}


def test_an_answer_in_one_message_tells_no_time_unless_told(clock: Clock) -> None:
    async def whole(incoming: Request) -> Response:
        clock.advance(2)
        count_tokens(prompt=3, output=21)
        return PlainTextResponse("tokens")

    async def told(incoming: Request) -> Response:
        clock.advance(2)
        count_tokens(prompt=3, output=21, output_seconds=1.5)
        return PlainTextResponse("tokens")

    serve(whole, told)
    assert per_token() == {"/told": (1, pytest.approx(1.5 / 20))}
    assert tokens() == {"prompt": 6, "output": 42}


def test_a_stream_with_times_of_its_own_has_no_other(clock: Clock) -> None:
    async def chat(incoming: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            yield "a"
            clock.advance(9)
            yield "b"
            count_tokens(output=11, output_seconds=1)

        return StreamingResponse(body())

    serve(chat)
    assert per_token() == {"/chat": (1, pytest.approx(0.1))}


def test_tokens_that_come_in_one_chunk_tell_no_time(clock: Clock) -> None:
    async def chat(incoming: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            count_tokens(output=5)
            yield "all five of them"
            clock.advance(1)

        return StreamingResponse(body())

    serve(chat)
    assert per_token() == {}


def test_told_outside_a_request_it_has_no_route() -> None:
    StageTimingMiddleware(Starlette(), service="s")
    count_tokens(output=11, output_seconds=1)
    count_tokens(output=1, output_seconds=1)  # there is no token after the first
    assert per_token() == {"__unmatched__": (1, pytest.approx(0.1))}


def test_tokens_after_the_response_are_counted_alone(clock: Clock) -> None:
    async def chat(incoming: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            yield "a"
            clock.advance(1)
            yield "b"

        return StreamingResponse(body(), background=BackgroundTask(count_tokens, output=3))

    serve(chat)
    assert tokens() == {"prompt": 0, "output": 3}
    assert per_token() == {}


def test_a_stream_that_is_cut_has_the_time_of_what_came(clock: Clock) -> None:
    async def chat(incoming: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            for i in range(9):
                if i == 3:
                    raise LookupError
                count_tokens(output=1)
                yield "t"
                clock.advance(0.1)

        return StreamingResponse(body())

    app = StageTimingMiddleware(Starlette(routes=[Route("/chat", chat)]), service="s")
    exchange = Exchange()
    with pytest.raises(LookupError):
        asyncio.run(app(http_scope("/chat"), exchange.receive, exchange.send))
    assert per_token() == {"/chat": (1, pytest.approx(0.1))}


def test_a_rejected_stream_has_none(clock: Clock) -> None:
    async def chat(incoming: Request) -> StreamingResponse:
        RequestQueue("q").reject()

        async def body() -> AsyncIterator[str]:
            for _ in range(3):
                count_tokens(output=1)
                yield "t"
                clock.advance(0.1)

        return StreamingResponse(body())

    serve(chat)
    assert tokens()["output"] == 3
    assert per_token() == {}


def test_numbers_of_numpy_are_numbers() -> None:
    StageTimingMiddleware(Starlette(), service="s")
    count_tokens(prompt=np.int64(7), output=np.int32(3))  # type: ignore[arg-type]
    assert tokens() == {"prompt": 7, "output": 3}


@pytest.mark.parametrize(
    "nonsense",
    [
        {"prompt": -1},
        {"output": "many"},
        {"output": float("nan")},
        {"output": 3, "output_seconds": -1.0},
        {"output": 3, "output_seconds": float("nan")},
    ],
)
def test_nonsense_harms_no_request(nonsense: dict[str, Any]) -> None:
    async def chat(incoming: Request) -> Response:
        count_tokens(**nonsense)
        return PlainTextResponse("ok")

    (exchange,) = serve(chat)
    assert exchange.body == b"ok"
    assert nonzero("tailwatch_errors_total", ["where"]) == {("metrics",): 1}
    assert per_token() == {}
