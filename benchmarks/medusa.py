"""What drafts bring: `python benchmarks/medusa.py MODEL [--draft MODEL] [--heads FILE]`.

The model is asked to repeat a piece of code with a name changed, or to answer questions, by some
sessions at once, without drafts and with those of everything that can make them. Predicted is
E[tokens a step] / (cost of a step with drafts / cost of one without + cost of drafting / cost of a
step without). With `--cpu` all times are of the process's CPU, for machines that are in use.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams, Speculate
from hearth.backends.engine.draft_model import DraftModel
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.medusa import HeadsDrafter, TakesHeads
from hearth.backends.engine.sampler import Sampler
from hearth.backends.text.renderer import Renderer
from hearth.backends.worker.drafting import open_draft
from hearth.backends.worker.prompts import Prompts
from hearth.backends.worker.runners import open_model

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


@dataclass
class Measured:
    """One run of some sessions."""

    tokens: list[list[int]]
    new_tokens: int
    seconds: float
    steps: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    step_s: float | None
    """Of the number of tokens that a step had on average."""
    drafting_s: float
    """Of what guessed tokens, in each step."""

    @property
    def right(self) -> str:
        pairs = zip(self.accepted, self.drafted, strict=True)
        return ", ".join(f"{accepted / drafted:.2f}" for accepted, drafted in pairs)


@dataclass
class Bench:
    """A model, and what can guess for it."""

    loaded: Loaded
    draft: DraftModel | None
    heads: HeadsDrafter | None
    clock: Callable[[], float]
    most: int
    count: int

    def run(self, prompts: list[list[int]], sessions: int, mode: str) -> Measured:
        """`count` tokens at most after each of `prompts`, by `sessions` at once."""
        info = self.loaded.runner.info
        drafters = [one for one in (self.draft, self.heads) if one is not None]
        engine = Engine(self.loaded.runner, clock=self.clock, drafters=drafters)
        if self.heads is not None:
            self.heads._trees = mode != "chain"
        speculate: Speculate = "medusa" if mode in ("chain", "tree") else mode  # type: ignore[assignment]
        made = []
        limits = Limits(self.count, 0, len(prompts) == 1, info.end_ids)
        for ident, prompt in enumerate(prompts * sessions if len(prompts) == 1 else prompts):
            speculating = None if mode == "off" else Speculating(speculate, self.most)
            sampler = Sampler(SamplingParams(temperature=0.0), prompt_ids=prompt)
            made.append(
                Generation(
                    *(ident, [*prompt], sampler, limits, (), self.loaded.tokenizer.piece),
                    lambda _: None,
                    speculating=speculating,
                )
            )
        seconds, steps, begun = 0.0, 0, 0
        for at in range(0, len(made), sessions):
            together = made[at : at + sessions]
            engine.submit(*together)
            while not all(one.new_tokens or one.done for one in together):
                engine.turn()
            begun += sum(one.new_tokens for one in together)
            began, before = self.clock(), engine._steps
            while not all(one.done for one in together):
                engine.turn()
            seconds, steps = seconds + self.clock() - began, steps + engine._steps - before
            engine.kv.clear()
        stats = engine._count()
        drafted = sum(stats.drafted_tokens)
        new = sum(one.new_tokens for one in made) - begun
        if speculate == "medusa":  # By place of a tree there is one number for all at a depth.
            drafted = self.most * steps * sessions
        drafting_s = 0.0
        if mode == "draft" and self.draft is not None:
            drafting_s = self.most * self.draft.token_s
        elif speculate == "medusa" and self.heads is not None:
            drafting_s = self.heads.call_s
        width = round(sessions + drafted / max(1, steps))
        return Measured(
            *([one.tokens for one in made], new, seconds, steps),
            *(stats.drafted_tokens, stats.accepted_tokens),
            *(engine._speculation.costs.seconds(width), drafting_s),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", default="", help="file of a draft model")
    parser.add_argument("--heads", type=Path, help="file of Medusa heads, of the native runner")
    parser.add_argument("--questions", type=Path, help="ask the lines of this file")
    parser.add_argument("--most-questions", type=int, default=16)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 8])
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
    modes = ["off", "ngram"]
    with tempfile.TemporaryDirectory() as cache:
        loaded = open_model(spec, Path(cache))
        draft, heads = open_draft(spec, loaded, Path(cache)), None
        if draft is not None:
            draft._clock = clock
            modes.append("draft")
        if args.heads is not None:
            assert isinstance(loaded.runner, TakesHeads), "heads are for the native runner"
            found, takes_trees = loaded.runner.load_heads(args.heads)
            heads = HeadsDrafter(found, trees=takes_trees, clock=clock)
            modes += ["chain", "tree"]
        bench = Bench(loaded, draft, heads, clock, args.draft_tokens, args.tokens)
        prompts = _prompts(loaded, args.questions, args.most_questions)
        unit = "tok/CPU s" if args.cpu else "tok/s"
        print(
            f"| sessions | drafts | same | right, by position | tokens a step | {unit} "
            "| a step costs | drafting costs | predicted | measured |"
        )
        print("|---:|---|---|---|---:|---:|---:|---:|---:|---:|")
        for sessions in args.sessions:
            plain = bench.run(prompts, sessions, "off")
            for mode in [*modes, "auto"]:
                one = plain if mode == "off" else bench.run(prompts, sessions, mode)
                same = "yes" if one.tokens == plain.tokens else "no"
                per_step = one.new_tokens / one.steps / (plain.new_tokens / plain.steps)
                costs = ["", "", ""]
                if plain.step_s and one.step_s and mode not in ("off", "auto"):
                    ratio = one.step_s / plain.step_s
                    drafting = one.drafting_s / plain.step_s
                    costs = [f"{ratio:.2f}", f"{drafting:.2f}"]
                    costs.append(f"{per_step / (ratio + drafting):.2f}")
                rate, plain_rate = (x.new_tokens / x.seconds for x in (one, plain))
                cells = [
                    *(str(sessions), mode, same, one.right, f"{per_step:.2f}", f"{rate:.1f}"),
                    *(*costs, f"{rate / plain_rate:.2f}"),
                ]
                print(f"| {' | '.join(cells)} |", flush=True)
    loaded.runner.close()


def _prompts(loaded: Loaded, questions: Path | None, most: int) -> list[list[int]]:
    if questions is None:
        return [loaded.tokenizer.encode(PROMPT, special=False, add_bos=True)]
    renderer = Renderer()
    made = Prompts(loaded.info.name, loaded.tokenizer, loaded.templates, renderer)
    lines = questions.read_text(encoding="utf-8").splitlines()[:most]
    prompts = [made.prepare(Request(messages=(Message("user", line),))).ids for line in lines]
    renderer.close()
    return prompts


if __name__ == "__main__":
    main()
