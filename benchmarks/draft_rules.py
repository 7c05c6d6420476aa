"""Which drafts are kept by which rule: `python benchmarks/draft_rules.py MODEL [--draft MODEL]`.

The model answers questions (lines of JSON with "q", as `assets/guide/questions.jsonl`), or goes on
with pieces of another text, or repeats a piece of code with a name changed, with as many sessions
as it runs at the same time. It always has drafts: of n-grams, or sampled by the draft model, or
what the draft model finds likeliest. Tokens a step are those of steps with drafts: 1 + accepted
tokens.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

from speculation import PROMPT

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.sampling import SamplingParams, SpeculateRule
from hearth.backends.engine.draft_model import DraftModel
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.lookahead import Lookahead
from hearth.backends.engine.sampler import Sampler
from hearth.backends.worker.drafting import open_draft
from hearth.backends.worker.runners import open_model

PIECE = 240
"""Characters."""
PARAMS = {
    "0": SamplingParams(temperature=0.0),
    "0.7": SamplingParams(temperature=0.7),
    "1.0": SamplingParams(temperature=1.0),
    "1.0, no truncation": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
}


class Drafts(DraftModel):
    """Drafts what it samples, or what it finds likeliest, so that nothing else was possible."""

    is_greedy = False

    def _ahead(self, sequence: Generation) -> Lookahead:
        made = super()._ahead(sequence)
        if self.is_greedy:
            made.draft.laws = None
            made._sampler.is_greedy = True
        return made

    def clear(self) -> None:
        """Forget the prompts of the last run."""
        self._cached.kv.clear()


def accepted(
    loaded: Loaded,
    draft: Drafts | None,
    prompts: list[list[int]],
    params: SamplingParams,
    rule: SpeculateRule,
    *,
    most: int,
    count: int,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Drafted and accepted tokens by position, of `count` tokens after each of `prompts`."""
    engine = Engine(loaded.runner, drafters=[draft])
    limits = Limits(count, 0, False, loaded.runner.info.end_ids)
    made = [
        Generation(
            ident,
            [*prompt],
            Sampler(replace(params, seed=ident), prompt_ids=prompt),
            limits,
            (),
            loaded.tokenizer.piece,
            lambda _: None,
            speculating=Speculating("ngram" if draft is None else "draft", most, rule),
        )
        for ident, prompt in enumerate(prompts)
    ]
    engine.submit(*made)
    while not all(one.done for one in made):
        engine.turn()
    stats = engine.stats()
    engine.kv.clear()
    if draft is not None:
        draft.clear()
    return stats.drafted_tokens, stats.accepted_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", default="", help="file of a draft model; without: n-grams")
    parser.add_argument("--questions", type=Path, help="lines of JSON, or text")
    parser.add_argument("--texts", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--backend", default="auto", choices=["auto", "llamacpp", "native"])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    threads = args.threads
    settings = ModelSettings(context=2048, threads=threads, batch_threads=threads, draft=args.draft)
    spec = ModelSpec(str(args.model), backend=args.backend, settings=settings)
    print(f"command: python {' '.join(sys.argv)}")
    print(f"machine: {platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}")
    print(f"date: {datetime.date.today().isoformat()}, load: {os.getloadavg()[0]:.1f}\n")
    with tempfile.TemporaryDirectory() as cache:
        loaded = open_model(spec, Path(cache))
        draft = open_draft(spec, loaded, Path(cache))
        texts = [PROMPT] * args.texts
        if args.questions is not None:
            text = args.questions.read_text(encoding="utf-8")
            if args.questions.suffix == ".jsonl":
                asked = [json.loads(line)["q"] for line in text.splitlines()]
                texts = [f"<|user|>{question}<|end|><|assistant|>" for question in asked]
            else:
                texts = [text[at : at + PIECE] for at in range(0, len(text) - PIECE, PIECE)]
            texts = texts[: args.texts]
        prompts = [loaded.tokenizer.encode(text, special=True, add_bos=True) for text in texts]
        drafts, names = None, ["n-grams"]
        if draft is not None:
            drafts = Drafts(draft.runner, loaded.runner.info.vocab_size)
            names = ["sampled", "greedy"]
        print(
            "| temperature | drafts | rule | drafted rows | accepted, by position | tokens a step |"
        )
        print("|---|---|---|---:|---|---:|")
        for temperature, params in PARAMS.items():
            for name in names:
                if drafts is not None:
                    drafts.is_greedy = name == "greedy"
                for rule in get_args(SpeculateRule):
                    drafted, right = accepted(
                        loaded,
                        drafts,
                        prompts,
                        params,
                        rule,
                        most=args.draft_tokens,
                        count=args.tokens,
                    )
                    pairs = zip(right, drafted, strict=True)
                    shares = ", ".join(f"{hits / tries:.2f}" for hits, tries in pairs)
                    a_step = 1 + sum(right) / drafted[0]
                    print(
                        f"| {temperature} | {name} | {rule} | {drafted[0]} | {shares} "
                        f"| {a_step:.2f} |",
                        flush=True,
                    )
    loaded.runner.close()


if __name__ == "__main__":
    main()
