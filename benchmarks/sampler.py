"""Microseconds per draw of the sampler, and, for rejection sampling, per token of a draft, guessed
and verified: `python benchmarks/sampler.py [--vocab N]`.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.sampler import Sampler

DRAWS = 200
ALONE = SamplingParams(seed=1, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
CASES = {
    "greedy": SamplingParams(temperature=0.0),
    "default (top-k 40, top-p, min-p)": SamplingParams(seed=1),
    "temperature only": ALONE,
    "top-p only": replace(ALONE, top_p=0.95),
    "min-p only": replace(ALONE, min_p=0.05),
    "greedy, 5 logprobs": SamplingParams(temperature=0.0, logprobs=5),
    "all on": SamplingParams(
        seed=1,
        typical_p=0.95,
        repetition_penalty=1.1,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        dry_multiplier=0.8,
        xtc_probability=0.5,
        logit_bias={7: 1.0},
    ),
}


def model_like_logits(vocab: int) -> NDArray[np.float32]:
    """[vocab] float32: a wide bell with some forty likely tokens, as from a language model."""
    random = np.random.default_rng(0)
    logits = random.normal(0.0, 2.5, vocab)
    logits[random.choice(vocab, 40, replace=False)] += random.uniform(8.0, 16.0, 40)
    return logits.astype(np.float32)


def microseconds(params: SamplingParams, logits: NDArray[np.float32]) -> list[float]:
    """After a prompt of 2,000 tokens: the median and the 90th percentile of `draw` and `accept`,
    and the medians of `guess` and `verify`.
    """
    prompt = np.random.default_rng(1).integers(0, logits.size, 2000).tolist()
    sampler = Sampler(params, prompt_ids=prompt)
    times: dict[str, list[float]] = {"draw": [], "guess": [], "verify": []}
    for position in range(DRAWS):
        began = time.perf_counter()
        sampler.accept(sampler.draw(logits, position).id)
        drawn = time.perf_counter()
        token, law = sampler.guess(logits, position)
        guessed = time.perf_counter()
        sampler.verify(logits, position, token, law)
        ended = time.perf_counter()
        for name, took_s in zip(
            times, (drawn - began, guessed - drawn, ended - guessed), strict=True
        ):
            times[name].append(took_s * 1e6)
    draw = times["draw"]
    return [float(np.quantile(draw, 0.9)), *(float(np.median(each)) for each in times.values())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=151_936, help="tokens (default: %(default)s)")
    vocab = parser.parse_args().vocab
    logits = model_like_logits(vocab)
    print(f"command: python {' '.join(sys.argv)}")
    print(
        f"machine: {platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}, "
        f"Python {platform.python_version()}, numpy {np.__version__}"
    )
    print(f"date: {datetime.date.today().isoformat()}")
    print(f"vocabulary: {vocab:,} tokens, {DRAWS} draws\n")
    print(f"| {'parameters':34} | 90 % µs | median µs | guess µs | verify µs |")
    print(f"|{'-' * 36}|--------:|----------:|---------:|----------:|")
    for name, params in CASES.items():
        slow, median, guess, verify = microseconds(params, logits)
        print(f"| {name:34} | {slow:7.0f} | {median:9.0f} | {guess:8.0f} | {verify:9.0f} |")


if __name__ == "__main__":
    main()
