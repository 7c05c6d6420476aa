"""`hearth bench`: measures how fast a model runs, compared with a bare loop over the same library
or with transformers, and how fast a server answers.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hearth.app.cli.options import complete_model, json_option, loading_options, typed_settings
from hearth.app.cli.state import State
from hearth.app.exit_codes import ExitCode
from hearth.app.format import argument
from hearth.app.settings import Layer
from hearth.backends.bench.job import REFERENCES, TEST_KINDS, Job
from hearth.backends.contract.models import is_heads
from hearth.backends.contract.sampling import Speculate

if TYPE_CHECKING:
    from hearth.app.load_test import Served

_COLUMNS = ("clients", "requests", "failed", "tok/s", "TTFT p50", "p95", "ITL p50", "p95", "p99")
_WIDTHS = (7, 9, 7, 9, 11, 9, 11, 9, 9)
_SIZES: dict[str, dict[str, Any]] = {
    "": {},
    "quick": {
        "tests": ("pp", "tg", "sessions"),
        "repeats": 3,
        "sessions": (1, 4, 8),
        "gen_tokens": 32,
        "session_gen_tokens": 16,
    },
    "tune": {"repeats": 3, "session_gen_tokens": 16},
    "ablate": {"repeats": 3, "sessions": (4,), "session_gen_tokens": 16},
    "speculate": {"repeats": 5, "sessions": (1, 4, 8), "gen_tokens": 96},
}
"""Fields of `Job` that --quick, --tune, --ablate and --speculate reduce, unless they were typed."""
_DRAFTS: dict[str, tuple[Speculate, ...]] = {
    "ngram": ("ngram", "auto"),
    "draft": ("draft", "auto"),
    "medusa": ("medusa", "auto"),
    "auto": ("auto",),
}
"""What is measured against no drafts, by the value of --speculate. --draft alone means "draft", or
"medusa" if it names heads."""


def _numbers(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Positive whole numbers separated by commas, in the order in which they were typed."""
    if value is None:
        return None
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list such as 1,4,8.") from None
    if min(numbers) < 1:
        raise click.BadParameter(f"{min(numbers)} is less than 1.")
    return numbers


def _tests(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Kinds of tests separated by commas."""
    kinds = None if value is None else tuple(part.strip() for part in value.split(","))
    for kind in kinds or ():
        if kind not in TEST_KINDS:
            raise click.BadParameter(f"{kind!r} is not one of {', '.join(TEST_KINDS)}.")
    return kinds


_COUNT = click.IntRange(min=1)


@click.command("bench")
@click.argument("model", default="", shell_complete=complete_model)
@click.option("--quick", is_flag=True, help="Measure less.")
@click.option(
    "--tests",
    metavar=",".join(TEST_KINDS),
    callback=_tests,
    help="What to measure; all by default.",
)
@click.option("--repeats", type=_COUNT, help="Rounds of measurements of each test.  [5]")
@click.option(
    "--sessions",
    metavar="N,N,...",
    callback=_numbers,
    help="Sessions at the same time.  [1,2,4,8,16]",
)
@click.option("--prompt-tokens", type=_COUNT, help="Prompt of pp, and of --url.  [512]")
@click.option("--gen", "gen_tokens", type=_COUNT, help="New tokens of tg, and of --url.  [128]")
@click.option("--depth", "depth_tokens", type=_COUNT, help="Tokens before tg at depth.  [4096]")
@click.option(
    "--session-prompt", "session_prompt_tokens", type=_COUNT, help="Prompt of a session.  [128]"
)
@click.option(
    "--session-gen", "session_gen_tokens", type=_COUNT, help="New tokens of a session.  [32]"
)
@click.option(
    "--reference",
    type=click.Choice(REFERENCES),
    help="Measure the native backend and this library in turns, on the same safetensors.",
)
@click.option("--tune", is_flag=True, help="Find the best settings for this model here.")
@click.option(
    "--ablate",
    is_flag=True,
    help="Measure with KV cache, prefix reuse, fused calls and quantization, then without each.",
)
@click.option("--url", help="Measure this OpenAI-style server with streaming clients.")
@click.option(
    "--concurrency", metavar="N,N,...", callback=_numbers, help="Clients of --url.  [1,4,8]"
)
@click.option("--requests", type=_COUNT, help="Requests at each concurrency; 2 a client if less.")
@click.option(
    "--shared-prefix",
    type=click.IntRange(min=0),
    help="Words of each prompt of --url that are the same in all.  [0]",
)
@click.option(
    "--ignore-eos", is_flag=True, help="Ask --url for exactly --gen tokens; not all servers can."
)
@click.option(
    "--api-key-env",
    metavar="VARIABLE",
    help="Environment variable with the key of --url.  [HEARTH_API_KEY]",
)
@json_option
@loading_options
@click.pass_context
def bench(ctx: click.Context, /, model: str, url: str | None, as_json: bool, **options: Any) -> int:
    """Measure MODEL (the default model if none is named).

    Each test is made by Hearth's engine and by a bare ctypes loop over the same loaded library, in
    turns; the table has the tokens per second of both, and their ratio. The native backend is
    measured alone, or in turns with --reference transformers. docs/bench.md describes the method.

    With --draft or --speculate, sessions are measured with drafts and without, in turns: how many
    were right, what they cost, and the speed-up next to that of the formula.

    With --url, MODEL is the name that the server knows it by; the first that it lists if none is
    given.
    """
    state: State = ctx.obj
    flags = typed_settings(ctx)
    if url is not None:
        _refuse_flags(flags, set(flags), "is a matter of the server that --url measures")
        _refuse(ctx, _LOCAL_ONLY, "--url measures a server, so it takes no {flag}.")
        return _run_load(state, model, url, options, as_json=as_json)
    _refuse(ctx, _URL_ONLY, "{flag} goes with --url.")
    _refuse_flags(flags, _BY_TESTS, "follows from the tests")
    speculate = _speculate(ctx, flags)
    if options["ablate"]:
        _refuse(ctx, _NOT_OF_ABLATION, "--ablate makes its own tests, so it takes no {flag}.")
    if options["tune"]:
        _refuse(ctx, _TESTS_ONLY, "--tune makes its own tests, so it takes no {flag}.")
        _refuse_flags(flags, _BY_TUNING, "is what --tune searches")
    return _run_local(state, model, flags, options, speculate, as_json=as_json)


def _speculate(ctx: click.Context, flags: Layer) -> tuple[Speculate, ...]:
    """What --speculate or --draft asks to measure; empty if the usual tests should run."""
    typed = [name for name in ("speculate", "draft", "draft_tokens") if name in flags]
    if not typed:
        return ()
    _refuse(ctx, _NOT_OF_DRAFTS, "drafts are measured by their own tests, which take no {flag}.")
    mode = str(flags["speculate"].value) if "speculate" in flags else ""
    if mode == "off" or typed == ["draft_tokens"]:
        raise click.UsageError(
            f"{flags[typed[0]].origin} drafts nothing: name --draft, or --speculate ngram.", ctx
        )
    if not mode:
        mode = "medusa" if is_heads(Path(str(flags["draft"].value))) else "draft"
    return _DRAFTS[mode]


_LOCAL_ONLY = (
    *("quick", "tests", "repeats", "sessions", "depth_tokens", "reference", "tune", "ablate"),
    *("session_prompt_tokens", "session_gen_tokens"),
)
_TESTS_ONLY = ("tests", "reference")
_NOT_OF_ABLATION = (*_TESTS_ONLY, "quick", "tune", "prompt_tokens", "gen_tokens", "depth_tokens")
_NOT_OF_DRAFTS = (
    *(*_TESTS_ONLY, "quick", "tune", "ablate", "prompt_tokens", "depth_tokens"),
    *("session_prompt_tokens", "session_gen_tokens"),
)
_BY_TESTS = {
    "max_sessions",
    "max_waiting",
    "kv_budget",
    "kv_disk_budget",
    "kv_pool",
    "target_itl_ms",
}
_BY_TUNING = {"threads", "kv_type", "max_batch_tokens"}
_URL_ONLY = ("concurrency", "requests", "shared_prefix", "ignore_eos", "api_key_env")


def _refuse(ctx: click.Context, names: tuple[str, ...], reason: str) -> None:
    """Raise a usage error if any of the options `names` was typed."""
    for param in ctx.command.params:
        if param.name in names and ctx.params[param.name] not in (None, False):
            raise click.UsageError(reason.format(flag=param.opts[0]), ctx)


def _refuse_flags(flags: Layer, names: set[str], reason: str) -> None:
    """Raise a usage error if any of the settings `names` was typed."""
    for name, setting in flags.items():
        if name in names:
            raise click.UsageError(f"{setting.origin} {reason}.")


def _run_local(
    state: State,
    model: str,
    flags: Layer,
    options: dict[str, Any],
    speculate: tuple[Speculate, ...],
    *,
    as_json: bool,
) -> int:
    from hearth.app.bench_job import run_bench
    from hearth.app.cli.bench_report import Report
    from hearth.app.paths import own_folder

    chosen = state.choose(model, flags)
    if chosen.found.remote is not None:
        url = chosen.found.remote.url
        raise click.UsageError(
            f"{chosen.found.name} runs elsewhere: hearth bench --url {argument(url)}"
        )
    size = next((name for name in ("tune", "ablate", "quick") if options[name]), "")
    size = "speculate" if speculate else size
    names = [
        *("tests", "repeats", "sessions", "prompt_tokens", "gen_tokens", "depth_tokens"),
        *("session_prompt_tokens", "session_gen_tokens"),
    ]
    typed = {name: options[name] for name in names if options[name] is not None}
    if options["tune"] and options["quick"]:
        typed = {"sessions": _SIZES["quick"]["sessions"], **typed}
    job = Job(
        chosen.spec,
        str(own_folder(state.paths.cache)),
        **{**_SIZES[size], **typed},
        tune=options["tune"],
        ablate=options["ablate"],
        speculate=speculate,
        reference=options["reference"],
    )
    report = Report(state, job, as_json=as_json)
    run_bench(job, report.take, own_folder(state.paths.log))
    report.end()
    return ExitCode.OK


def _run_load(state: State, model: str, url: str, options: dict[str, Any], *, as_json: bool) -> int:
    """Measure the server at `url`; returns the exit code, which is not 0 if a request failed.

    Raises:
        NetworkTrouble: the URL is invalid, Hearth is offline, or the server does not answer.
    """
    import asyncio

    from hearth.app.load_test import (
        Load,
        NetworkTrouble,
        Target,
        drive,
        first_model,
        is_loopback,
        parse_url,
    )

    base, api = parse_url(url)
    if state.settings.offline and not is_loopback(base):
        raise NetworkTrouble(
            f"{base} is not on this machine, and Hearth is offline.", "Leave out --offline."
        )
    key = os.environ.get(options["api_key_env"] or "HEARTH_API_KEY", "")
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
    """Print how the tokens were counted."""
    if any(served.counted_by == "pieces" for served in results):
        state.output.note("tok/s counts pieces of text: the server says no usage")
    said = [served.prompt_tokens for served in results if served.prompt_tokens is not None]
    if said:
        state.output.note(f"prompts of {said[-1]:.0f} tokens, as the server counts")
    cached = [served.cached_tokens for served in results if served.cached_tokens]
    if cached:
        state.output.note(f"{sum(cached):,} prompt tokens were cached")


def _cells(served: Served) -> tuple[str, ...]:
    ttft = (served.ttft_p50_s, served.ttft_p95_s)
    itl = (served.itl_p50_s, served.itl_p95_s, served.itl_p99_s)
    return (
        str(served.concurrency),
        str(served.requests),
        str(served.failed),
        f"{served.tok_per_s:.1f}",
        *("-" if seconds is None else f"{seconds * 1e3:,.0f} ms" for seconds in (*ttft, *itl)),
    )


def _line(cells: tuple[str, ...]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
