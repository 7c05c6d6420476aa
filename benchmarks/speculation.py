"""The cost and gain of drafts at a known acceptance rate: the tokens that are drawn, and how often
a draft is right, are prescribed here instead of coming from the model. `hearth bench MODEL --draft
DRAFT` (or --speculate ngram) measures real drafts.

    python benchmarks/speculation.py forced MODEL [--backend NAME]

Drafts that are right with a probability of 0.5 to 0.9 per token, made by a model of 4 layers x 256
with random weights, whose steps are computed and whose tokens are replaced. The formula predicts
E[tokens a step] / (cost of k+1 tokens / cost of 1 + k x cost of drafting a token / cost of 1).

    python benchmarks/speculation.py hopeless MODEL [--draft DRAFT] [--backend NAME]

Many short answers of random tokens, "auto" compared with "off": with few different tokens, so that
n-grams match and are wrong, and with many, so that hardly any matches. "Fastest" compares the
fastest rounds of both, which other programs disturb less than the median of the pairs.

    python benchmarks/speculation.py rules MODEL [--draft DRAFT] [--questions FILE]

Which drafts are accepted by which rule: drafts of n-grams, sampled by the draft model, or of the
draft model's most likely tokens. The model answers questions (lines of JSON with "q", as in
`assets/guide/questions.jsonl`), or continues pieces of another text, or repeats pieces of code with
a name changed, and always has drafts. Tokens per step are counted in steps with drafts: 1 +
accepted tokens.

    python benchmarks/speculation.py chats MODEL [--tokens 128]

Each question of `QUESTIONS` is answered in its own chat, and then a second one in another chat: the
same, one in other words, or one about something else; greedily. The second answer counts: with
n-grams of its own text alone, and with those of the other chats too. Times are processor time per
token, relative to the same without drafts, alternating.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from hearth.app.cli.bench_report import speculation_table
from hearth.backends.bench.engine_side import EngineSide, Raced
from hearth.backends.bench.measure import alternate
from hearth.backends.bench.speculation import Timed, compared, measure_costs, texts
from hearth.backends.contract.loaded import EngineStats
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.sampling import SamplingParams, Speculate, SpeculateRule
from hearth.backends.engine.draft_model import DraftModel
from hearth.backends.engine.drafts import Draft, Speculating
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.lookahead import Lookahead
from hearth.backends.engine.sampler import Drawn, Sampler
from hearth.backends.engine.sequence import Sequence
from hearth.backends.engine.speculation import Drafter
from hearth.backends.worker.drafting import open_draft
from hearth.backends.worker.runners import open_model

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

PIECE = 240
"""Length in characters of a piece of a text that does not consist of questions."""
PARAMS = {
    "0": SamplingParams(temperature=0.0),
    "0.7": SamplingParams(temperature=0.7),
    "1.0": SamplingParams(temperature=1.0),
    "1.0, no truncation": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
}
QUESTIONS = (
    ("Why is the sky blue?", "Tell me why the sky is blue."),
    ("How do plants make food from sunlight?", "How do plants turn sunlight into food?"),
    (
        "What is the capital of France, and what is it known for?",
        "What is France's capital known for?",
    ),
    (
        "Write a Python function that reverses a string.",
        "Write a function in Python to reverse a string.",
    ),
    ("List the planets of the solar system.", "List all planets of our solar system, please."),
    ("Explain what a black hole is.", "Please explain to me what a black hole is."),
    ("What are the ingredients of a pizza?", "Which ingredients does a pizza have?"),
    ("How does a refrigerator work?", "Explain how a refrigerator works."),
)
"""The same questions in other words."""
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
Row = tuple[str, ...]
Script = Callable[[int], int]
"""Returns the token that is drawn at a position."""


class Played(Sampler):
    """Samples as usual, to include the cost, and returns the token of `script`."""

    def __init__(self, script: Script) -> None:
        super().__init__(SamplingParams(temperature=0.0))
        self.script = script

    def draw(self, logits: Any, position: int, **how: Any) -> Drawn:
        drawn = super().draw(logits, position, **how)
        return dataclasses.replace(drawn, id=self.script(position))

    def fork(self) -> Sampler:
        """The sampler of a draft model, which does not know the script."""
        return Sampler(self.params)


class PlayedSide(EngineSide):
    """Sessions that generate the tokens of `script`: a different text for each round and session,
    the same in all modes.
    """

    def __init__(
        self,
        loaded: Loaded,
        drafters: list[Drafter],
        script: Callable[[int, int], int],
        sessions: int,
    ) -> None:
        super().__init__(loaded, drafters)
        self._script, self._many, self._made = script, sessions, 0

    def race(self, *args: Any, **how: Any) -> Raced:
        """As the base class, without garbage collections, which take longer than many steps."""
        gc.collect()
        gc.disable()
        try:
            return super().race(*args, **how)
        finally:
            gc.enable()

    def _new(self, *args: Any, **how: Any) -> Any:
        made = super()._new(*args, **how)
        made.sampler = Played(partial(self._script, self._made % self._many))
        self._made += 1
        return made


class Forced(Drafter):
    """Runs `model` for the cost of drafting, and returns drafts whose tokens are each right with
    the probability `right`.
    """

    mode = "draft"

    def __init__(self, model: DraftModel, right: float) -> None:
        self._model, self._right = model, right
        self._random = np.random.default_rng(3)

    @property
    def token_s(self) -> float:
        return self._model.token_s

    @property
    def nbytes(self) -> int:
        return self._model.nbytes

    def holds(self, sequence: Sequence) -> bool:
        return self._model.holds(sequence)

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        made = {}
        for sequence, draft in self._model.draft(lengths).items():
            script = sequence.sampler.script  # type: ignore[attr-defined]
            hits = self._random.random(len(draft.tokens)) < self._right
            tokens = [
                script(sequence.total + ahead) ^ int(not hit) for ahead, hit in enumerate(hits)
            ]
            made[sequence] = Draft(tokens)
        return made

    def forget(self, sequence: Sequence) -> None:
        self._model.forget(sequence)


def random_script(usable: Any, different: int) -> Callable[[int, int], int]:
    """A script of random tokens out of `different` ones: (session, position) -> token."""
    tokens = np.random.default_rng(7).choice(usable, different, replace=False)
    drawn = np.random.default_rng(8).choice(tokens, (64, 8192)).tolist()
    return lambda session, position: int(drawn[session][position])


def forced(args: argparse.Namespace, loaded: Loaded, draft: DraftModel) -> Iterator[Row]:
    """The table of speed-ups by probability and number of sessions."""
    prompts = texts(loaded, edits=True)
    yield ("CHANCE", *speculation_table([])[0], "SPEED-UP / PREDICTED", "(CPU)")
    for sessions in args.sessions:
        chosen = prompts[:sessions]
        costs = measure_costs(loaded, chosen, args.draft_tokens)
        for right in args.right:
            timed = Timed(Forced(draft, right))
            script = random_script(EngineSide(loaded).usable_tokens, 4000)
            side = PlayedSide(loaded, [timed], script, sessions)
            race = partial(side.race, chosen, args.tokens)
            modes: tuple[Speculate, ...] = ("off", "draft", *(("auto",) if args.auto else ()))
            sides = [partial(race, mode, args.draft_tokens) for mode in modes]
            for one in sides:
                one()
            timed.calls_s, timed.depth = (0.0, 0.0), 0
            plain, *others = alternate(sides, args.rounds)
            draft_s = timed.calls_s[0] / timed.depth, timed.calls_s[1] / timed.depth
            for mode, raced in zip(modes[1:], others, strict=True):
                found = compared(mode, plain, raced, costs, draft_s, args.draft_tokens, sessions)
                wall = statistics.median(found.speed_up) / found.predicted
                cpu = statistics.median(found.speed_up_cpu) / found.predicted_cpu
                cells = speculation_table([found])[1]
                yield (f"{right:.1f}", *cells, f"{wall:.2f}", f"{cpu:.2f}")


def hopeless(args: argparse.Namespace, loaded: Loaded, draft: DraftModel | None) -> Iterator[Row]:
    """The table of ratios of "auto" to "off"."""
    prompts = texts(loaded, edits=False)
    drafters: list[Drafter] = [] if draft is None else [draft]
    yield (
        "TOKENS",
        "SESSIONS",
        "AUTO / OFF (CPU)",
        "FASTEST",
        "WALL",
        "ROUNDS",
        "STEPS",
        "DRAFTED",
        "RIGHT",
    )
    for different in args.different:
        for sessions in args.sessions:
            script = random_script(EngineSide(loaded).usable_tokens, different)
            side = PlayedSide(loaded, drafters, script, sessions)
            race = partial(side.race, prompts[:sessions], args.tokens)
            modes: tuple[Speculate, ...] = ("off", "auto")
            plain, auto = alternate(
                [partial(race, mode, args.draft_tokens) for mode in modes], args.rounds
            )
            cpu, wall = (
                statistics.median(
                    one.rate(clock) / off.rate(clock) for off, one in zip(plain, auto, strict=True)
                )
                for clock in (1, 0)
            )
            fastest = max(one.rate(1) for one in auto) / max(one.rate(1) for one in plain)
            yield (
                *(str(different), str(sessions), f"{cpu:.3f}", f"{fastest:.3f}", f"{wall:.3f}"),
                str(args.rounds),
                f"{sum(one.steps for one in auto)} / {sum(one.steps for one in plain)}",
                str(sum(sum(one.drafted) for one in auto)),
                str(sum(sum(one.accepted) for one in auto)),
            )


class Likeliest(DraftModel):
    """Drafts the likeliest tokens, as if no others were possible."""

    def _ahead(self, sequence: Generation) -> Lookahead:
        made = super()._ahead(sequence)
        made.draft.laws = None
        made._sampler.is_greedy = True
        return made


def rules(args: argparse.Namespace, loaded: Loaded, draft: DraftModel | None) -> Iterator[Row]:
    """The table of rules, by temperature and kind of draft."""
    yield ("TEMPERATURE", "DRAFTS", "RULE", "DRAFTED ROWS", "ACCEPTED", "TOKENS A STEP")
    prompts = _asked(args, loaded)
    end_ids, piece = loaded.runner.info.end_ids, loaded.tokenizer.piece
    makers: dict[str, type[DraftModel] | None] = {"n-grams": None}
    if draft is not None:
        makers = {"sampled": DraftModel, "greedy": Likeliest}
    for (temperature, params), (name, maker), rule in itertools.product(
        PARAMS.items(), makers.items(), get_args(SpeculateRule)
    ):
        drafters: list[Drafter] = []
        if maker is not None and draft is not None:
            drafters.append(maker(draft.runner, loaded.runner.info.vocab_size))
        engine = Engine(loaded.runner, drafters=drafters)
        made = [
            Generation(
                ident,
                prompt,
                Sampler(dataclasses.replace(params, seed=ident), prompt_ids=prompt),
                Limits(args.tokens, 0, False, end_ids),
                *((), piece, lambda _: None),
                speculating=_state(rule, has_model=bool(drafters), most=args.draft_tokens),
            )
            for ident, prompt in enumerate(prompts)
        ]
        engine.submit(*made)
        while not all(one.done for one in made):
            engine.run_once()
        engine.run_once()  # A step without work updates the counts.
        stats = engine.stats()
        engine.kv.clear()
        drafted, right = stats.drafted_tokens, stats.accepted_tokens
        shares = ", ".join(f"{hits / of:.2f}" for hits, of in zip(right, drafted, strict=True))
        rows = drafted[0] if drafted else 0
        yield (temperature, name, rule, str(rows), shares, f"{1 + sum(right) / max(rows, 1):.2f}")


def chats(args: argparse.Namespace, loaded: Loaded, draft: DraftModel | None) -> Iterator[Row]:
    """The table of answers to questions that were asked before in other chats."""
    yield (
        *("SECOND QUESTION", "MODE", "DRAFTS FROM", "TOKENS A STEP", "OWN: DRAFTED", "RIGHT"),
        *("CHATS: DRAFTED", "RIGHT", "SPEED-UP (CPU)", "FASTEST"),
    )
    first, others = [one for one, _ in QUESTIONS], [other for _, other in QUESTIONS]
    half = len(first) // 2
    asked = {
        "the same": (first, first),
        "in other words": (first, others),
        "another one": (first[:half], first[half:]),
    }
    modes: tuple[Speculate, ...] = ("ngram", "auto")
    drafters: list[Drafter] = [] if draft is None else [draft]
    for kind, (before, second) in asked.items():
        ways = [("off", False), *itertools.product(modes, (False, True))]
        sides = [
            partial(_second_answers, args, loaded, drafters, before, second, mode, shares)
            for mode, shares in ways
        ]
        rounds = alternate(sides, args.rounds)
        plain = [took for took, _ in rounds[0]]
        for (mode, shares), made in zip(ways[1:], rounds[1:], strict=True):
            stats = made[0][1]
            by = {name: stats.drafts_by.get(name, (0, 0)) for name in ("ngram", "chats")}
            ratio = statistics.median(
                off / took for off, (took, _) in zip(plain, made, strict=True)
            )
            yield (
                *(kind, mode, "all chats" if shares else "its own text"),
                f"{stats.generated_tokens / stats.steps:.2f}",
                *(str(count) for counts in by.values() for count in counts),
                f"{ratio:.3f}",
                f"{min(plain) / min(took for took, _ in made):.3f}",
            )


def _second_answers(
    args: argparse.Namespace,
    loaded: Loaded,
    drafters: list[Drafter],
    first: list[str],
    second: list[str],
    mode: str,
    shares: bool,
) -> tuple[float, EngineStats]:
    """Seconds per token of the second answers, and the counts for them alone."""
    engine = Engine(loaded.runner, drafters=drafters)
    end_ids, piece = loaded.runner.info.end_ids, loaded.tokenizer.piece

    def answer(question: str, ident: int) -> int:
        prompt = loaded.tokenizer.encode(TEMPLATE.format(question), special=True, add_bos=True)
        made = Generation(
            *(ident, prompt, Sampler(PARAMS["0"], prompt_ids=prompt)),
            Limits(args.tokens, 0, False, end_ids),
            *((), piece, lambda _: None),
            reuse_prefix=False,
            speculating=None
            if mode == "off"
            else Speculating(mode, args.draft_tokens, shares=shares),
        )
        engine.submit(made)
        while not made.done:
            engine.run_once()
        return made.new_tokens

    taken_s, tokens, total = 0.0, 0, EngineStats()
    for ident, (one, other) in enumerate(zip(first, second, strict=True)):
        answer(one, 2 * ident)
        engine.run_once()
        before, began = engine.stats(), time.process_time()
        tokens += answer(other, 2 * ident + 1)
        taken_s += time.process_time() - began
        engine.run_once()  # A step without work updates the counts.
        total = _added(total, before, engine.stats())
    engine.kv.clear()
    return taken_s / tokens, total


def _added(total: EngineStats, before: EngineStats, after: EngineStats) -> EngineStats:
    """`total` plus the difference between `before` and `after`."""

    def more(name: str, at: int) -> int:
        none = (0, 0)
        new = after.drafts_by.get(name, none)[at] - before.drafts_by.get(name, none)[at]
        return total.drafts_by.get(name, none)[at] + new

    return dataclasses.replace(
        total,
        generated_tokens=total.generated_tokens + after.generated_tokens - before.generated_tokens,
        steps=total.steps + after.steps - before.steps,
        drafts_by={name: (more(name, 0), more(name, 1)) for name in after.drafts_by},
    )


def _state(rule: SpeculateRule, *, has_model: bool, most: int) -> Speculating:
    return Speculating("draft" if has_model else "ngram", most, rule, shares=False)


def _asked(args: argparse.Namespace, loaded: Loaded) -> list[list[int]]:
    """At most `--texts` prompts for `rules`."""
    if args.questions is None:
        return list(itertools.islice(itertools.cycle(texts(loaded, edits=True)), args.texts))
    text = args.questions.read_text(encoding="utf-8")
    if args.questions.suffix == ".jsonl":
        asked = [json.loads(line)["q"] for line in text.splitlines()]
        chosen = [f"<|user|>{question}<|end|><|assistant|>" for question in asked]
    else:
        chosen = [text[at : at + PIECE] for at in range(0, len(text) - PIECE, PIECE)]
    encode = loaded.tokenizer.encode
    return [encode(one, special=True, add_bos=True) for one in chosen[: args.texts]]


def print_table(rows: Iterator[Row]) -> None:
    """Print as Markdown, row by row."""
    for at, row in enumerate(rows):
        print(f"| {' | '.join(row)} |", flush=True)
        if not at:
            print(f"|{'---|' * len(row)}")


def numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A parser of comma-separated lists of `kind`."""
    return lambda text: [kind(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["forced", "hopeless", "rules", "chats"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", default="", help="of hopeless and rules: file of a draft model")
    parser.add_argument("--backend", default="auto", choices=["auto", "llamacpp", "native"])
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sessions", type=numbers(int), default=[1, 4, 8])
    parser.add_argument("--right", type=numbers(float), default=[0.5, 0.6, 0.7, 0.8, 0.9])
    parser.add_argument("--different", type=numbers(int), default=[8, 30, 4000])
    parser.add_argument("--questions", type=Path, help="of rules: lines of JSON, or text")
    parser.add_argument("--texts", type=int, default=48, help="of rules")
    parser.add_argument("--auto", action="store_true", help="of forced: auto as well")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print(f"command: python {' '.join(sys.argv)}")
    print(f"machine: {platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}")
    print(f"date: {datetime.date.today().isoformat()}, load: {os.getloadavg()[0]:.1f}\n")
    with tempfile.TemporaryDirectory() as folder:
        path = args.draft
        if args.what == "forced":
            from model_shapes import Shape
            from random_models import write_model

            shape = Shape("llama", 4, 256, 4, 4, 64, 768, 8192, 10_000.0, tied=True)
            path = str(write_model(shape, "q8_0", Path(folder, "draft.gguf"), vocab=args.model))
        threads = args.threads
        settings = ModelSettings(context=2048, threads=threads, batch_threads=threads, draft=path)
        spec = ModelSpec(str(args.model), backend=args.backend, settings=settings)
        loaded = open_model(spec, Path(folder))
        draft = open_draft(spec, loaded, Path(folder))
        if args.what != "forced":
            table = {"hopeless": hopeless, "rules": rules, "chats": chats}[args.what]
            print_table(table(args, loaded, draft))
        elif draft is not None:
            print_table(forced(args, loaded, draft))
        loaded.runner.close()


if __name__ == "__main__":
    main()
