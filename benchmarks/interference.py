"""How much a long prompt, or a long text to embed, slows down another session's stream.

    python benchmarks/interference.py [--model FILE.gguf] [--prompt 4000] [--json RESULT.json]
    python benchmarks/interference.py [--model FILE.gguf] --embed 32000 [--steps 500]
    python benchmarks/interference.py [--model FILE.gguf] --swap 20000 [--backend llamacpp]

Measured is the inter-token latency of one session while another session's prompt is computed, or
while a text is embedded: one engine over one runner, in this process, with the default target of
50 ms. A first session streams; then a second one arrives with a long prompt. "Disturbed" are the
first session's steps from then until the second one's first token. All prompts begin with the same
tokens, as those of chats do: the model's first token, if it has one, and thirty more. The bound is
twice the undisturbed median and the target. With --embed a text of that many tokens is embedded
instead, and the disturbed steps are those until its vector is ready, --steps at most; each stream
ends after 300 tokens and another begins, so that they stay as short as the undisturbed one. With
--swap a conversation of that many tokens is offloaded as the stream begins, and is copied back when
it continues. On a machine with other load, --processor-time with --threads 1 measures the steps
themselves. Without --model a random 100M-parameter Q8_0 llama is written to a temporary folder.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.embedding import TextJob
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.sampler import Sampler
from hearth.backends.worker.runners import open_model

Clock = Callable[[], float]
"""Returns seconds."""

UNDISTURBED_STEPS = 100
STREAM_PROMPT = 64
STREAM_TOKENS = 300
"""Tokens of a stream while a text is embedded."""
SHARED_PROMPT = 30
"""Number of tokens after the first that all prompts share."""
MOST_STREAMED = 6000
SEED = 7
SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"


@dataclass(frozen=True)
class Found:
    """The effect of some work on a stream. In seconds, unless the name says otherwise."""

    work: str
    target_s: float
    alone_s: float | None
    """Time of the work without the stream, if that was measured."""
    disturbed_s: float
    """Time of the work next to the stream."""
    undisturbed_p50_s: float
    undisturbed_p95_s: float
    undisturbed_max_s: float
    disturbed_p50_s: float
    disturbed_p95_s: float
    disturbed_max_s: float
    disturbed_steps: int

    @property
    def bound_s(self) -> float:
        """The limit that the disturbed steps should stay under."""
        return 2 * self.undisturbed_p50_s + self.target_s

    def rows(self) -> list[tuple[str, float]]:
        """Names and seconds for the table."""
        alone = [] if self.alone_s is None else [(f"{self.work}, alone", self.alone_s)]
        return [
            ("undisturbed step, p50", self.undisturbed_p50_s),
            ("undisturbed step, p95", self.undisturbed_p95_s),
            ("undisturbed step, max", self.undisturbed_max_s),
            ("disturbed step, p50", self.disturbed_p50_s),
            ("disturbed step, p95", self.disturbed_p95_s),
            ("disturbed step, max", self.disturbed_max_s),
            (f"bound: 2 × undisturbed + {1e3 * self.target_s:g} ms", self.bound_s),
            *alone,
            (f"{self.work}, next to the stream", self.disturbed_s),
        ]


def found_of(
    work: str,
    target_s: float,
    undisturbed: list[float],
    disturbed: list[float],
    alone_s: float | None = None,
) -> Found:
    """The figures of steps with and without `work`."""
    return Found(
        work,
        target_s,
        alone_s,
        sum(disturbed),
        statistics.median(undisturbed),
        float(np.percentile(undisturbed, 95)),
        max(undisturbed),
        statistics.median(disturbed),
        float(np.percentile(disturbed, 95)),
        max(disturbed),
        len(disturbed),
    )


class Sessions:
    """Sessions on one engine; their prompts are random tokens after a shared beginning."""

    def __init__(self, loaded: Loaded, target_s: float, clock: Clock) -> None:
        self.engine = Engine(loaded.runner, target_s, clock)
        self._clock = clock
        self._piece = loaded.tokenizer.piece
        self._vocab_size = loaded.runner.info.vocab_size
        self._stream = np.random.default_rng(SEED)
        first = loaded.tokenizer.encode("", special=False, add_bos=True)
        self._shared = [*first, *self._random(SHARED_PROMPT)]
        self._count = 0

    def begin(self, prompt_tokens: int, max_tokens: int) -> Generation:
        """Submit a session that only ends at `max_tokens`."""
        own = self._random(prompt_tokens - len(self._shared))
        return self.ask([*self._shared, *own], max_tokens)

    def ask(self, prompt: list[int], max_tokens: int) -> Generation:
        """As `begin`, with the given prompt."""
        self._count += 1
        session = Generation(
            self._count,
            prompt,
            Sampler(SamplingParams(temperature=0.0), prompt_ids=prompt),
            Limits(max_tokens, 0, ignore_eos=True, end_ids=frozenset()),
            (),
            self._piece,
            lambda event: None,
        )
        self.engine.submit(session)
        return session

    def embed(self, text_tokens: int) -> TextJob:
        """Submit a text to embed."""
        self._count += 1
        job = TextJob(self._count, [self._random(text_tokens)], "mean", lambda event: None)
        self.engine.submit(job)
        return job

    def _random(self, tokens: int) -> list[int]:
        ids: list[int] = self._stream.integers(0, self._vocab_size, tokens).tolist()
        return ids

    def first_token_s(self, session: Generation) -> float:
        """Seconds until the first token of `session`."""
        began = self._clock()
        while session.new_tokens == 0:
            self.engine.run_once()
        return self._clock() - began

    def gaps(self, session: Generation, steps: int) -> list[float]:
        """Seconds between the next `steps` tokens of `session`."""
        return [self.gap(session) for _ in range(steps)]

    def gap(self, session: Generation) -> float:
        """Seconds until the next token of `session`."""
        before, began = session.new_tokens, self._clock()
        while session.new_tokens == before:
            assert not session.done, "it ended before its tokens were there"
            self.engine.run_once()
        return self._clock() - began

    def end(self, session: Generation) -> None:
        """Cancel `session`, and drop everything that is cached."""
        self.engine.cancel(session.id)
        self.engine.clear_cache(lambda _: None)
        self.engine.run_once()


def measure(loaded: Loaded, prompt_tokens: int, target_s: float, clock: Clock) -> list[Found]:
    """Measure a prompt alone, a stream alone, then both."""
    sessions = Sessions(loaded, target_s, clock)
    warm = sessions.begin(STREAM_PROMPT, 2)
    sessions.first_token_s(warm)
    sessions.end(warm)
    alone = sessions.begin(prompt_tokens, 2)
    prefill_alone_s = sessions.first_token_s(alone)
    sessions.end(alone)

    streaming, undisturbed = stream(sessions)
    arriving = sessions.begin(prompt_tokens, 2)
    disturbed = []
    while arriving.new_tokens == 0:
        disturbed.append(sessions.gap(streaming))
    sessions.end(streaming)
    work = f"prefill of {prompt_tokens:,} tokens"
    return [found_of(work, target_s, undisturbed, disturbed, prefill_alone_s)]


def measure_text(
    loaded: Loaded, text_tokens: int, target_s: float, steps: int, clock: Clock
) -> list[Found]:
    """Measure a stream alone, then while a text is embedded, for at most `steps` steps."""
    sessions = Sessions(loaded, target_s, clock)
    streaming, undisturbed = stream(sessions)
    text = sessions.embed(text_tokens)
    disturbed = []
    while not text.done and len(disturbed) < steps:
        if streaming.new_tokens >= STREAM_TOKENS:
            sessions.engine.cancel(streaming.id)
            streaming = sessions.begin(STREAM_PROMPT, MOST_STREAMED)
            sessions.first_token_s(streaming)
        disturbed.append(sessions.gap(streaming))
    computed_tokens = text.stats().computed_tokens
    sessions.engine.cancel(text.id)
    sessions.end(streaming)
    work = f"{computed_tokens:,} of {text_tokens:,} tokens embedded"
    return [found_of(work, target_s, undisturbed, disturbed)]


def measure_swap(loaded: Loaded, tokens: int, target_s: float, clock: Clock) -> list[Found]:
    """Offload an ended conversation because a stream begins, then continue it."""
    sessions = Sessions(loaded, target_s, clock)
    talk = sessions.begin(tokens, 2)
    sessions.first_token_s(talk)
    while not talk.done:
        sessions.engine.run_once()
    streaming = sessions.begin(STREAM_PROMPT, MOST_STREAMED)
    sessions.first_token_s(streaming)
    out = []
    while sessions.engine.kv.stats().offloaded_tokens < tokens and len(out) < UNDISTURBED_STEPS:
        out.append(sessions.gap(streaming))
    moved = sessions.engine.kv.stats().offloaded_tokens
    undisturbed = sessions.gaps(streaming, UNDISTURBED_STEPS)
    again = sessions.ask([*talk.tokens[:tokens], *talk.tokens[:8]], 2)
    back = []
    while again.new_tokens == 0:
        back.append(sessions.gap(streaming))
    sessions.end(streaming)
    return [
        found_of(f"{moved:,} tokens offloaded", target_s, undisturbed, out),
        found_of(f"{again.cached:,} tokens copied back", target_s, undisturbed, back),
    ]


def stream(sessions: Sessions) -> tuple[Generation, list[float]]:
    """A streaming session, and the seconds between its tokens."""
    streaming = sessions.begin(STREAM_PROMPT, MOST_STREAMED)
    sessions.first_token_s(streaming)
    return streaming, sessions.gaps(streaming, UNDISTURBED_STEPS)


def random_model(folder: Path) -> Path:
    """A llama of 100 million random parameters."""
    sys.path.insert(0, str(SUPPORT))  # the tests' model builder is not an installed package
    from gguf_builder import tiny_llama

    return tiny_llama(
        folder / "random-100m.gguf",
        hidden=768,
        layers=8,
        heads=12,
        kv_heads=4,
        context=8192,
        vocab=32000,
        quant="Q8_0",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="a GGUF file; a random one by default")
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of the long prompt")
    parser.add_argument("--embed", type=int, help="embed a text of so many tokens instead")
    parser.add_argument("--swap", type=int, help="offload so many tokens and copy them back")
    parser.add_argument("--steps", type=int, default=sys.maxsize, help="with --embed")
    parser.add_argument("--target-ms", type=float, default=50.0)
    parser.add_argument("--backend", choices=("auto", "llamacpp", "native"), default="auto")
    parser.add_argument("--threads", type=int, help="for decode and prefill; measured by default")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="of all threads: for a machine with other work",
    )
    parser.add_argument("--flash-attention", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as folder:
        path = arguments.model or random_model(Path(folder))
        settings = ModelSettings(
            context=(arguments.embed or arguments.swap or arguments.prompt)
            + STREAM_PROMPT
            + MOST_STREAMED,
            max_sessions=2,
            threads=arguments.threads,
            batch_threads=arguments.threads,
            flash_attention={"auto": None, "on": True, "off": False}[arguments.flash_attention],
        )
        loaded = open_model(
            ModelSpec(str(path), settings=settings, backend=arguments.backend), Path(folder)
        )
        gc.freeze()  # As a worker does.
        target_s = arguments.target_ms / 1000
        clock = time.process_time if arguments.processor_time else time.perf_counter
        if arguments.embed:
            found = measure_text(loaded, arguments.embed, target_s, arguments.steps, clock)
        elif arguments.swap:
            found = measure_swap(loaded, arguments.swap, target_s, clock)
        else:
            found = measure(loaded, arguments.prompt, target_s, clock)
        info = loaded.info
        loaded.runner.close()
    print(
        f"{info.name}, {info.quantization}, {info.backend} {info.backend_version},"
        f" threads {info.threads} (prefill {info.batch_threads}),"
        f" {'processor' if arguments.processor_time else 'wall'} time,"
        f" flash attention {arguments.flash_attention},"
        f" {platform.machine()}, {datetime.date.today()}"
    )
    for one in found:
        print(f"\n| {'what':<44} | {'ms':>9} |\n|{'-' * 46}|{'-' * 10}:|")
        for name, seconds in one.rows():
            print(f"| {name:<44} | {seconds * 1e3:>9,.1f} |")
        for name, value in (("p95", one.disturbed_p95_s), ("max", one.disturbed_max_s)):
            verdict = "within" if value <= one.bound_s else "BEYOND"
            print(f"{name} over {one.disturbed_steps} steps is {verdict} the bound")
    if arguments.json:
        numbers = [{**asdict(one), "bound_s": one.bound_s} for one in found]
        arguments.json.write_text(json.dumps({"model": path.name, "found": numbers}, indent=2))


if __name__ == "__main__":
    main()
