"""`hearth bench`: how fast a model is here, next to a raw loop over the same library or to
transformers; and how fast a server answers.
"""

from __future__ import annotations

from typing import Any, cast, get_args

import click

from hearth.app.cli.options import complete_model, json_option, loading_options, typed_settings
from hearth.app.cli.state import State
from hearth.app.exit_codes import ExitCode
from hearth.app.format import argument
from hearth.app.settings import Layer
from hearth.backends.bench.job import REFERENCES, TEST_KINDS, Job, TestKind

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
}
"""Fields of `Job` that --quick and --tune make smaller, where nothing was typed."""


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers from 1 on, with commas between them."""

    name = "numbers"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """The placeholder in help."""
        return "N,N,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers, in the order in which they were typed."""
        if not isinstance(value, str):
            return cast("tuple[int, ...]", value)
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is no list such as 1,4,8.", param, ctx)
        if min(numbers) < 1:
            self.fail(f"{min(numbers)} is less than 1.", param, ctx)
        return numbers


class Tests(click.ParamType[tuple[TestKind, ...]]):
    """Kinds of tests, with commas between them."""

    name = "tests"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """The placeholder in help."""
        return ",".join(TEST_KINDS)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[TestKind, ...]:
        """The kinds."""
        if not isinstance(value, str):
            return cast("tuple[TestKind, ...]", value)
        kinds = tuple(part.strip() for part in value.split(","))
        for kind in kinds:
            if kind not in get_args(TestKind):
                self.fail(f"{kind!r} is none of {', '.join(TEST_KINDS)}.", param, ctx)
        return cast("tuple[TestKind, ...]", kinds)


_COUNT = click.IntRange(min=1)


@click.command("bench")
@click.argument("model", default="", shell_complete=complete_model)
@click.option("--quick", is_flag=True, help="Measure less.")
@click.option("--tests", type=Tests(), help="What to measure; all by default.")
@click.option("--repeats", type=_COUNT, help="Rounds of measurements of each test.  [5]")
@click.option("--sessions", type=Numbers(), help="Sessions at the same time.  [1,2,4,8,16]")
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
@click.option("--url", help="Measure this OpenAI-style server with streaming clients.")
@click.option("--concurrency", type=Numbers(), help="Clients of --url.  [1,4,8]")
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

    With --url, MODEL is the name that the server knows it by; the first that it lists if none is
    given.
    """
    state: State = ctx.obj
    flags = typed_settings(ctx)
    if url is not None:
        _refuse_flags(flags, set(flags), "is a matter of the server that --url measures")
        _refuse(ctx, _LOCAL_ONLY, "--url measures a server, so it takes no {flag}.")
        from hearth.app.cli.bench_url import run_load

        return run_load(state, model, url, options, as_json=as_json)
    _refuse(ctx, _URL_ONLY, "{flag} goes with --url.")
    if options["tune"]:
        _refuse(ctx, _TESTS_ONLY, "--tune makes its own tests, so it takes no {flag}.")
    _refuse_flags(flags, _BY_TESTS, "follows from the tests")
    if options["tune"]:
        _refuse_flags(flags, _BY_TUNING, "is what --tune searches")
    return _run_local(state, model, flags, options, as_json=as_json)


_LOCAL_ONLY = (
    *("quick", "tests", "repeats", "sessions", "depth_tokens", "reference", "tune"),
    *("session_prompt_tokens", "session_gen_tokens"),
)
_TESTS_ONLY = ("tests", "reference")
_BY_TESTS = {"max_sessions", "max_waiting", "kv_budget", "kv_pool", "target_itl_ms"}
_BY_TUNING = {"threads", "kv_type", "max_batch_tokens"}
_URL_ONLY = ("concurrency", "requests", "shared_prefix", "ignore_eos", "api_key_env")


def _refuse(ctx: click.Context, names: tuple[str, ...], reason: str) -> None:
    """Raise a usage error if one of the options `names` was typed."""
    for param in ctx.command.params:
        if param.name in names and ctx.params[param.name] not in (None, False):
            raise click.UsageError(reason.format(flag=param.opts[0]), ctx)


def _refuse_flags(flags: Layer, names: set[str], reason: str) -> None:
    """Raise a usage error if one of the settings `names` was typed."""
    for name, setting in flags.items():
        if name in names:
            raise click.UsageError(f"{setting.origin} {reason}.")


def _run_local(
    state: State, model: str, flags: Layer, options: dict[str, Any], *, as_json: bool
) -> int:
    from hearth.app.cli.bench_report import Report
    from hearth.app.paths import own_folder
    from hearth.backends.bench.child import BenchProcess

    chosen = state.choose(model, flags)
    if chosen.found.remote is not None:
        url = chosen.found.remote.url
        raise click.UsageError(
            f"{chosen.found.name} runs elsewhere: hearth bench --url {argument(url)}"
        )
    size = "tune" if options["tune"] else "quick" if options["quick"] else ""
    names = [
        *("tests", "repeats", "sessions", "prompt_tokens", "gen_tokens", "depth_tokens"),
        *("session_prompt_tokens", "session_gen_tokens"),
    ]
    typed = {name: options[name] for name in names if options[name] is not None}
    if options["tune"] and options["quick"]:
        typed = {"sessions": _SIZES["quick"]["sessions"], **typed}
    cache = state.paths.cache
    job = Job(
        chosen.spec,
        str(own_folder(cache)),
        **{**_SIZES[size], **typed},
        tune=options["tune"],
        reference=options["reference"],
    )
    log_path = own_folder(state.paths.log) / "bench.log"
    report = Report(state, job, as_json=as_json)
    with BenchProcess(job, log_path) as process:
        for message in process.messages():
            report.take(message)
    report.end()
    return ExitCode.OK
