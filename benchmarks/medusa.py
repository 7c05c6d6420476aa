"""What drafts bring: `python benchmarks/medusa.py MODEL [--draft MODEL] [--heads FILE]`.

The model is asked to repeat a piece of code with a name changed, or to answer questions, by some
sessions at once, without drafts and with those of everything that can make them. Predicted is
E[tokens a step] / (cost of a step with drafts / cost of one without + cost of drafting / cost of a
step without). A mode that is named several times has a row for each, and a line with their mean and
its standard error. With `--cpu` all times are of the process's CPU, for machines that are in use.
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
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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
GREEDY = SamplingParams(temperature=0.0)
CODE = """\
def area(width, height):
    return width * height

def perimeter(width, height):
    return 2 * (width + height)

def diagonal(width, height):
    return (width ** 2 + height ** 2) ** 0.5

def describe(width, height):
    print("area", area(width, height))
    print("perimeter", perimeter(width, height))
    print("diagonal", diagonal(width, height))
"""
PROMPT = f"# Rename describe to show, and repeat all of the code.\n{CODE}\n# The same, renamed:\n"


class Side:
    """Sessions with drafts of one kind, on an engine that goes on from one group of them to the
    next.
    """

    def __init__(
        self, loaded: Loaded, mode: str, drafters: list[Drafter], clock: Clock, most: int
    ) -> None:
        self.mode = mode
        self.engine = Engine(loaded.runner, clock=clock, drafters=drafters)
        if mode == "off":  # The engine learns nothing from its steps.
            speculation = self.engine._speculation
            speculation.observe = speculation.costs.observe  # type: ignore[method-assign]
        self.drafters = drafters
        self.tokens: list[list[int]] = []
        self.seconds: list[float] = []
        """Of each group, from the first token of all on;"""
        self.new_tokens: list[int] = []
        """and what it said in that time."""
        self.steps = 0
        self._loaded, self._clock, self._most = loaded, clock, most

    def run(self, prompts: list[list[int]], count: int, *, ends: bool) -> None:
        """`count` tokens at most after each of `prompts`, all at once."""
        limits = Limits(count, 0, not ends, self._loaded.runner.info.end_ids)
        speculate: Speculate = "medusa" if self.mode in ("chain", "tree") else self.mode  # type: ignore[assignment]
        made = [
            Generation(
                *(ident, [*prompt], Sampler(GREEDY, prompt_ids=prompt), limits, ()),
                *(self._loaded.tokenizer.piece, lambda _: None),
                speculating=None
                if self.mode == "off"
                else Speculating(speculate, self._most, shares=False),
            )
            for ident, prompt in enumerate(prompts)
        ]
        engine = self.engine
        gc.collect()
        engine.submit(*made)
        while not all(one.new_tokens or one.done for one in made):
            engine.turn()
        begun = sum(one.new_tokens for one in made)
        began, before = self._clock(), engine._steps
        while not all(one.done for one in made):
            engine.turn()
        self.seconds.append(self._clock() - began)
        self.steps += engine._steps - before
        self.new_tokens.append(sum(one.new_tokens for one in made) - begun)
        self.tokens += [one.tokens for one in made]
        engine.kv.clear()

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return sum(self.new_tokens) / sum(self.seconds)

    def cells(self, plain: Side, plain_rate: float, sessions: int) -> list[str]:
        """Its row of the table, next to a side without drafts, and the rate of all of these."""
        stats = self.engine._count()
        drafted, accepted = stats.drafted_tokens, stats.accepted_tokens
        right = ", ".join(
            f"{some / every:.2f}" for some, every in zip(accepted, drafted, strict=True)
        )
        per_step = sum(self.new_tokens) / self.steps / (sum(plain.new_tokens) / plain.steps)
        costs = ["", "", ""]
        if self.mode in ("ngram", "draft", "chain", "tree"):
            # By place of a tree there is one number for all at a depth.
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
        same = "yes" if self.tokens == plain.tokens else "no"
        measured = f"{self.rate / plain_rate:.3f}"
        first = [str(sessions), self.mode, same, right, f"{per_step:.2f}", f"{self.rate:.1f}"]
        return [*first, *costs, measured]


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
    args = parser.parse_args()
    threads, clock = args.threads, time.process_time if args.cpu else time.perf_counter
    settings = ModelSettings(context=2048, threads=threads, batch_threads=threads, draft=args.draft)
    spec = ModelSpec(str(args.model), backend=args.backend, settings=settings)
    print(f"command: python {' '.join(sys.argv)}")
    print(f"machine: {platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}")
    print(f"date: {datetime.date.today().isoformat()}, load: {os.getloadavg()[0]:.1f}\n")
    drafters: dict[str, list[Drafter]] = {"off": [], "ngram": []}
    with tempfile.TemporaryDirectory() as cache:
        loaded = open_model(spec, Path(cache))
        draft = open_draft(spec, loaded, Path(cache))
        if draft is not None:
            draft._clock = clock
            drafters["draft"] = [draft]
        if args.heads is not None:
            assert isinstance(loaded.runner, TakesHeads), "heads are for the native runner"
            heads, takes_trees = loaded.runner.load_heads(args.heads)
            drafters["chain"] = [HeadsDrafter(heads, trees=False, clock=clock)]
            if takes_trees:
                drafters["tree"] = [HeadsDrafter(heads, trees=True, clock=clock)]
        drafters["auto"] = [each for own in drafters.values() for each in own]
        modes = args.modes or list(drafters)
        prompts = _prompts(loaded, args.questions, args.most_questions)
        unit = "tok/CPU s" if args.cpu else "tok/s"
        print(
            f"| sessions | drafts | same | right, by position | tokens a step | {unit} "
            "| a step costs | drafting costs | predicted | measured |"
        )
        print("|---:|---|---|---|---:|---:|---:|---:|---:|---:|")
        ends = args.questions is not None
        repeated: list[str] = []
        """Of modes with several rows: the mean and its standard error."""
        gc.collect()
        gc.freeze()
        gc.disable()  # Each side runs after its own collection, not at the expense of another.
        for sessions in args.sessions:
            sides = [Side(loaded, mode, drafters[mode], clock, args.draft_tokens) for mode in modes]
            chosen = prompts * (args.rounds if ends else sessions)
            for at in range(0, len(chosen), sessions):
                # In another order each time: what ran before leaves its own data in the caches.
                for side in random.Random(at).sample(sides, len(sides)):
                    side.run(chosen[at : at + sessions], args.tokens, ends=ends)
            rates = [side.rate for side in sides if side.mode == "off"] or [sides[0].rate]
            plain_rate = statistics.mean(rates)
            for side in sides:
                row = side.cells(sides[0], plain_rate, sessions)
                print(f"| {' | '.join(row)} |", flush=True)
            for mode in dict.fromkeys(modes):
                found = [side.rate / plain_rate for side in sides if side.mode == mode]
                if len(found) > 1:
                    mean, error = (
                        statistics.mean(found),
                        statistics.stdev(found) / len(found) ** 0.5,
                    )
                    repeated.append(
                        f"{sessions} sessions, {mode}: {mean:.3f} ± {error:.3f} "
                        f"({min(found):.3f} to {max(found):.3f}, {len(found)} rows)"
                    )
        print("", *repeated, sep="\n")
    loaded.runner.close()


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
