"""What drafts bring: `python benchmarks/speculation.py MODEL [--draft MODEL] [--backend NAME]`.

The model is asked to repeat a piece of code with a name changed, by 1, 4 and 8 sessions at once,
without drafts and with them. Predicted is E[tokens a step] / (cost of a step with drafts / cost of
one without + drafted tokens x cost of drafting one / cost of a step without).
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.sampling import SamplingParams, Speculate
from hearth.backends.engine.draft_model import DraftModel
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.sampler import Sampler
from hearth.backends.worker.drafting import open_draft
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
    wall_s: float
    cpu_s: float
    steps: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    step_s: float | None
    """Of the number of tokens that a step had on average."""


def run(
    loaded: Loaded,
    draft: DraftModel | None,
    prompt: list[int],
    *,
    sessions: int,
    mode: Speculate,
    most: int,
    count: int,
) -> Measured:
    """`count` tokens for each of `sessions`."""
    engine = Engine(loaded.runner, drafter=draft)
    greedy = SamplingParams(temperature=0.0)
    limits = Limits(count, 0, True, loaded.runner.info.end_ids)
    made = []
    for ident in range(sessions):
        speculating = None if mode == "off" else Speculating(mode, most)
        sampler = Sampler(greedy, prompt_ids=prompt)
        piece, own = loaded.tokenizer.piece, [*prompt]
        made.append(
            Generation(
                ident, own, sampler, limits, (), piece, lambda _: None, speculating=speculating
            )
        )
    engine.submit(*made)
    while not all(one.new_tokens for one in made):
        engine.turn()
    begun = sum(one.new_tokens for one in made)
    wall_s, cpu_s, steps = time.perf_counter(), time.process_time(), engine._steps
    while not all(one.done for one in made):
        engine.turn()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    stats = engine._count()
    steps = stats.steps - steps
    width = round(sessions + sum(stats.drafted_tokens) / steps)
    engine.kv.clear()
    return Measured(
        [one.tokens for one in made],
        sum(one.new_tokens for one in made) - begun,
        wall_s,
        cpu_s,
        steps,
        stats.drafted_tokens,
        stats.accepted_tokens,
        engine._speculation.costs.seconds(width),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", default="", help="file of a draft model")
    parser.add_argument("--backend", default="auto", choices=["auto", "llamacpp", "native"])
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    threads = args.threads
    settings = ModelSettings(context=2048, threads=threads, batch_threads=threads, draft=args.draft)
    spec = ModelSpec(str(args.model), backend=args.backend, settings=settings)
    print(f"command: python {' '.join(sys.argv)}")
    print(f"machine: {platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}")
    print(f"date: {datetime.date.today().isoformat()}, load: {os.getloadavg()[0]:.1f}\n")
    modes: tuple[Speculate, ...] = ("off", "ngram", "auto")
    if args.draft:
        modes = ("off", "draft", "auto")
    with tempfile.TemporaryDirectory() as cache:
        loaded = open_model(spec, Path(cache))
        draft = open_draft(spec, loaded, Path(cache))
        prompt = loaded.tokenizer.encode(PROMPT, special=False, add_bos=True)
        print(
            "| sessions | drafts | same | right, by position | tokens a step | tok/s | tok/CPU s |"
        )
        print("|---:|---|---|---|---:|---:|---:|")
        for sessions in (1, 4, 8):
            made = {
                mode: run(
                    loaded,
                    draft,
                    prompt,
                    sessions=sessions,
                    mode=mode,
                    most=args.draft_tokens,
                    count=args.tokens,
                )
                for mode in modes
            }
            plain = made["off"]
            for mode, one in made.items():
                pairs = zip(one.accepted, one.drafted, strict=True)
                right = ", ".join(f"{accepted / drafted:.2f}" for accepted, drafted in pairs)
                same = "yes" if one.tokens == plain.tokens else "no"
                print(
                    f"| {sessions} | {mode} | {same} | {right} "
                    f"| {one.new_tokens / one.steps / sessions:.2f} "
                    f"| {one.new_tokens / one.wall_s:.1f} | {one.new_tokens / one.cpu_s:.1f} |"
                )
            drafted = made[modes[1]]
            if plain.step_s and drafted.step_s:
                a_step = drafted.new_tokens / drafted.steps / (plain.new_tokens / plain.steps)
                ratio = drafted.step_s / plain.step_s
                drafting = 0.0 if draft is None else args.draft_tokens * draft.token_s
                predicted = a_step / (ratio + drafting / plain.step_s)
                speed_up = plain.wall_s / plain.new_tokens * drafted.new_tokens / drafted.wall_s
                of_cpu = plain.cpu_s / plain.new_tokens * drafted.new_tokens / drafted.cpu_s
                print(
                    f"\n{sessions} sessions, {modes[1]}: a step costs {ratio:.2f} times as much,"
                    f" drafting {drafting * 1e3:.2f} ms; predicted {predicted:.2f} times the speed,"
                    f" measured {speed_up:.2f} (CPU time: {of_cpu:.2f})\n"
                )
    loaded.runner.close()


if __name__ == "__main__":
    main()
