"""`hearth eval`: the quality of models on a text, compared with a reference, and the effect of
quantization methods on a model.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hearth.app import settings_keys as keys
from hearth.app.cli.evaluate_report import SESSIONS, add_ratios, print_report
from hearth.app.cli.options import complete_model, json_option, setting_options, typed_settings
from hearth.app.cli.output import run_shown
from hearth.app.cli.state import State
from hearth.app.exit_codes import ExitCode
from hearth.backends.errors import HearthError, to_info

if TYPE_CHECKING:
    from hearth.app.chosen import Chosen
    from hearth.app.library.evaluation import Conditions, Judged, Source
    from hearth.app.settings import Layer
    from hearth.backends.contract.models import ModelSpec

_PROTOCOLS: Final = ("windows", "second-half")
_TEMPORARY: Final = "eval-"
"""Prefix of the names of this command's folders in the cache folder; the process id follows."""
_SOURCES: Final = ("dequantized", "served")
_FILE_NAME: Final = str.maketrans("=/\\: ", "-----")
"""Characters of options that are replaced in file names."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """A model to be measured, one row of the report.

    Attributes:
        spec: how it is computed.
        chosen: the model, whose speed is measured; None for the reference in other number formats.
    """

    name: str
    logits: Source
    spec: ModelSpec
    chosen: Chosen | None


@click.command("eval")
@click.argument(
    "models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_model
)
@click.option(
    "--reference",
    metavar="MODEL",
    shell_complete=complete_model,
    help="The model whose logits the others are compared with, such as the F16 file of it.",
)
@click.option(
    "--methods",
    metavar="NAME,NAME,...",
    help="Quantize MODEL in these ways and compare: methods, METHOD:TYPE, or types like Q4_K_M, "
    "each with +OPTION or +OPTION=VALUE after it, such as gptq+group=64+no-act-order.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep what --methods makes in this folder. Default: it is deleted at the end.",
)
@click.option("--requantize", is_flag=True, help="MODEL of --methods is quantized already.")
@click.option("--yes", "-y", is_flag=True, help="Replace files that are in --output already.")
@click.option(
    "--speed/--no-speed",
    default=None,
    help="Measure decoding at 1 and 8 sessions. Default: with --methods.",
)
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure on this text. Default: the bundled one.",
)
@click.option(
    "--protocol",
    type=click.Choice(_PROTOCOLS),
    default="second-half",
    show_default=True,
    help="Score all tokens of each window, or only its second half, as llama-perplexity does.",
)
@click.option(
    "--context",
    type=click.IntRange(min=8),
    default=512,
    show_default=True,
    help="Tokens of a window.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=32),
    default=8192,
    show_default=True,
    help="Tokens of the text, at most.",
)
@click.option(
    "--logits",
    type=click.Choice(_SOURCES),
    help="From float32 numbers that the weights stand for, or as served. Default: as served; "
    "dequantized of the reference and with --methods.",
)
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw KL divergence over bits a weight into this file.",
)
@setting_options((keys.ALL["backend"], keys.ALL["threads"]))
@json_option
@click.pass_context
def evaluate(
    ctx: click.Context,
    /,
    models: tuple[str, ...],
    reference: str | None,
    methods: str | None,
    output: Path | None,
    requantize: bool,
    yes: bool,
    speed: bool | None,
    text: Path | None,
    protocol: Any,
    context: int,
    tokens: int,
    logits: Source | None,
    svg: Path | None,
    as_json: bool,
    **_options: Any,
) -> int:
    """Measure the quality of MODELs on a text: perplexity, and with --reference how far their
    predictions are from those of another model. docs/eval.md describes what is measured.

    With --methods, MODEL is quantized in each way, and its own weights are the reference. The exit
    code is 1 if something could not be measured.
    """
    from hearth.app.library.compare_quality import sample_of
    from hearth.app.library.evaluation import Conditions

    state: State = ctx.obj
    flags = typed_settings(ctx)
    if methods is None and (output or requantize or yes):
        raise click.UsageError("--output, --requantize and --yes go with --methods.")
    if methods is not None and (len(models) > 1 or reference is not None):
        raise click.UsageError("--methods takes one MODEL, which is its own reference.")
    names = [name.strip() for name in (methods or "").split(",") if name.strip()]
    if methods is not None and not names:
        raise click.UsageError("--methods names no method: give some, such as Q4_K_M,Q8_0.")
    if svg is not None and methods is None and reference is None:
        raise click.UsageError("--svg draws KL divergences, which need --reference or --methods.")
    if svg is not None and not svg.absolute().parent.is_dir():
        raise click.UsageError(f"--svg: there is no folder {svg.absolute().parent}.")
    chosen = [_chosen(state, name, flags) for name in models]
    base = chosen[0] if methods else _chosen(state, reference, flags) if reference else None
    is_guide = any(one.found.origin == "bundled" for one in (*chosen, *([base] if base else [])))
    conditions = Conditions(sample_of(text, for_guide=is_guide), protocol, context, tokens)
    with ExitStack() as leaving:
        work = _Evaluation(state, conditions, leaving)
        wishes = []
        if methods is not None:
            wishes = work.plan(chosen[0], names, output, requantize=requantize, replace=yes)
        if base is not None:
            work.measure_reference(base, "served" if logits == "served" else "dequantized")
        if methods is None:
            subjects = [_subject(one.found.name, one, logits or "served") for one in chosen]
        else:
            new_models = work.make(wishes, flags)
            subjects = [*_noise(chosen[0], work.reference_logits)]
            subjects += [_subject(name, one, logits or "dequantized") for name, one in new_models]
        report = work.run(subjects, measures_speed=methods is not None if speed is None else speed)
        if methods is None or output is not None:
            work.store(report, subjects)
    if as_json:
        state.output.json(report)
    else:
        print_report(state.output, report)
    has_failed = any("error" in row for row in report["rows"])
    if svg is not None and not _draw(state, report, svg):
        has_failed = True
    return ExitCode.FAILED if has_failed else ExitCode.OK


def _draw(state: State, report: dict[str, Any], path: Path) -> bool:
    """Write the picture. Returns False, after a message, if there is nothing to draw."""
    from hearth.app.cli.evaluate_picture import picture
    from hearth.app.library.errors import FileTrouble

    drawn = picture(report)
    if not drawn:
        state.output.problem(
            f"{path} was not drawn: no model has both bits a weight and a KL divergence above 0."
        )
        return False
    try:
        path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise FileTrouble(
            f"{path}: {error.strerror or error}.", "Write to another path (--svg)."
        ) from error
    state.output.note(f"{path} was drawn.")
    return True


def _chosen(state: State, name: str, flags: Layer) -> Chosen:
    chosen = state.choose(name, flags)
    if chosen.found.remote is not None:
        raise click.UsageError(
            f"{chosen.found.name} runs elsewhere; its logits are not known here."
        )
    return chosen


def _subject(name: str, chosen: Chosen, logits: Source) -> _Subject:
    return _Subject(name, logits, _computed(chosen.spec, logits), chosen)


def _computed(spec: ModelSpec, logits: Source) -> ModelSpec:
    """`spec` changed so that it computes its logits as `logits` says."""
    from hearth.backends.bench.logits import as_dequantized

    return as_dequantized(spec) if logits == "dequantized" else spec


def _noise(reference: Chosen, logits: Source) -> list[_Subject]:
    """The reference once more, and in half precision: smaller differences than theirs mean
    nothing.
    """
    if logits == "served":
        return [_Subject("reference, again", logits, reference.spec, None)]
    spec = reference.spec
    half = replace(spec, backend="native", settings=replace(spec.settings, dtype="bf16"))
    return [
        _Subject("f32, again", logits, _computed(spec, logits), None),
        _Subject("bf16, as served", "served", half, None),
    ]


class _Evaluation:
    """Runs the jobs of one command, one after the other.

    Args:
        leaving: removes the temporary files when it is closed.
    """

    def __init__(self, state: State, conditions: Conditions, leaving: ExitStack) -> None:
        from hearth.app.paths import own_folder

        self._state = state
        self._conditions = conditions
        self._leaving = leaving
        self._cache, self._log = own_folder(state.paths.cache), own_folder(state.paths.log)
        _remove_orphans(self._cache)
        self._reference: Judged | None = None
        self._logits_file = ""

    @property
    def reference_logits(self) -> Source:
        """How the logits of the reference were computed."""
        assert self._reference is not None
        return self._reference.logits

    def measure_reference(self, chosen: Chosen, logits: Source) -> None:
        """Write the reference's logits to a temporary file. A model that the native runner does not
        support is measured as served.
        """
        if logits == "dequantized" and (why := _not_dequantized(chosen)):
            self._state.output.note(f"{chosen.found.name} is measured as served: {why}.")
            logits = "served"
        self._logits_file = f"{self._temporary_folder()}/logits.f32"
        name = chosen.found.name
        subject = _Subject(name, logits, _computed(chosen.spec, logits), chosen)
        self._reference = self._judge(subject, keep=self._logits_file)

    def plan(
        self,
        source: Chosen,
        names: Sequence[str],
        folder: Path | None,
        *,
        requantize: bool,
        replace: bool,
    ) -> list[tuple[str, dict[str, Any]]]:
        """The questions for the jobs that quantize `source` by each method of `names`, all of them
        checked to be possible.

        Raises:
            HearthError: a method does not exist or cannot be applied, or its file already exists.
            UsageError: two of the methods are the same.
        """
        from hearth.app.library import quantize_job
        from hearth.app.library.errors import FileTrouble
        from hearth.app.library.quantize_methods import all_methods
        from hearth.quant.gguf.quantize_file import check_target
        from hearth.quant.methods import read_options

        model = source.found
        if folder is None:
            folder = self._temporary_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileTrouble(
                f"{folder}: {error.strerror or error}.", "Choose another folder (--output)."
            ) from error
        known, wanted = all_methods(), {"requantize"} if requantize else set()
        wishes: list[tuple[str, dict[str, Any]]] = []
        for name in names:
            way, *given = name.split("+")
            method, target = known.named_or_making(way, model.path)
            options = dict.fromkeys({one.name for one in method.options} & wanted, True)
            options |= read_options(method, given)
            method.plan(model.path, target, options)
            own = "-".join((target, *given)).translate(_FILE_NAME)
            file = quantize_job.file_name(model.name, own, method.suffix)
            question = quantize_job.question(
                method=method.name,
                source=str(model.path),
                type=target,
                options=options,
                target=(folder / file).absolute(),
                replace=replace,
            )
            for other, asked in wishes:
                if asked["target"] == question["target"]:
                    raise click.UsageError(f"--methods: {name} makes the same file as {other}.")
            check_target(folder / file, replace=replace, is_folder=not method.suffix)
            wishes.append((name, question))
        return wishes

    def make(
        self, wishes: Sequence[tuple[str, dict[str, Any]]], flags: Layer
    ) -> list[tuple[str, Chosen]]:
        """Run the jobs of `plan` and return the new models."""
        from hearth.app.chosen import with_settings
        from hearth.app.library import quantize_job
        from hearth.app.library.local import FoundModel

        settings = self._state.settings.with_flags(flags)
        new_models = []
        for name, question in wishes:
            answer = run_shown(quantize_job.quantize, question, f"making {name}", self._log)
            path = Path(answer["path"])
            stem = path.stem if path.is_file() else path.name
            new_models.append((name, with_settings(FoundModel(stem, path, "path"), settings)))
        return new_models

    def run(self, subjects: Sequence[_Subject], *, measures_speed: bool) -> dict[str, Any]:
        """Measure `subjects` and return the report. The row of one that fails has its error."""
        from hearth.app.jobs.child import Stopped
        from hearth.app.library.evaluation import (
            comparisons,
            conditions_facts,
            weights_facts,
        )

        judged, rows = [], []
        for subject in subjects:
            facts: dict[str, Any] = {"name": subject.name}
            try:
                judgement = self._judge(subject)
                facts |= judgement.facts()
                judged.append(judgement)
                if subject.chosen is not None:
                    facts |= weights_facts(subject.chosen.found.path)
                    if measures_speed:
                        facts["speed"] = self._speed(subject.name, subject.chosen)
            except Stopped:
                raise
            except HearthError as error:
                self._state.output.error(error)
                facts["error"] = asdict(to_info(error))
            rows.append(facts)
        add_ratios(rows)
        reference = self._reference
        first = reference or next(iter(judged), None)
        return {
            **(conditions_facts(self._conditions, first) if first is not None else {}),
            "reference": reference.facts() if reference is not None else None,
            "rows": rows,
            "comparisons": comparisons(judged),
        }

    def store(self, report: dict[str, Any], subjects: Sequence[_Subject]) -> None:
        """Write a report next to each measured model."""
        from hearth.app.library.evaluation import store

        for subject, row in zip(subjects, report["rows"], strict=True):
            if subject.chosen is None or "error" in row:
                continue
            try:
                is_stored = store(subject.chosen.found, report, row)
            except OSError as error:
                self._state.output.problem(f"The report of {subject.name} was not stored: {error}.")
                continue
            if not is_stored:
                origin = subject.chosen.found.origin
                self._state.output.note(
                    f"The report of {subject.name} is not stored: its folder is not Hearth's "
                    f"({origin})."
                )

    def _judge(self, subject: _Subject, *, keep: str | None = None) -> Judged:
        from hearth.app.library.evaluate_job import quality, quality_question
        from hearth.app.library.evaluation import Judged

        extra: dict[str, Any] = {}
        if keep is not None:
            extra["keep"] = keep
        elif self._reference is not None:
            digest = self._reference.answer["tokens_sha256"]
            extra["reference"] = {"path": self._logits_file, "tokens_sha256": digest}
        asked = self._conditions.question()
        question = quality_question(subject.spec, self._cache, asked, **extra)
        answer = run_shown(quality, question, f"scoring {subject.name}", self._log, "{:,}".format)
        return Judged(subject.name, subject.logits, answer)

    def _speed(self, name: str, chosen: Chosen) -> dict[str, Any]:
        from hearth.app.library.evaluate_job import speed

        question = {
            "spec": asdict(chosen.spec),
            "cache_dir": str(self._cache),
            "sessions": SESSIONS,
        }
        return run_shown(speed, question, f"timing {name}", self._log, "{:,}".format)

    def _temporary_folder(self) -> Path:
        prefix = f"{_TEMPORARY}{os.getpid()}-"
        temporary = tempfile.TemporaryDirectory(prefix=prefix, dir=self._cache)
        return Path(self._leaving.enter_context(temporary))


def _remove_orphans(cache: Path) -> None:
    """Delete the temporary folders of killed commands, which can be large."""
    import psutil

    for folder in cache.glob(f"{_TEMPORARY}*-*"):
        pid = folder.name.removeprefix(_TEMPORARY).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _not_dequantized(chosen: Chosen) -> str:
    """Why the native runner cannot compute the model; empty if it can, judging by the headers."""
    from hearth.backends.worker.choice import not_native
    from hearth.quant.gguf import preflight

    path = chosen.found.path
    return "" if path.is_dir() else not_native(preflight.check(path))
