"""`hearth fit`: whether a model fits this machine, downloaded or not, and how fast it can be; and
the same calculation for a model given only by its dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from hearth.app import format as words
from hearth.app import settings_keys as keys
from hearth.app.cli.options import complete_model, json_option, setting_options, typed_settings
from hearth.app.cli.state import State
from hearth.app.exit_codes import ExitCode
from hearth.app.nearest import nearest

if TYPE_CHECKING:
    from hearth.app.library.catalogue import Entry
    from hearth.app.library.fit import Fit, Room
    from hearth.app.settings import Layer
    from hearth.quant.memory_sessions import Sizing

_PARTS = {
    "weights": "weights",
    "repacked": "weights in another order",
    "kv": "keys and values",
    "states": "recurrent states",
    "compute": "scratch memory",
    "outputs": "logits",
    "vocabulary": "vocabulary",
    "base": "interpreter and libraries",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one model, or for one quant of a repository."""

    name: str
    size_bytes: int
    fit: Fit


class _Size(click.ParamType[int]):
    """A size in decimal or binary units, converted to bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes that `value` means."""
        size = words.parse_size(value.removesuffix("/s")) if isinstance(value, str) else value
        if not size:
            self.fail(f"{value!r} is no size: 24GB is decimal, 24GiB or 24G binary.", param, ctx)
        return int(size)


class _Parameters(click.ParamType[float]):
    """A number of weights, such as 7B."""

    name = "params"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number that `value` means."""
        text = str(value).strip().upper()
        factor = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1:])
        try:
            number = float(text) if factor is None else float(text[:-1]) * factor
        except ValueError:
            number = 0.0
        if not 0 < number < 1e16:
            self.fail(f"{value!r} is no number of parameters, such as 7B or 135M.", param, ctx)
        return number


_COUNT = click.IntRange(1, 1 << 24)
_DIMENSIONS = ("layers", "heads", "kv_heads", "head_dim", "hidden")


@click.command("fit")
@click.argument("model", required=False, shell_complete=complete_model)
@click.option("--layers", type=_COUNT, help="Without MODEL: layers that have a KV cache.")
@click.option("--heads", type=_COUNT, help="Query heads. Default: as --kv-heads.")
@click.option("--kv-heads", type=_COUNT, help="Key-value heads. Default: as --heads.")
@click.option("--head-dim", type=_COUNT, help="Elements of a head. Default: hidden / heads.")
@click.option("--hidden", type=_COUNT, help="Elements of the residual stream.")
@click.option("--params", type=_Parameters(), metavar="N", help="Weights, such as 7B or 135M.")
@click.option("--precision", help="Of the weights: fp16, bf16, int8, int4, q4_k, … Default: fp16.")
@click.option("--sessions", type=_COUNT, default=1, help="Sessions at once. Default: 1.")
@click.option(
    "--memory",
    type=_Size(),
    metavar="SIZE",
    help="To fit into, such as 24GB (decimal) or 24GiB. Default: what is free here.",
)
@click.option(
    "--bandwidth",
    type=_Size(),
    metavar="SIZE/s",
    help="Of that memory, for the cost. Default: measured here.",
)
@click.option(
    "--price-per-hour",
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="Of the machine: shows the cost of a million tokens.",
)
@setting_options((keys.ALL["context"], keys.ALL["kv_type"], keys.ALL["kv_type_v"]))
@json_option
@click.pass_context
def fit(
    ctx: click.Context,
    /,
    model: str | None,
    params: float | None,
    precision: str | None,
    sessions: int,
    memory: int | None,
    bandwidth: int | None,
    price_per_hour: float | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Say whether MODEL fits this machine: a model that is here, a name of the catalogue, or
    org/name or org/name:QUANT on the Hub.

    Without --ctx it is asked for 8,192 tokens. What is not downloaded yet is estimated from its
    size. The exit code is 4 if nothing of it fits, or fewer than --sessions.

    Without MODEL the sums are those of the dimensions: --params, or --layers, --kv-heads and
    --head-dim, or all of them. GB is decimal, GiB and G are binary.
    """
    from hearth.quant.memory_sessions import precisions

    state: State = ctx.obj
    if precision is not None and precision.lower() not in precisions():
        raise click.UsageError(f"--precision {precision}: known are {', '.join(precisions())}.")
    given = {name: options[name] for name in _DIMENSIONS if options[name] is not None}
    room = _room(
        state,
        downloads=model is not None,
        measures=model is not None or price_per_hour is not None,
        memory=memory,
        bandwidth=bandwidth,
    )
    if model is None:
        sizing = _sizing(ctx, given, params, precision or "fp16", sessions, room)
        cost = _cost(sizing, room, price_per_hour)
        if as_json:
            state.output.json({"sizing": sizing.to_json(), **_json_of(cost)})
        else:
            _print_sizing(state, sizing, cost)
        return ExitCode.OK if _holds(sizing) else ExitCode.DOES_NOT_FIT
    if given or params:
        names = [f"--{name.replace('_', '-')}" for name in given] + ["--params"] * bool(params)
        raise click.UsageError(f"{', '.join(names)}: MODEL has its own; leave out one of them.")
    offered = _verdicts(state, model, typed_settings(ctx), room)
    if len(offered) > 1 and not as_json:
        _check_options(offered, precision, sessions, price_per_hour)
    verdicts = [
        replace(verdict, fit=_as_asked(verdict.fit, precision, sessions)) for verdict in offered
    ]
    if as_json:
        fits = [
            {
                "name": one.name,
                "size_bytes": one.size_bytes,
                **one.fit.to_json(),
                **_json_of(_cost(one.fit.sizing, room, price_per_hour)),
            }
            for one in verdicts
        ]
        state.output.json({"model": model, "fits": fits})
    elif len(verdicts) == 1:
        _print_one(state, verdicts[0])
        if (sizing_here := verdicts[0].fit.sizing) is not None:
            state.output.data("")
            _print_sizing(state, sizing_here, _cost(sizing_here, room, price_per_hour))
    else:
        _print_all(state, verdicts)
    is_usable = any(_is_usable(verdict.fit, precision) for verdict in verdicts)
    return ExitCode.OK if is_usable else ExitCode.DOES_NOT_FIT


def _sizing(
    ctx: click.Context,
    given: dict[str, int],
    params: float | None,
    precision: str,
    sessions: int,
    room: Room,
) -> Sizing:
    """The sizing of a model given by its dimensions. Raises a usage error if too few are given."""
    from hearth.app.library.fit import USUAL_CONTEXT
    from hearth.quant.memory_sessions import Sizing
    from hearth.quant.memory_shape import shape_given

    state: State = ctx.obj
    if not given and not params:
        raise click.UsageError(
            "Name a MODEL, or give its dimensions: --params, or --layers, --kv-heads, --head-dim."
        )
    try:
        shape = shape_given(parameters=params or 0, **given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    settings = state.settings.with_flags(typed_settings(ctx)).for_model("").load
    parameters = round(params or 0)
    sizing = Sizing(
        shape,
        parameters=parameters,
        weight_bytes=0,
        precision=precision,
        tokens=settings.context or USUAL_CONTEXT,
        sessions=sessions,
        kv_type=settings.kv_types,
        memory_bytes=room.free_bytes,
    )
    return sizing.in_precision(precision)


def _check_options(
    verdicts: Sequence[Verdict], precision: str | None, sessions: int, price: float | None
) -> None:
    """Raise a usage error for options that have no effect on a table of several quants."""
    asked = {
        "--precision": precision is not None,
        "--sessions": sessions > 1,
        "--price-per-hour": price is not None,
    }
    if names := [name for name, is_asked in asked.items() if is_asked]:
        raise click.UsageError(
            f"{', '.join(names)}: name one quant, such as {verdicts[0].name}, or add --json."
        )


def _holds(sizing: Sizing) -> bool:
    """Whether all sessions fit; True if the size of the weights is not known."""
    return not sizing.weight_bytes or sizing.total <= sizing.memory_bytes


def _is_usable(found: Fit, precision: str | None) -> bool:
    """Whether the model fits as it is, or in another `precision`, and with all sessions."""
    if found.sizing is None or (precision is None and found.sizing.sessions == 1):
        return found.is_usable
    return (precision is not None or found.is_usable) and _holds(found.sizing)


def _as_asked(found: Fit, precision: str | None, sessions: int) -> Fit:
    """`found` recomputed for `precision` and `sessions`. Raises a usage error if the number of
    weights is needed but not known.
    """
    if found.sizing is None:
        return found
    sizing = replace(found.sizing, sessions=sessions)
    if precision is not None:
        if not sizing.parameters:
            raise click.UsageError("--precision: it is not known how many weights this model has.")
        sizing = sizing.in_precision(precision)
    return replace(found, sizing=sizing)


@dataclass(frozen=True, slots=True)
class _Cost:
    """The cost of generating, where memory bandwidth is the limit."""

    tok_per_s: float
    """Tokens per second of all sessions together."""
    per_million: float
    """Price of a million tokens, in the currency of the price per hour."""
    source: str
    """Where the bandwidth comes from."""


def _cost(sizing: Sizing | None, room: Room, price_per_hour: float | None) -> _Cost | None:
    """The cost; None if no price was given, or if the bandwidth or the weights are not known."""
    if sizing is None or price_per_hour is None or room.bandwidth is None:
        return None
    speed = sizing.tok_per_s(room.bandwidth.bytes_per_s)
    if not speed:
        return None
    return _Cost(speed, price_per_hour / speed / 3600 * 1e6, room.bandwidth.source)


def _json_of(cost: _Cost | None) -> dict[str, Any]:
    return {"cost": None if cost is None else asdict(cost)}


def _verdicts(state: State, model: str, flags: Layer, room: Room) -> Sequence[Verdict]:
    """One verdict for a model on this machine; otherwise one for each quant that `model` may mean.

    Raises:
        ModelNotFound: it is neither on this machine, in the catalogue nor on the Hub.
        HearthError: as `Hub.repository` and `hub_files.offer`.
    """
    from hearth.app.library.catalogue import load_catalogue
    from hearth.backends.errors import ModelNotFound

    try:
        return [_local(state, model, flags, room)]
    except ModelNotFound:
        entry = load_catalogue().get(model.partition(":")[0])
        if entry is None and not _is_repository(model):
            raise
    return list(_remote(state, model, entry, flags, room))


def _is_repository(model: str) -> bool:
    """Whether `model` can name a repository and is not a path."""
    return "/" in model and not model.startswith(("/", ".", "~")) and not model.endswith(".gguf")


def _local(state: State, model: str, flags: Layer, room: Room) -> Verdict:
    from hearth.app.chosen import with_settings
    from hearth.app.library.fit import fit_of_folder, fit_of_header
    from hearth.backends.native.model_folder import read_model_folder
    from hearth.quant.gguf import preflight

    # Not `State.choose`, because that offers to download a missing model.
    chosen = with_settings(state.library.resolve(model), state.settings.with_flags(flags))
    if chosen.found.remote is not None:
        url = chosen.found.remote.url
        raise click.UsageError(f"{chosen.found.name} runs at {url} and takes no memory here.")
    path, room = chosen.found.path, replace(room, disk_free_bytes=None)
    if path.is_dir():
        folder = read_model_folder(path)
        model_fit = fit_of_folder(folder, chosen.spec.settings, room)
        return Verdict(chosen.found.name, folder.size_bytes, model_fit)
    header = preflight.check(path)
    size = sum(part.size_bytes for part in (header, *header.shards))
    return Verdict(chosen.found.name, size, fit_of_header(header, chosen.spec.settings, room))


def _remote(
    state: State, model: str, entry: Entry | None, flags: Layer, room: Room
) -> Iterator[Verdict]:
    from hearth.app.library.errors import ChoiceNotFound
    from hearth.app.library.fit import facts_of, fit_of_download
    from hearth.app.library.hub import Hub
    from hearth.app.library.hub_files import find_choice, offer, parse_reference

    base, colon, quant = model.partition(":")
    reference = parse_reference(model if entry is None else f"{entry.repo}{colon}{quant}")
    settings = state.settings.with_flags(flags).for_model(base).load
    if entry is not None and state.settings.offline:
        if quant and quant.lower() not in map(str.lower, entry.sizes):
            raise ChoiceNotFound(
                f"The catalogue has no {quant} of {entry.name}.",
                f"It has {', '.join(entry.sizes)}. Without --offline, the Hub is asked for others.",
                name=quant,
                nearest=nearest(quant, [*entry.sizes], most=3),
                names=[*entry.sizes],
            )
        for name, size in entry.sizes.items():
            if not quant or name.lower() == quant.lower():
                facts = facts_of(size, entry)
                yield Verdict(f"{entry.name}:{name}", size, fit_of_download(facts, settings, room))
        return
    hub = Hub(offline=state.settings.offline)
    with state.output.note_if_slow(f"asking {hub.endpoint} …"):
        repository = hub.repository(reference.repo_id, reference.revision)
    offered = offer(repository)
    choices = offered.choices
    if reference.choice:
        choices = (find_choice(offered, reference.repo_id, reference.choice),)
    for choice in choices:
        facts = facts_of(choice.size_bytes, entry, repository)
        model_fit = fit_of_download(facts, settings, room)
        yield Verdict(f"{reference.repo_id}:{choice.name}", choice.size_bytes, model_fit)


def _room(
    state: State, *, downloads: bool, measures: bool, memory: int | None, bandwidth: int | None
) -> Room:
    """The memory and bandwidth of this machine, or those given. With `measures`, the bandwidth is
    measured now if it never was.
    """
    from hearth.app.library.bandwidth import Bandwidth, known_bandwidth, measure_bandwidth
    from hearth.app.library.cache_layout import hub_cache
    from hearth.app.library.fit import room_here
    from hearth.app.machine import this_machine
    from hearth.app.paths import own_folder

    machine = this_machine()
    memory_bandwidth = known_bandwidth(state.paths.cache, machine)
    if bandwidth is not None:
        memory_bandwidth = Bandwidth(bandwidth)
    elif memory_bandwidth is None and measures:
        with state.output.note_if_slow("measuring how fast memory is read …"):
            memory_bandwidth = measure_bandwidth(
                own_folder(state.paths.cache), machine, own_folder(state.paths.log)
            )
    room = room_here(hub_cache() if downloads else None, memory_bandwidth, machine)
    return room if memory is None else replace(room, free_bytes=memory, total_bytes=memory)


def _print_sizing(state: State, sizing: Sizing, cost: _Cost | None) -> None:
    """Print weights, KV cache and scratch memory, and how many sessions fit."""
    import psutil

    from hearth.quant.memory_sessions import STEP_TOKENS, packing_bytes

    out, shape = state.output, sizing.shape
    sessions = f"{sizing.sessions:,} session{'s' if sizing.sessions > 1 else ''}"
    out.data(
        f"{shape.layers} layers, {shape.heads} query heads and {shape.kv_heads} key-value heads of "
        f"{shape.key_length}, hidden {shape.width:,}: {sessions} of {sizing.tokens:,} tokens."
    )
    rows = [("BY FORMULA", "BINARY", "DECIMAL")]

    def add(title: str, size_bytes: int) -> None:
        rows.append((title, words.binary_size(size_bytes), words.size(size_bytes)))

    weights = f"weights ({words.count(sizing.parameters)} in {sizing.precision})"
    if sizing.weight_bytes:
        add(weights if sizing.parameters and sizing.precision else "weights", sizing.weight_bytes)
    add(f"KV cache ({sizing.kv_type})", sizing.kv_bytes)
    add(f"activations of {STEP_TOKENS} tokens", sizing.activations)
    add("scratch memory and logits", sizing.scratch)
    if sizing.weight_bytes:
        threads = psutil.cpu_count(logical=False) or 1
        add("in all", sizing.total)
        add("peak while quantizing", packing_bytes(threads))
        add("peak while making an importance matrix", sizing.calibrating)
    out.table(rows, right=(1, 2))
    if variants := sizing.variants():
        table = [("KV HEADS", "", "A SESSION", "SESSIONS THAT FIT")]
        table += [
            (
                f"{one.kind}{' (the model)' if one.is_own else ''}",
                f"{one.kv_heads}",
                words.binary_size(one.kv_bytes),
                "" if one.sessions is None else f"{one.sessions:,}",
            )
            for one in variants
        ]
        out.data("")
        out.table(table, right=(1, 2, 3))
    memory = f"{words.binary_size(sizing.memory_bytes)} ({words.size(sizing.memory_bytes)})"
    if (before := sizing.sessions_before_scratch) is not None:
        out.data(
            f"Into {memory} fit {before:,} sessions of {sizing.tokens:,} tokens before scratch "
            f"memory, {sizing.sessions_that_fit:,} with it."
        )
    elif not sizing.weight_bytes:
        out.note("How many sessions fit depends on the weights: --params and --precision.")
    if sizing.sessions > 1 and not _holds(sizing):
        out.data(f"{sessions} do not fit.")
    if cost is not None:
        out.data(
            f"Cost: {cost.per_million:.3g} per million tokens, at no more than "
            f"{cost.tok_per_s:,.1f} tokens a second of {sessions} ({cost.source})."
        )
    for sentence in sizing.outside():
        out.note(sentence)


def _print_one(state: State, verdict: Verdict) -> None:
    model_fit = verdict.fit
    out = state.output
    out.data(f"{verdict.name}, {words.size(verdict.size_bytes)}: {model_fit.words}")
    out.data(model_fit.reason)
    rows: list[tuple[str, str]] = [("MEMORY", "")]
    rows += [
        (title, words.size(size))
        for part, title in _PARTS.items()
        if (size := getattr(model_fit.use, part))
    ]
    if model_fit.use.total > model_fit.use.held:
        rows.append(
            ("more while the pool grows", words.size(model_fit.use.total - model_fit.use.held))
        )
    rows.append(("in all, at most", words.size(model_fit.use.total)))
    if model_fit.use.transposing:
        more = model_fit.use.most - model_fit.use.total
        rows.append(("if attention changes, and that is free, more", words.size(max(0, more))))
    if model_fit.use.uncertain:
        rows.append(("give or take", words.size(model_fit.use.uncertain)))
    out.table(rows, right=(1,))
    out.data(
        f"Context: for {model_fit.context:,} tokens ({model_fit.kv_type}); there is room for "
        f"{model_fit.largest_context:,}."
    )
    if model_fit.download_bytes and model_fit.room.disk_free_bytes is not None:
        free = words.size(model_fit.room.disk_free_bytes)
        out.data(f"Disk: {words.size(model_fit.download_bytes)} of {free} free.")
    if model_fit.speed is not None:
        out.data(f"Speed: {_speed(model_fit)} tokens a second ({model_fit.speed.source}).")
    out.data("Memory of a GPU: not known before a model is loaded; all is counted as memory.")


def _print_all(state: State, verdicts: Sequence[Verdict]) -> None:
    rows: list[tuple[str, ...]] = [("NAME", "SIZE", "NEEDS", "CONTEXT", "TOK/S", "FIT")]
    for verdict in verdicts:
        model_fit = verdict.fit
        about = "~" if model_fit.use.uncertain else ""
        rows.append(
            (
                verdict.name,
                words.size(verdict.size_bytes),
                f"{about}{words.size(model_fit.use.needed)}",
                f"{model_fit.largest_context:,}",
                _speed(model_fit),
                model_fit.state if model_fit.fits_on_disk is not False else "disk too small",
            )
        )
    state.output.table(rows, right=(1, 2, 3, 4))
    first = verdicts[0].fit
    state.output.note(
        f"For {first.context:,} tokens in {first.kv_type}, with {words.size(first.room.free_bytes)}"
        " of memory free. ~ is estimated from the size of the file. CONTEXT: for which there is "
        "room."
    )
    if first.speed is not None:
        state.output.note(f"TOK/S: what reading the weights allows, by {first.speed.source}.")


def _speed(found: Fit) -> str:
    """The speeds that memory bandwidth allows at the end and at the beginning of a context."""
    if found.speed is None:
        return ""
    most, least = found.speed.tok_per_s, found.speed.full_tok_per_s
    digits = 1 if most < 10 else 0
    limit = "at most " if found.speed.is_limit else ""
    return f"{limit}{least:,.{digits}f} to {most:,.{digits}f}"
