"""The speedup by drafts: `python benchmarks/medusa.py MODEL [--draft MODEL] [--heads FILE]`.

The model is asked to repeat a piece of code with a name changed, or to answer questions, in several
sessions at once, without drafts and with drafts of each available kind. Each kind has its own model
and engine, and they alternate in slices of 10 ms. One copy of a model may be faster than another,
depending on where the system has placed it in memory. Therefore each copy first answers each group
of questions without drafts, and "measured" is its speed with drafts divided by its speed without,
relative to the same ratio of a copy that never drafts. "Predicted" is E[tokens per step] / (cost of
a step with drafts / cost of one without + cost of drafting / cost of a step without). For "auto" it
is what the engine's accounts predict: 1 minus the share of time that was charged for trying drafts,
where the charge is negative if drafts gained more than they cost. A mode that is named several
times has a row for each, and a line with their mean and its standard error. With `--cpu` all times
are of the process's CPU, for machines that are in use.

With `--processes N` the same is measured in N processes, one after another, in each of which "auto"
knows nothing at first; modes have a line with the mean and standard error of all of them.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hearth.backends.bench.speculation import CODE
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams, Speculate
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.medusa import HeadsDrafter, TakesHeads
from hearth.backends.engine.sampler import Sampler
from hearth.backends.engine.speculation import Drafter
from hearth.backends.text.renderer import Renderer
from hearth.backends.worker.drafting import open_draft
from hearth.backends.worker.prompts import Prompts
from hearth.backends.worker.runners import open_model

Clock = Callable[[], float]
TURN_S = 0.01
GREEDY = SamplingParams(temperature=0.0)
_CODE = CODE.format(name="describe")
PROMPT = f"# Rename describe to show, and repeat all of the code.\n{_CODE}\n# The same, renamed:\n"


class Side:
    """Sessions with drafts of one kind. They have their own engine, which is kept from one group of
    sessions to the next.

    Args:
        loaded: the model; None: load a separate one.
    """

    def __init__(
        self, mode: str, args: argparse.Namespace, clock: Clock, loaded: Loaded | None = None
    ) -> None:
        self.mode = mode
        self.loaded, self.drafters = (loaded, []) if loaded else _opened(mode, args, clock)
        self.engine = Engine(self.loaded.runner, clock=clock, drafters=self.drafters)
        if mode == "off":  # The engine learns nothing from its steps.
            speculation = self.engine._speculation
            speculation.observe = speculation.costs.observe  # type: ignore[method-assign]
        self._paid_s = 0.0
        """Seconds that "auto" paid for drafts that it tried."""
        if mode == "auto":
            self._count_payments()
        self.tokens: list[list[int]] = []
        self.seconds: list[float] = []
        """Seconds of each group, from the moment when all its sessions have a token."""
        self.new_tokens: list[int] = []
        """Tokens that each group generated during its `seconds`."""
        self.steps = 0
        self._clock, self._most = clock, args.draft_tokens

    def run(self, prompts: list[list[int]], count: int, *, ends: bool) -> Iterator[None]:
        """At most `count` tokens after each of `prompts`, all at once, in slices of `TURN_S`."""
        limits = Limits(count, 0, not ends, self.loaded.runner.info.end_ids)
        speculate: Speculate = "medusa" if self.mode in ("chain", "tree") else self.mode  # type: ignore[assignment]
        made = [
            Generation(
                *(ident, [*prompt], Sampler(GREEDY, prompt_ids=prompt), limits, ()),
                *(self.loaded.tokenizer.piece, lambda _: None),
                speculating=None
                if self.mode == "off"
                else Speculating(speculate, self._most, shares=False),
            )
            for ident, prompt in enumerate(prompts)
        ]
        engine, took_s = self.engine, 0.0
        engine.submit(*made)
        while not all(one.new_tokens or one.done for one in made):
            engine.run_once()
        begun, before = sum(one.new_tokens for one in made), engine._steps
        turn_s = TURN_S
        while not all(one.done for one in made):
            if turn_s >= TURN_S:
                yield
                turn_s = 0.0
            began = self._clock()
            engine.run_once()
            turn_s += self._clock() - began
            took_s += self._clock() - began
        self.seconds.append(took_s)
        self.steps += engine._steps - before
        self.new_tokens.append(sum(one.new_tokens for one in made) - begun)
        self.tokens += [one.tokens for one in made]
        engine.kv.clear()

    def _count_payments(self) -> None:
        speculation = self.engine._speculation
        charge = speculation._charge

        def counted(seconds: float) -> None:
            if speculation._is_chosen and speculation._way is not None:
                self._paid_s += seconds
            charge(seconds)

        speculation._charge = counted  # type: ignore[method-assign]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return sum(self.new_tokens) / sum(self.seconds)

    def cells(self, plain: Side, measured: float, sessions: int) -> list[str]:
        """Its row of the table, compared with the same model without drafts."""
        stats = self.engine._count()
        drafted, accepted = stats.drafted_tokens, stats.accepted_tokens
        right = ", ".join(
            f"{some / every:.2f}" for some, every in zip(accepted, drafted, strict=True)
        )
        per_step = sum(self.new_tokens) / self.steps / (sum(plain.new_tokens) / plain.steps)
        costs = ["", "", ""]
        if self.mode in ("ngram", "draft", "chain", "tree"):
            # For a tree there is one number for all nodes of a depth.
            width = sum(drafted) / self.steps if self.mode in ("ngram", "draft") else self._most
            seconds = [
                side.engine._speculation.costs.seconds(round(tokens))
                for side, tokens in ((self, sessions * (1 + width)), (plain, sessions))
            ]
            drafting_s = sum(one.call_s + self._most * one.token_s for one in self.drafters)
            if seconds[0] and seconds[1]:
                ratio, drafting = seconds[0] / seconds[1], drafting_s / seconds[1]
                costs = [f"{ratio:.2f}", f"{drafting:.2f}"]
                costs.append(f"{per_step / (ratio + drafting):.2f}")
        elif self.mode == "auto":
            costs[-1] = f"{1 - self._paid_s / sum(self.seconds):.3f}"
        same = "yes" if self.tokens == plain.tokens else "no"
        first = [str(sessions), self.mode, same, right, f"{per_step:.2f}", f"{self.rate:.1f}"]
        return [*first, *costs, f"{measured:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", default="", help="file of a draft model")
    parser.add_argument("--heads", type=Path, help="file of Medusa heads, of the native runner")
    parser.add_argument("--questions", type=Path, help="ask the lines of this file, or their q")
    parser.add_argument("--most-questions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1, help="of all questions")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--modes", nargs="+", help="default: all that there are")
    parser.add_argument("--backend", default="auto", choices=["auto", "llamacpp", "native"])
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    if args.processes > 1:
        _in_processes(args.processes)
        return
    clock = time.process_time if args.cpu else time.perf_counter
    modes = args.modes or [
        *("off", "ngram"),
        *(["draft"] if args.draft else []),
        *(["chain", "tree"] if args.heads else []),
        "auto",
    ]
    print(f"command: python {' '.join(sys.argv)}")
    print(f"machine: {platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}")
    print(f"date: {datetime.date.today().isoformat()}, load: {os.getloadavg()[0]:.1f}\n")
    unit = "tok/CPU s" if args.cpu else "tok/s"
    print(
        f"| sessions | drafts | same | right, by position | tokens a step | {unit} "
        "| a step costs | drafting costs | predicted | measured |"
    )
    print("|---:|---|---|---|---:|---:|---:|---:|---:|---:|")
    ends = args.questions is not None
    repeated: list[str] = []
    """For modes with several rows: the mean and its standard error."""
    for sessions in args.sessions:
        sides = [Side(mode, args, clock) for mode in modes]
        plain = [Side("off", args, clock, side.loaded) for side in sides]
        prompts = _prompts(sides[0].loaded, args.questions, args.most_questions)
        chosen = prompts * (args.rounds if ends else sessions)
        for at in range(0, len(chosen), sessions):
            for each in (plain, sides):
                group = chosen[at : at + sessions]
                _in_turns([side.run(group, args.tokens, ends=ends) for side in each])
        ratios = [side.rate / its.rate for side, its in zip(sides, plain, strict=True)]
        off = [ratio for ratio, mode in zip(ratios, modes, strict=True) if mode == "off"] or [1.0]
        measured = [ratio / statistics.mean(off) for ratio in ratios]
        for side, its, ratio in zip(sides, plain, measured, strict=True):
            print(f"| {' | '.join(side.cells(its, ratio, sessions))} |", flush=True)
        for mode in dict.fromkeys(modes):
            found = [ratio for ratio, its in zip(measured, modes, strict=True) if its == mode]
            if len(found) > 1:
                repeated.append(f"{sessions} sessions, {mode}: {_mean(found)}")
        for side in sides:
            side.loaded.runner.close()
    print("", *repeated, sep="\n")


def _opened(mode: str, args: argparse.Namespace, clock: Clock) -> tuple[Loaded, list[Drafter]]:
    """The model, and what drafts for it in this mode."""
    makes = mode in ("draft", "auto")
    settings = ModelSettings(
        context=2048,
        threads=args.threads,
        batch_threads=args.threads,
        draft=args.draft if makes else "",
    )
    spec = ModelSpec(str(args.model), backend=args.backend, settings=settings)
    drafters: list[Drafter] = []
    with tempfile.TemporaryDirectory() as cache:
        loaded = open_model(spec, Path(cache))
        draft = open_draft(spec, loaded, Path(cache))
    if draft is not None:
        draft._clock = clock
        drafters.append(draft)
    if args.heads is not None and mode in ("chain", "tree", "auto"):
        assert isinstance(loaded.runner, TakesHeads), "heads are for the native runner"
        heads, takes_trees = loaded.runner.load_heads(args.heads)
        if mode != "tree":
            drafters.append(HeadsDrafter(heads, trees=False, clock=clock))
        if mode != "chain" and takes_trees:
            drafters.append(HeadsDrafter(heads, trees=True, clock=clock))
    return loaded, drafters


def _in_turns(sides: list[Iterator[None]]) -> None:
    """Alternate between the sides until all have ended, in a new random order each time, because
    the previous side leaves its data in the caches.
    """
    gc.collect()
    gc.disable()  # A collection would be charged to one of the sides.
    while sides:
        random.shuffle(sides)
        sides = [side for side in sides if next(side, sides) is None]
    gc.enable()


def _in_processes(count: int) -> None:
    """Measure in `count` processes with a cold start each, and print the combined results."""
    at = sys.argv.index("--processes")
    command = [sys.executable, *sys.argv[:at], *sys.argv[at + 2 :]]
    print(f"command: python {' '.join(sys.argv)}\n")
    measured: dict[tuple[str, str], list[float]] = {}
    predicted: dict[tuple[str, str], list[float]] = {}
    for number in range(count):
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        lines = ran.stdout.splitlines()
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
        shown = lines if not number else [" ".join(row) for row in rows[2:]]
        print(*shown, sep="\n", flush=True)
        for sessions, mode, *_, by_formula, ratio in rows[2:]:
            measured.setdefault((sessions, mode), []).append(float(ratio))
            if by_formula:
                predicted.setdefault((sessions, mode), []).append(float(by_formula))
    print()
    for of, found in measured.items():
        print(f"{of[0]} sessions, {of[1]}: {_mean(found)}")
        if of in predicted:
            print(f"{of[0]} sessions, {of[1]}, predicted: {_mean(predicted[of])}")


def _mean(found: list[float]) -> str:
    error = statistics.stdev(found) / len(found) ** 0.5
    return (
        f"{statistics.mean(found):.3f} ± {error:.3f} "
        f"({min(found):.3f} to {max(found):.3f}, {len(found)} rows)"
    )


def _prompts(loaded: Loaded, questions: Path | None, most: int) -> list[list[int]]:
    if questions is None:
        return [loaded.tokenizer.encode(PROMPT, special=False, add_bos=True)]
    renderer = Renderer()
    made = Prompts(loaded.info.name, loaded.tokenizer, loaded.templates, renderer)
    lines = questions.read_text(encoding="utf-8").splitlines()[:most]
    if questions.suffix == ".jsonl":
        lines = [json.loads(line)["q"] for line in lines]
    prompts = [made.prepare(Request(messages=(Message("user", line),))).ids for line in lines]
    renderer.close()
    return prompts


if __name__ == "__main__":
    main()
