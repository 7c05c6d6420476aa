"""`hearth quantize`: makes a smaller file of a model and measures the effect."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hearth.app import format as words
from hearth.app.cli.options import Command, complete_model, json_option
from hearth.app.cli.state import State

if TYPE_CHECKING:
    from hearth.app.library.compare_quality import Quality, Sample
    from hearth.app.library.local import FoundModel
    from hearth.backends.contract.models import ModelSpec
    from hearth.quant.methods import Method, Option, Plan


class _FileOr(click.Path):
    """A file, or one of several words."""

    def __init__(self, choices: tuple[str, ...]) -> None:
        super().__init__(exists=True, dir_okay=False, resolve_path=True)
        self._choices = choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in self._choices else super().convert(value, param, ctx)


def _method_options(command: Command) -> Command:
    """Add the options of all methods, each once, with the names of the methods that have it."""
    from hearth.app.library.quantize_methods import all_methods

    owners: dict[str, list[str]] = {}
    every: dict[str, Option] = {}
    for method in all_methods():
        for option in method.options:
            owners.setdefault(every.setdefault(option.name, option).name, []).append(method.name)
    for option in reversed(every.values()):
        about = f"Of {', '.join(owners[option.name])}: {option.help}"
        for declared in reversed(_click_options(option, about)):
            command = declared(command)
    return command


def _click_options(option: Option, about: str) -> list[Callable[[Command], Command]]:
    flag, name = f"--{option.name}", option.name.replace("-", "_")
    if option.are_flags:
        return [
            click.option(f"--{one}", name, flag_value=one, help=about) for one in option.choices
        ]
    kinds: dict[str, dict[str, Any]] = {
        "file": {
            "type": _FileOr(option.choices),
            "metavar": "|".join(("FILE", *option.choices)),
        },
        "texts": {"multiple": True},
        "flag": {"is_flag": True},
        "number": {"type": click.IntRange(min=option.least), "metavar": "N"},
        "choice": {"type": click.Choice(option.choices)},
    }
    return [click.option(flag, name, help=about, **kinds[option.kind])]


@dataclass(frozen=True, slots=True)
class _Wish:
    """A file to be made; it has been checked that it can be."""

    source: FoundModel
    method: Method
    type: str
    options: dict[str, Any]
    plan: Plan
    target: Path


@click.command("quantize")
@click.argument("source", shell_complete=complete_model)
@click.argument("type", metavar="[TYPE]", required=False)
@click.option("--to", metavar="TYPE", help="Another way to say TYPE.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="The new file or folder. Default: SOURCE-TYPE in the library folder.",
)
@_method_options
@click.option("--threads", type=click.IntRange(1, 256), help="Default: one a physical core.")
@click.option("--dry-run", is_flag=True, help="Say what would be made, tensor by tensor.")
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure perplexity on this text. Default: the bundled one.",
)
@click.option("--no-check", is_flag=True, help="Do not measure perplexity and speed afterwards.")
@click.option("--yes", "-y", is_flag=True, help="Replace a file that is there.")
@json_option
@click.pass_obj
def quantize(
    state: State,
    /,
    source: str,
    type: str | None,  # noqa: A002 - what people call it
    to: str | None,
    output: Path | None,
    threads: int | None,
    dry_run: bool,
    text: Path | None,
    no_check: bool,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Make a smaller file of SOURCE: a name that `hearth list` shows, or a path to a GGUF file in
    F16, BF16 or F32, or to a folder of safetensors. Ctrl+C pauses; the same command resumes.

    TYPE is what to make: a file of a GGUF type such as Q4_K_M, Q6_K, Q8_0 or IQ4_XS, or, of a
    folder of safetensors, a folder by int8, fp8, nf4, int4, hqq, gptq, awq or best.
    docs/quantize.md has them all.
    """
    from hearth.app.library import quantize_job
    from hearth.app.library.compare_quality import sample_of
    from hearth.app.library.quantized import keep_measured, speed_change
    from hearth.quant.gguf.quantize_file import check_target

    if (type is None) == (to is None):
        raise click.UsageError("Say once which TYPE to make, such as Q4_K_M.")
    options = {
        name.replace("_", "-"): list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value is not False and value not in (None, ())
    }
    wish = _wish(state, source, type or to or "", options, output)
    if dry_run:
        planned = {**wish.plan.facts(tensors=True), "method": wish.method.name}
        _show_plan(state, planned, wish.target, as_json=as_json)
        return 0
    check_target(wish.target, replace=yes, is_folder=not wish.method.suffix)
    plan = wish.plan
    before_bits, after_bits = f"{plan.source_bits_per_weight:.2f}", f"{plan.bits_per_weight:.2f}"
    is_bundled = wish.source.origin == "bundled"
    sample = None if no_check else sample_of(text, for_guide=is_bundled)
    if not as_json:
        state.output.note(
            f"{wish.source.name} · {words.size(plan.source_bytes)} ({before_bits} bits a weight)"
            f" → {wish.type} · {words.size(plan.size_bytes)} ({after_bits})"
        )
        if plan.facts().get("imatrix") == "auto":
            state.output.note("An importance matrix is made first, unless the cache has it.")
    question = quantize_job.question(
        method=wish.method.name,
        source=str(wish.source.path),
        type=wish.type,
        options=wish.options,
        target=wish.target,
        replace=yes,
        threads=threads,
    )
    result = _make(state, question)
    facts: dict[str, Any] = {"plan": plan.facts(), "result": result}
    rows = [
        ("", "BEFORE", "AFTER"),
        ("model", wish.source.name, wish.target.name.removesuffix(wish.method.suffix)),
        ("size", words.size(plan.source_bytes), words.size(plan.size_bytes)),
        ("bits a weight", before_bits, after_bits),
    ]
    notes = []
    if sample is not None:
        before, after = _measure(state, wish, sample)
        change, error = keep_measured(wish.target, sample.name, before, after)
        known = math.isfinite(change)
        facts |= {
            "before": before.facts(),
            "after": after.facts(),
            "perplexity_change": {"relative": change, "error": error} if known else None,
            "text": sample.name,
        }
        rows.append(("perplexity", _perplexity(before), _perplexity(after)))
        rows.append(("decode", _speed(before), _speed(after)))
        notes.append(
            f"Perplexity {change:+.2%} ± {error:.2%}, over {after.scored_tokens:,} tokens of the "
            f"text, each after at least {after.window_tokens // 2:,} others."
        )
        if before.is_busy or after.is_busy:
            notes.append(f"Decoding: {speed_change(before, after)}.")
    if as_json:
        state.output.json(facts)
        return 0
    state.output.table(rows, right=(1, 2))
    for note in notes:
        state.output.note(note)
    seconds = words.duration(result["wall_s"])
    state.output.note(
        f"{wish.target} was made in {seconds}; its recipe is in {result['manifest']}."
    )
    return 0


@click.command("convert")
@click.argument("source", shell_complete=complete_model)
@click.option(
    "--format",
    "kind",
    type=click.Choice(("compressed-tensors", "gptq", "awq", "gguf")),
    required=True,
    help="A folder in that format (gptq: the second, awq: gemm), or a GGUF file.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="The new folder or file. Default: SOURCE-FORMAT in the library folder.",
)
@click.option(
    "--file-mb",
    type=click.IntRange(min=1),
    metavar="N",
    help="Megabytes of a safetensors file at most (5,000 by default).",
)
@click.option("--dry-run", is_flag=True, help="Say what would be made, tensor by tensor.")
@click.option("--yes", "-y", is_flag=True, help="Replace what is there.")
@json_option
@click.pass_obj
def convert(
    state: State,
    /,
    source: str,
    kind: str,
    output: Path | None,
    file_mb: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Write SOURCE, a folder of packed weights in the format of GPTQ, AWQ or compressed-tensors, in
    another of these formats, or as a GGUF file. Nothing is rounded: all weights stay the same to
    the bit, and what a format has no place for is refused by name. Ctrl+C pauses; the same command
    resumes.
    """
    from hearth.app.jobs.job import run_job
    from hearth.app.library import quantize_job
    from hearth.app.library.quantize_methods import CONVERT
    from hearth.app.paths import own_folder
    from hearth.quant.gguf.quantize_file import check_target

    model, suffix = _local(state, source), ".gguf" if kind == "gguf" else ""
    folder = state.paths.models if output is None else output
    options = {"format": kind} | ({"file-mb": file_mb} if file_mb else {})
    question = quantize_job.question(
        method=CONVERT,
        source=str(model.path),
        type=CONVERT,
        options=options,
        target=folder.absolute(),
        replace=yes,
        threads=1,
    )
    plan = run_job(quantize_job.plan, question, lambda _: None, own_folder(state.paths.log))
    if output is None or (suffix and output.is_dir()):
        output = folder / f"{model.name}-{plan['type'] if suffix else kind}{suffix}"
    question["target"] = str(output.absolute())
    if dry_run:
        _show_plan(state, plan | {"method": CONVERT}, output.absolute(), as_json=as_json)
        return 0
    check_target(output, replace=yes, is_folder=not suffix)
    result = _make(state, question)
    if as_json:
        state.output.json({"plan": plan, "result": result})
        return 0
    for notice in plan.get("notices", ()):
        state.output.note(notice)
    sizes = f"{words.size(plan['source_bytes'])} → {words.size(plan['size_bytes'])}"
    seconds = words.duration(result["wall_s"])
    state.output.note(
        f"{output} was made in {seconds}: {sizes}, the same weights in {kind}; what it was made of "
        f"is in {result['manifest']}."
    )
    return 0


def _local(state: State, source: str) -> FoundModel:
    """The model called `source`. Raises `UnsupportedModel` if it is on another machine."""
    from hearth.backends.errors import UnsupportedModel

    model = state.library.resolve(source)
    if model.remote is not None:
        raise UnsupportedModel(
            f"{model.name} is on another machine; what is quantized must be a file on this one.",
            "Download the model's files first.",
        )
    return model


def _wish(
    state: State, source: str, kind: str, options: dict[str, Any], output: Path | None
) -> _Wish:
    from hearth.app.library.quantize_job import file_name
    from hearth.app.library.quantize_methods import all_methods

    model = _local(state, source)
    method, name = all_methods().making(kind, model.path)
    plan = method.plan(model.path, name, options)
    if output is None or (method.suffix and output.is_dir()):
        folder = state.paths.models if output is None else output
        output = folder / file_name(model.name, name, method.suffix)
    return _Wish(model, method, name, options, plan, output.absolute())


def _make(state: State, question: dict[str, Any]) -> dict[str, Any]:
    """Run or resume the job. Raises `Stopped` after Ctrl+C; completed parts are kept."""
    from hearth.app.cli.output import run_pausable
    from hearth.app.library import quantize_job
    from hearth.app.paths import own_folder

    log = own_folder(state.paths.log)
    return run_pausable(state.output, quantize_job.quantize, question, log)


def _measure(state: State, wish: _Wish, sample: Sample) -> tuple[Quality, Quality]:
    """The quality of the source and of the result, measured one after the other."""
    from hearth.app.chosen import with_settings
    from hearth.app.library.compare_quality import measure_on
    from hearth.app.library.local import FoundModel

    name = wish.target.name.removesuffix(wish.method.suffix)
    result = FoundModel(name, wish.target, "path")
    qualities = []
    with state.link() as link:

        async def measured(spec: ModelSpec) -> Quality:
            return await measure_on(link.connection, spec, sample)

        for model, when in ((wish.source, "before"), (result, "after")):
            with state.output.note_if_slow(f"measuring perplexity {when} …"):
                qualities.append(link.run(measured(with_settings(model, state.settings).spec)))
    return qualities[0], qualities[1]


def _show_plan(state: State, facts: dict[str, Any], target: Path, *, as_json: bool) -> None:
    facts = {**facts, "target": str(target)}
    if as_json:
        state.output.json(facts)
        return
    rows = [("TENSOR", "SHAPE", "FROM", "TO", "SIZE")]
    rows += [
        (
            tensor["name"],
            " × ".join(map(str, tensor["shape"])),
            tensor["source_type"],
            tensor["type"],
            words.size(tensor["size_bytes"]),
        )
        for tensor in facts["tensors"]
    ]
    state.output.table(rows, right=(4,))
    state.output.data("")
    types = ", ".join(f"{count} {name}" for name, count in facts["types"].items())
    lines = {
        "file": facts["target"],
        "size": f"{facts['size_bytes']:,} bytes, of {facts['source_bytes']:,}",
        "bits a weight": f"{facts['bits_per_weight']:.2f}, "
        f"of {facts['source_bits_per_weight']:.2f}",
        "tensors": types,
        "memory": f"{words.size(facts['memory_bytes'])} (weights and KV cache at "
        f"{facts['memory_context']:,} tokens)",
    }
    for title, value in lines.items():
        state.output.data(f"{title:13}  {value}")
    if facts["fallbacks"]:
        state.output.note(
            f"{len(facts['fallbacks'])} tensors get another type than {facts['type']} wants: their "
            "rows are not made of such blocks."
        )


def _perplexity(quality: Quality) -> str:
    return f"{quality.perplexity:.3f} ± {quality.perplexity_error:.3f}"


def _speed(quality: Quality) -> str:
    return f"{quality.decode_tok_per_s:,.1f} tok/s" if quality.decode_tok_per_s else "not measured"
