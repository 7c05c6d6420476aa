"""The effect of quantizing a model: perplexity and speed, measured the same way before and after.

Perplexity uses the protocol "second-half" of `hearth.quant.evaluation.protocols`. Numbers for
another text, window or protocol cannot be compared with these.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hearth.app.answer import Answer
from hearth.app.machine import QUIET_CORES, busy_cores
from hearth.backends.contract.backend import Backend
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.errors import InvalidParameter
from hearth.quant.evaluation import estimates
from hearth.quant.evaluation.protocols import windows

if TYPE_CHECKING:
    from hearth.app.host_connection import HostConnection

WINDOW_TOKENS: Final = 512
MOST_TOKENS: Final = 8192
_PROMPT_TOKENS: Final = 64
_DECODED_TOKENS: Final = 64
_DECODE_RUNS: Final = 3

OnProgress = Callable[[int, int], None]
"""Called with the number of tokens done and the total number of tokens."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Perplexity and speed of one model."""

    perplexity: float
    """e to the mean negative log probability of the scored tokens; lower is better.

    Infinite if a token had a probability of (almost) 0.
    """
    perplexity_error: float
    """The standard error of the perplexity."""
    decode_tok_per_s: float
    """The best of three greedy answers; 0 if none could be measured."""
    is_busy: bool
    """Whether other programs used the processors, so that the model may be faster at rest."""
    scored_tokens: int
    window_tokens: int
    backend: str
    """The backend that ran the model: "llamacpp" or "native"."""
    threads: int


@dataclass(frozen=True, slots=True)
class Quality(Measured):
    """All measurements of one model."""

    losses: tuple[float, ...] = field(repr=False)
    """Negative log probability of each scored token."""
    blocks: tuple[int, ...] = field(repr=False)
    """The blocks of these tokens over which standard errors are computed."""

    def facts(self) -> dict[str, Any]:
        """The measurements as JSON values, without those of single tokens."""
        facts = asdict(self)
        del facts["losses"], facts["blocks"]
        if not math.isfinite(self.perplexity):  # JSON cannot express it.
            facts["perplexity"] = facts["perplexity_error"] = None
        return facts


def perplexity_change(before: Quality, after: Quality) -> tuple[float, float]:
    """(relative change of perplexity, its standard error).

    It is computed from the same tokens for both models: the difficulty of tokens that both share
    cancels out, so that the change is known far more precisely than either perplexity.

    Raises:
        ValueError: `before` and `after` were not measured on the same tokens.
    """
    change = estimates.relative_perplexity(before.losses, after.losses, after.blocks)
    return change.value, change.error


@dataclass(frozen=True, slots=True)
class Sample:
    """A text for measurements."""

    name: str
    text: str
    marked: bool = False
    """Whether the text of special tokens in it is tokenized as special tokens."""


def bundled_sample(*, for_guide: bool = False) -> Sample:
    """The default text for measurements: prose, code and a table in English.

    Args:
        for_guide: return conversations like those that the bundled model was trained on, which
            knows little else. They are sampled from its corpus
            (`hearth.assets.guide.data.clean_conversations`).
    """
    from importlib.resources import files

    name = "guide.txt" if for_guide else "sample.txt"
    text = (files("hearth.assets") / "texts" / name).read_text(encoding="utf-8")
    return Sample(f"bundled {name}", text, marked=for_guide)


def sample_of(path: Path | None, *, for_guide: bool = False) -> Sample:
    """The text of the file at `path`, or the bundled text if `path` is None.

    Raises `InvalidParameter` if the file cannot be read.
    """
    if path is None:
        return bundled_sample(for_guide=for_guide)
    try:
        return Sample(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(
            "text", f"{path} cannot be read as UTF-8 text: {error}.", "Name another file."
        ) from error


async def measure(
    backend: Backend,
    sample: Sample,
    *,
    most_tokens: int = MOST_TOKENS,
    on_progress: OnProgress = lambda done, total: None,
) -> Quality:
    """Perplexity of the model on the first `most_tokens` of `sample`, and its decoding speed.

    Raises:
        TextTooShort: the text has fewer than 32 tokens.
        HearthError: the model cannot be loaded, or stopped answering.
    """
    info = await backend.info()
    prefix = await _beginning(backend)
    ids = (await backend.tokenize(sample.text, special=sample.marked))[:most_tokens]
    length = min(WINDOW_TOKENS, info.context or WINDOW_TOKENS)
    cut = windows(ids, prefix, length, "second-half", sample.name)
    losses: list[float] = []
    window = len(cut[0].tokens)
    for number, one in enumerate(cut, 1):
        scores = await backend.score(one.tokens)
        losses += [-logprob for logprob in scores.logprobs[one.first - 1 :]]
        on_progress(number * window, len(cut) * window)
    blocks = estimates.blocks_of([one.scored for one in cut])
    perplexity = estimates.perplexity(losses, blocks)
    prompt = [*prefix, *ids[:_PROMPT_TOKENS]][: max(1, window // 2)]
    busy_before = await asyncio.to_thread(busy_cores)
    speeds = [await _decode_speed(backend, prompt, window) for _ in range(_DECODE_RUNS)]
    return Quality(
        perplexity=perplexity.value,
        perplexity_error=perplexity.error,
        scored_tokens=len(losses),
        window_tokens=window,
        backend=info.backend,
        threads=info.threads,
        decode_tok_per_s=max(speeds),
        is_busy=max(busy_before, await asyncio.to_thread(busy_cores)) > QUIET_CORES,
        losses=tuple(losses),
        blocks=tuple(blocks),
    )


async def measure_on(
    host: HostConnection,
    spec: ModelSpec,
    sample: Sample,
    *,
    most_tokens: int = MOST_TOKENS,
    on_progress: OnProgress = lambda done, total: None,
) -> Quality:
    """Run `measure` on the model of `spec`.

    If the model was not loaded before, it is unloaded again, so that the next one has room.
    """
    stats = await host.stats()
    was_loaded = stats is not None and any(one.path == spec.path for one in stats.workers)
    try:
        backend = await host.backend(spec)
        return await measure(backend, sample, most_tokens=most_tokens, on_progress=on_progress)
    finally:
        if not was_loaded:
            await host.unload(spec.path)


async def _beginning(backend: Backend) -> Sequence[int]:
    """The token ids that precede any text for this model: its beginning-of-text token, or none."""
    word = "a"
    alone = await backend.tokenize(word)
    prompt = (await backend.render(Request(text=word))).ids
    kept = len(prompt) - len(alone)
    return prompt[:kept] if kept > 0 and list(prompt[kept:]) == list(alone) else ()


async def _decode_speed(backend: Backend, prompt: list[int], window: int) -> float:
    request = Request(
        token_ids=tuple(prompt),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=min(_DECODED_TOKENS, window - len(prompt)),
        ignore_eos=True,
        reuse_prefix=False,
    )
    answer = Answer()
    async for _ in answer.follow(backend, request):
        pass
    return answer.timings.decode_tok_per_s
