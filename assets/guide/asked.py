"""First questions of conversations in guide's corpus, a line each, which share nothing with the
held-out ones: what `hearth train-medusa guide --self --text FILE` asks.

``python -m hearth.assets.guide.asked --count 8000 --seed 7 > FILE`` writes them.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from hearth.assets.guide.corpus.mixture import conversation
from hearth.assets.guide.data import HeldOut, clean_conversations


def asked(count: int, seed: int) -> Iterator[str]:
    """``count`` different questions; the same seed gives the same ones."""
    held_out = HeldOut.load(Path(__file__).parent / "questions.jsonl")
    seen: set[str] = set()
    for turns in clean_conversations(conversation, held_out, random.Random(seed), {}):
        text = " ".join(next(text for role, text in turns if role == "user").split())
        if text not in seen:
            seen.add(text)
            yield text
        if len(seen) >= count:
            return


def main() -> None:
    """Prints the questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    for text in asked(args.count, args.seed):
        print(text)


if __name__ == "__main__":
    main()
