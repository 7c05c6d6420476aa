"""`hearth bench --url`: streaming clients against a server, a row for each concurrency."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import Any

from hearth.app.cli.state import State
from hearth.app.exit_codes import ExitCode
from hearth.app.load_test import (
    Load,
    NetworkTrouble,
    Served,
    Target,
    drive,
    first_model,
    is_loopback,
    parse_url,
)

_KEY_VARIABLE = "HEARTH_API_KEY"
_COLUMNS = ("clients", "requests", "failed", "tok/s", "TTFT p50", "p95", "ITL p50", "p95", "p99")
_WIDTHS = (7, 9, 7, 9, 11, 9, 11, 9, 9)


def run_load(state: State, model: str, url: str, options: dict[str, Any], *, as_json: bool) -> int:
    """Measure the server at `url`; returns the exit code, which is not 0 if a request failed.

    Raises:
        NetworkTrouble: the URL is none, Hearth is offline, or the server does not answer.
    """
    base, api = parse_url(url)
    if state.settings.offline and not is_loopback(base):
        raise NetworkTrouble(
            f"{base} is not on this machine, and Hearth is offline.", "Leave out --offline."
        )
    key = os.environ.get(options["api_key_env"] or _KEY_VARIABLE, "")
    model = model or asyncio.run(first_model(base, key))
    target = Target(base, api, model, key)
    if not as_json:
        state.output.data(f"{model} at {target.url}")
        state.output.data(_line(_COLUMNS))
    results = []
    for clients in options["concurrency"] or (1, 4, 8):
        load = Load(
            requests=max(options["requests"] or 0, 2 * clients),
            prompt_words=options["prompt_tokens"] or 512,
            gen_tokens=options["gen_tokens"] or 128,
            shared_words=options["shared_prefix"] or 0,
            ignore_eos=options["ignore_eos"],
        )
        served = asyncio.run(drive(target, load, clients))
        results.append(served)
        if not as_json:
            state.output.data(_line(_cells(served)))
        for error, count in served.errors.items():
            state.output.problem(f"{count} of {served.requests} requests: {error}")
    if as_json:
        state.output.json(
            {"url": target.url, "model": model, "results": [asdict(served) for served in results]}
        )
    else:
        _explain(state, results)
    return ExitCode.FAILED if any(served.failed for served in results) else ExitCode.OK


def _explain(state: State, results: list[Served]) -> None:
    """Say what the numbers were counted by."""
    if any(served.counted_by == "pieces" for served in results):
        state.output.note("tok/s counts pieces of text: the server says no usage")
    said = [served.prompt_tokens for served in results if served.prompt_tokens is not None]
    if said:
        state.output.note(f"prompts of {said[-1]:.0f} tokens, as the server counts")
    cached = [served.cached_tokens for served in results if served.cached_tokens]
    if cached:
        state.output.note(f"{sum(cached):,} prompt tokens were cached")


def _cells(served: Served) -> tuple[str, ...]:
    times = (
        served.ttft_p50_s,
        served.ttft_p95_s,
        served.itl_p50_s,
        served.itl_p95_s,
        served.itl_p99_s,
    )
    return (
        str(served.concurrency),
        str(served.requests),
        str(served.failed),
        f"{served.tok_per_s:.1f}",
        *("-" if seconds is None else f"{seconds * 1e3:,.0f} ms" for seconds in times),
    )


def _line(cells: tuple[str, ...]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
