"""The output of `hearth bench`: a table that grows row by row, or one JSON document."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hearth.app import format as words
from hearth.app.cli.state import State
from hearth.app.machine import Machine, this_machine
from hearth.app.tuned import TunedFor, TunedStore
from hearth.backends.bench.cases import cases
from hearth.backends.bench.job import (
    Ablated,
    Choice,
    Job,
    Measured,
    Message,
    Progress,
    Setup,
    Skipped,
    Speculated,
    Spread,
    Tuned,
)

_WIDTH = 16
"""Width of a column; columns of ratios are narrower if there are several reference sides."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table.

    Attributes:
        cell: returns the text of the cell for one test.
    """

    title: str
    cell: Callable[[Measured], str]
    width: int = _WIDTH


class Report:
    """Takes the messages of a measuring process and prints them: results to stdout, the rest to
    stderr.
    """

    def __init__(self, state: State, job: Job, *, as_json: bool) -> None:
        self._output = state.output
        self._job = job
        self._as_json = as_json
        self._machine = this_machine()
        self._date = datetime.now(UTC).date().isoformat()
        self._store = TunedStore(state.paths.tuned_file)
        self._setup: Setup | None = None
        self._tests: list[Measured] = []
        self._skipped: list[Skipped] = []
        self._tuned: Tuned | None = None
        self._ablated: list[Ablated] = []
        self._speculated: list[Speculated] = []
        self._name_width = max((len(case.name) for case in cases(job)), default=0)

    def take(self, message: Message) -> None:
        """Print `message`, or keep it for the JSON document."""
        if isinstance(message, Progress):
            if self._output.narrates_to_terminal:
                self._output.note(f"{message.text} …")
        elif isinstance(message, Skipped):
            self._skipped.append(message)
            self._output.note(f"skipped: {message.test}: {message.reason}")
        elif isinstance(message, Setup):
            self._setup = message
            self._begin(message)
        elif isinstance(message, Measured):
            self._tests.append(message)
            if not self._as_json:
                self._output.data(self._row(message))
        elif isinstance(message, Ablated):
            self._ablated.append(message)
        elif isinstance(message, Speculated):
            self._speculated.append(message)
        elif isinstance(message, Tuned):
            self._keep(message)

    def end(self) -> None:
        """Finish the output: everything has been measured."""
        if self._as_json:
            self._output.json(self._document())
        elif self._ablated:
            self._output.table(ablation_table(self._ablated, self._job), right=range(1, 7))
        elif self._speculated:
            self._output.table(speculation_table(self._speculated), right=(0, *range(3, 10)))
        elif not self._tests and self._tuned is None:
            self._output.problem("Nothing could be measured.")

    def _begin(self, setup: Setup) -> None:
        for notice in setup.info.notices:
            self._output.note(notice)
        known = self._store.get(self._key(setup.info.backend_version))
        if known is not None:
            self._output.note(f"tuned before, for many answers in all: {flags(known.throughput)}")
        if self._as_json:
            return
        for line in headlines(setup, self._machine, self._date):
            self._output.data(line)
        if self._job.ablate or self._job.speculate:
            return
        self._columns = columns(setup, self._job)
        titles = "".join(one.title.rjust(one.width) for one in self._columns)
        self._output.data("")
        self._output.data(f"{'test':{self._name_width}}{titles}")

    def _row(self, found: Measured) -> str:
        row = "".join(one.cell(found).rjust(one.width) for one in self._columns)
        return f"{found.test:{self._name_width}}{row}".rstrip()

    def _keep(self, tuned: Tuned) -> None:
        self._tuned = tuned
        self._store.put(self._key(tuned.library), tuned)
        if self._as_json:
            return
        self._output.data(f"best of {tuned.tried} measurements on {self._machine.cpu}:")
        for title, choice in (
            ("one answer soon", tuned.latency),
            ("many answers in all", tuned.throughput),
        ):
            self._output.data("")
            self._output.data(f"{title}: {flags(choice)}")
            self._output.data(
                f"  a request of {self._job.prompt_tokens} + {self._job.gen_tokens} tokens among"
                f" {choice.sessions} takes {choice.request_s:.1f} s ·"
                f" {choice.generated_tok_per_s:.1f} new tok/s in all"
                f" (prefill {choice.prefill_tok_per_s:.0f}, decode {choice.decode_tok_per_s:.1f})"
            )
            if choice.batch_threads != choice.threads:
                self._output.data(f"  in settings.toml: batch_threads = {choice.batch_threads}")

    def _key(self, library: str) -> TunedFor:
        return TunedFor.of(self._machine, Path(self._job.spec.path), library)

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "date": self._date,
            "machine": asdict(self._machine),
            "setup": self._setup and asdict(self._setup),
            "skipped": [asdict(skipped) for skipped in self._skipped],
        }
        if self._tuned is not None:
            document["tuned"] = asdict(self._tuned)
            return document
        if self._job.ablate:
            document["ablations"] = [asdict(result) for result in self._ablated]
            return document
        if self._job.speculate:
            document["speculation"] = [asdict(result) for result in self._speculated]
            return document
        document["tests"] = [self._test(result) for result in self._tests]
        return document

    def _test(self, found: Measured) -> dict[str, Any]:
        return {
            **asdict(found),
            "engine_tok_per_s": asdict(Spread.of(found.engine)),
            "beside_tok_per_s": {
                name: asdict(Spread.of(rates)) for name, rates in found.beside.items()
            },
            "ratio": {name: asdict(found.ratio(name)) for name in found.beside},
            "bandwidth_share": self._setup and found.bandwidth_share(self._setup),
        }


def columns(setup: Setup, job: Job) -> list[Column]:
    """The columns that apply to at least one test of `job`."""
    shown = [Column("engine tok/s", lambda found: _rate(Spread.of(found.engine)))]
    for name in setup.beside:
        shown += _beside(name, alone=len(setup.beside) == 1)
    if setup.weight_bytes and not setup.mixture and set(job.tests) != {"pp"}:
        shown.append(Column("of bandwidth", lambda found: _percent(found.bandwidth_share(setup))))
    return shown


def _beside(name: str, *, alone: bool) -> list[Column]:
    """The rate of the reference side `name`, and the engine's rate divided by it."""
    title = f"engine / {name}" if alone else f"/ {name}"
    return [
        Column(f"{name} tok/s", lambda found: _rate(Spread.of(found.beside[name]))),
        Column(
            title,
            lambda found: f"{found.ratio(name).median:.3f}",
            _WIDTH if alone else len(title) + 2,
        ),
    ]


def ablation_table(found: list[Ablated], job: Job) -> list[tuple[str, ...]]:
    """A table of medians, with the ratio to the run with everything on in brackets."""

    def cell(name: str, one: Ablated, scale: float, unit: str) -> str:
        value, base = (statistics.median(getattr(each, name)) for each in (one, found[0]))
        share = f" ({value / base:.2f})" if one.off != "nothing" else ""
        return f"{value * scale:,.1f}{unit}{share}"

    sessions = job.sessions[0]
    head = ("OFF", "TTFT", f"TTFT × {sessions} SHARED", "TPOT", f"TOK/S × {sessions}")
    rows: list[tuple[str, ...]] = [(*head, "COMPUTED", "SAME TOKENS", "LAYERS, WEIGHTS")]
    for one in found:
        times = (cell(name, one, 1e3, " ms") for name in ("ttft_s", "shared_ttft_s", "tpot_s"))
        same = f"{one.same_tokens} of {one.tokens}"
        speed = cell("tok_per_s", one, 1, "")
        rows.append((one.off, *times, speed, f"{one.computed_tokens:,}", same, one.computed_by))
    return rows


def speculation_table(found: list[Speculated]) -> list[tuple[str, ...]]:
    """A table of medians, with each measured speed-up next to the one that the formula predicts."""
    head = ("SESSIONS", "DRAFTS", "RIGHT BY POSITION", "TOKENS A STEP", "COST K+1", "COST OF DRAFT")
    rows: list[tuple[str, ...]] = [
        (*head, "PREDICTED", "SPEED-UP", "PREDICTED (CPU)", "SPEED-UP (CPU)", "SAME TOKENS")
    ]
    for one in found:
        rows.append(
            (
                str(one.sessions),
                one.mode,
                words.right_by_position(one.drafted_tokens, one.accepted_tokens) or "none drafted",
                f"{one.tokens_a_step:.2f}",
                f"{one.cost_ratio:.2f}",
                f"{one.draft_ratio:.2f}" if one.draft_ratio else "",
                f"{one.predicted:.2f}",
                f"{statistics.median(one.speed_up):.2f}",
                f"{one.predicted_cpu:.2f}",
                f"{statistics.median(one.speed_up_cpu):.2f}",
                f"{one.same_tokens} of {one.tokens}",
            )
        )
    return rows


def headlines(setup: Setup, machine: Machine, date: str) -> list[str]:
    """Lines that state what was measured, with which software, and on which machine."""
    info = setup.info
    native = f"native, PyTorch {info.backend_version}"
    library = native if info.backend == "native" else info.backend_version
    return [
        f"{info.name} · {info.quantization} · {words.size(info.size_bytes)} · "
        f"{words.count(info.parameters)} parameters",
        f"{library} · threads {info.threads} (prefill {info.batch_threads}) · "
        f"{info.kv_type} KV · flash attention {setup.flash_attention} · "
        f"batch {setup.batch} / {setup.ubatch} · pool {setup.pool_tokens:,}",
        f"{machine.cpu} · {machine.usable_cores} cores · reads memory at "
        f"{setup.read_bytes_per_s / 1e9:.1f} GB/s (sums of 256 MiB by numpy) · {date}",
    ]


def flags(choice: Choice) -> str:
    """The command-line flags that select `choice`."""
    return (
        f"--threads {choice.threads} --max-batch-tokens {choice.max_batch_tokens} "
        f"--kv-type {choice.kv_type} --max-sessions {choice.sessions}"
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _rate(spread: Spread) -> str:
    digits = 0 if spread.median >= 1000 else 1
    return f"{spread.median:,.{digits}f} ± {spread.deviation:.{digits}f}"
