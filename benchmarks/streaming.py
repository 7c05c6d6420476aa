"""Perplexity of a text that is much longer than the context: with attention sinks, without them,
and with a window that is computed again.

    python benchmarks/streaming.py MODEL [--context 512] [--tokens 20000] [--text FILE]

The text goes through the model in chunks: a chunk is scored, and once the context is full, a
quarter of it is forgotten before the next. `sinks` keeps the first tokens and gives the remaining
ones new positions, `no sinks` does the same without keeping the first, and `fresh window` computes
the newest three quarters of a context again, as a separate text, before each chunk, so that a token
has as many tokens before it as in `no sinks`. Tokens after the first context count, the same for
all three. The default text is Python's own reference manual (`pydoc_data.topics`).
"""

from __future__ import annotations

import argparse
import datetime
import math
import platform
import pydoc_data.topics
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from hearth.backends.contract.events import Failed, Finished, Scores
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.scoring import Scoring
from hearth.backends.engine.streaming import Streaming
from hearth.backends.errors import from_info
from hearth.backends.worker.runners import open_model

WAYS: Final = ("sinks", "no sinks", "fresh window")
PARTS: Final = 4
"""Parts of the text, whose perplexity is printed separately."""


class LateScoring(Scoring):
    """Scores the tokens after the first `skipped`."""

    def __init__(self, tokens: list[int], skipped: int) -> None:
        self.answers: list[Scores | Finished | Failed] = []
        super().__init__(1, tokens, self.answers.append)
        self._logprobs = [0.0] * skipped
        self._skipped = skipped

    def run(self, engine: Engine) -> list[float]:
        """Return their log probabilities."""
        engine.submit(self)
        while not self.done:
            engine.run_once()
        [answer] = self.answers
        if isinstance(answer, Failed):
            raise from_info(answer.error)
        assert isinstance(answer, Scores)
        return list(answer.logprobs[self._skipped :])


def evicted(engine: Engine, tokens: list[int], streaming: Streaming) -> list[float]:
    """Score all tokens after the first context, in one sequence."""
    sequence = LateScoring(tokens, streaming.most - 1)
    sequence.streaming = streaming
    return sequence.run(engine)


def fresh(engine: Engine, tokens: list[int], streaming: Streaming) -> list[float]:
    """As `evicted`, but the context of each chunk is computed again for it."""
    before, found = streaming.most - streaming.step, []
    for start in range(streaming.most, len(tokens), streaming.step):
        text = tokens[start - before : start + streaming.step]
        found += LateScoring(text, before - 1).run(engine)
        engine.kv.clear()
    return found


def perplexity(logprobs: list[float]) -> float:
    """The perplexity, or infinity if a float cannot hold it."""
    mean = -sum(logprobs) / len(logprobs)
    return math.exp(mean) if mean < 700 else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--backend", choices=("llamacpp", "native"), default="llamacpp")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=WAYS)
    args = parser.parse_args()
    text = "\n".join(pydoc_data.topics.topics.values())
    if args.text is not None:
        text = args.text.read_text(encoding="utf-8")
    settings = ModelSettings(
        context=args.context, max_sessions=1, threads=args.threads, batch_threads=args.threads
    )
    with TemporaryDirectory() as cache:
        spec = ModelSpec(str(args.model), backend=args.backend, settings=settings)
        loaded = open_model(spec, Path(cache))
    info = loaded.runner.info
    if info.no_streaming:
        raise SystemExit(f"{args.model.name}: {info.no_streaming}.")
    tokens = loaded.tokenizer.encode(text, special=False, add_bos=True)[: args.tokens]
    engine = Engine(loaded.runner)
    sinks = Streaming.of(args.sinks, info.context, info.page)
    plain = Streaming.of(0, info.context, info.page)
    print(f"{datetime.date.today()}, {platform.processor() or platform.machine()}")
    print(f"{args.model.name}, {args.backend}, {len(tokens):,} tokens, {sinks}")
    parts = [f"{(at + 1) * len(tokens) // PARTS:,}" for at in range(PARTS)]
    print(f"| | perplexity | up to {' | '.join(parts)} | CPU s |")
    print("|---|---:|" + "---:|" * (PARTS + 1))
    ways = {
        "sinks": lambda: evicted(engine, tokens, sinks),
        "no sinks": lambda: evicted(engine, tokens, plain),
        "fresh window": lambda: fresh(engine, tokens, plain),
    }
    for name in args.ways:
        began = time.process_time()
        found = ways[name]()
        seconds = time.process_time() - began
        assert len(found) == len(tokens) - sinks.most
        size = len(tokens) // PARTS
        ends = [max(0, size * part - sinks.most) for part in range(PARTS)] + [len(found)]
        cells = [perplexity(found)]
        cells += [perplexity(found[a:b]) for a, b in pairwise(ends)]
        print(
            f"| {name} | " + " | ".join(f"{one:.2f}" for one in cells) + f" | {seconds:.0f} |",
            flush=True,
        )
    loaded.runner.close()


if __name__ == "__main__":
    main()
