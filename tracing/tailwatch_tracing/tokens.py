"""Tokens: how many go in and come out, and the time per output token of a request."""

from __future__ import annotations

from tailwatch_tracing.exemplars import observe
from tailwatch_tracing.families import NANOSECONDS, TIME_PER_OUTPUT_TOKEN, TOKENS
from tailwatch_tracing.request import TOKENS_COUNTED, Request
from tailwatch_tracing.routes import UNMATCHED
from tailwatch_tracing.service import Service
from tailwatch_tracing.units import current_service, current_unit

_PROMPT, _OUTPUT = range(len(TOKENS.row))


def count_tokens(*, prompt: int = 0, output: int = 0, output_seconds: float | None = None) -> None:
    """Count tokens; call it as often as some are known, in a request or outside any.

        count_tokens(prompt=len(ids))
        ...
        count_tokens(output=1)

    `inference_time_per_output_token_seconds` has one value of each request with two output tokens
    or more: the time between its first and its last token over the tokens after the first. In a
    streamed response these are its first and last chunk, as the client gets them. Elsewhere they
    are only known to you, or to the engine that you ask.

    Args:
        prompt: Tokens of the input that are not counted yet.
        output: Tokens of the output that are not counted yet.
        output_seconds: From the first to the last of these output tokens, where there is no stream
            or its chunks tell something else. They have a value of their own then; outside a
            request its `route` is `__unmatched__`.
    """
    service = current_service()
    try:
        prompt, output = int(prompt), int(output)
        if prompt < 0 or output < 0:
            raise ValueError(f"prompt={prompt}, output={output}: expected tokens, 0 or more")
        counts = service.store.counter(TOKENS).counts
        counts[_PROMPT] += prompt
        counts[_OUTPUT] += output
        unit = current_unit.get()
        request = unit if isinstance(unit, Request) else None
        if output_seconds is not None:
            output_seconds = float(output_seconds)
            if not output_seconds >= 0:
                raise ValueError(f"output_seconds={output_seconds!r}: expected 0 or more")
            if output > 1:
                nanoseconds = round(output_seconds * NANOSECONDS)
                _observe(service, request, nanoseconds // (output - 1))
        elif output and request is not None:
            if request.events & TOKENS_COUNTED:
                request.output_tokens += output
            else:
                request.output_tokens = output
                request.events |= TOKENS_COUNTED
    except Exception:
        service.note_error("metrics")


def _observe(service: Service, request: Request | None, nanoseconds: int) -> None:
    if request is None:
        service.store.histogram(TIME_PER_OUTPUT_TOKEN, UNMATCHED).observe(nanoseconds)
    else:
        cell = request.routes.find(request.scope).histogram(TIME_PER_OUTPUT_TOKEN)
        observe(cell, nanoseconds, request.span_or_none)
