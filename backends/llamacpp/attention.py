"""Measures the cost of both kinds of attention on this processor, once for each shape of heads.

In steps of few rows, such as decode steps, llama.cpp's flash attention for processors goes through
keys and values cell by cell. On processors without half-precision arithmetic, this can take more
than twice the time of attention by two matrix products, which needs a larger scratch buffer.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from hearth.backends.contract.models import KvType, ModelSettings
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.errors import Busy, HearthError
from hearth.backends.llamacpp import selftest
from hearth.backends.llamacpp.attention_choice import Attention
from hearth.backends.llamacpp.facts import GgufFacts
from hearth.backends.llamacpp.params import ContextPlan, head_sizes
from hearth.backends.llamacpp.probe_model import Heads, open_probe, write_attention
from hearth.backends.machine.atomic_files import write_json
from hearth.backends.machine.threads import usable_cores

log = logging.getLogger(__name__)

DEPTH: Final = 2048
"""Tokens before the decode step that is timed."""
LEAST_TOKENS: Final = 2560
"""In pools of fewer tokens the kind of attention hardly matters."""
LEAST_TOKEN_BYTES: Final = 16 << 10
"""Nor does it matter if keys and values of a token take fewer bytes than this."""
_STEPS: Final = 6
_MOST_ROUNDS: Final = 5
_NEAR: Final = 1.4
_FILE: Final = "attention.json"


def heads_of(facts: GgufFacts) -> Heads | None:
    """The attention heads of a model; None if its header lacks them or has them by layer."""
    arch = facts.architecture
    heads = facts.value(f"{arch}.attention.head_count", 0)
    kv_heads = facts.value(f"{arch}.attention.head_count_kv", heads)
    key, value = head_sizes(facts)
    if not (isinstance(heads, int) and isinstance(kv_heads, int)):
        return None
    if min(heads, kv_heads, key, value) < 1 or heads % kv_heads or key % 2:
        return None
    return Heads(heads, kv_heads, key, value)


def measured(heads: Heads, kv_type: KvType, threads: int, cache_dir: Path | None) -> Attention:
    """The cost of attention on this machine, from `cache_dir` if measured with this library.

    Raises:
        HearthError: the probe could not be run, or other programs disturb it.
        OSError: there is no room for the probe.
    """
    key = "-".join(map(str, (*asdict(heads).values(), kv_type, threads)))
    path = None if cache_dir is None else cache_dir / _FILE
    fingerprint = selftest.library_fingerprint()
    known = _load(path, fingerprint)
    if key not in known:
        attention = _measure(heads, kv_type, threads)
        log.info("attention of %s: %s", key, attention)
        known[key] = attention
        if path is not None:
            try:
                _store(path, fingerprint, known)
            except OSError as error:
                log.warning("attention is measured again at the next load: %s", error)
    return known[key]


def costs(
    facts: GgufFacts, plan: ContextPlan, threads: int | None, cache_dir: Path | None
) -> Attention | None:
    """The cost of attention on the CPU for a model with this plan.

    None if it cannot be measured or hardly matters.
    """
    heads = heads_of(facts)
    is_small = plan.pool_tokens < LEAST_TOKENS or plan.kv_bytes_per_token < LEAST_TOKEN_BYTES
    is_plain = plan.kv_type == plan.value_type and plan.kv_type in ("f16", "f32")
    if heads is None or is_small or not is_plain:
        return None
    try:
        return measured(heads, plan.kv_type, threads or usable_cores(), cache_dir)
    except (HearthError, OSError) as error:
        log.warning("attention was not measured: %s", error)
        return None


def _measure(heads: Heads, kv_type: KvType, threads: int) -> Attention:
    with tempfile.TemporaryDirectory(prefix="hearth-attention-") as folder:
        path = write_attention(Path(folder) / "attention.gguf", heads, 2 * DEPTH)

        def both() -> tuple[float, float]:
            flash_s = _step_s(path, kv_type, threads, flash=True)
            return flash_s, _step_s(path, kv_type, threads, flash=False)

        return Attention(*steady(both), DEPTH)


def steady(both: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """The least of each of the two times that `both` measures, once two measurements agree.

    While other programs run, a time may be a hundred times too long, and the result is stored.

    Raises:
        Busy: no measurement came near those before it.
    """
    least = both()
    for _ in range(_MOST_ROUNDS - 1):
        times = both()
        best = min(least[0], times[0]), min(least[1], times[1])
        if all(max(pair) < _NEAR * min(pair) for pair in zip(least, times, strict=True)):
            return best
        least = best
    raise Busy("Other programs need the processor.", "It is measured at the next load.")


def _step_s(path: Path, kv_type: KvType, threads: int, *, flash: bool) -> float:
    """Seconds of the quickest of a few decode steps after `DEPTH` tokens."""
    settings = ModelSettings(
        context=DEPTH + 256, max_sessions=1, kv_type=kv_type, flash_attention=flash
    )
    runner = open_probe(path, settings, threads)
    try:
        runner.store.make_room(DEPTH + _STEPS)
        most = runner.info.max_batch_tokens
        for at in range(0, DEPTH, most):
            count = min(most, DEPTH - at)
            runner.step(StepPlan((Row(0, at, [1] * count, 0, handle=0),)))
        times = []
        for at in range(DEPTH, DEPTH + _STEPS):
            before = time.perf_counter()
            runner.step(StepPlan((Row(0, at, [1], 1, handle=0),)))
            times.append(time.perf_counter() - before)
        return min(times)
    finally:
        runner.close()


def _load(path: Path | None, fingerprint: str) -> dict[str, Attention]:
    """The stored measurements of this library; empty if the file cannot be read."""
    if path is None:
        return {}
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["fingerprint"] != fingerprint:
            return {}
        return {key: Attention(**entry) for key, entry in stored["measured"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _store(path: Path, fingerprint: str, known: dict[str, Attention]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {
        "fingerprint": fingerprint,
        "measured": {key: asdict(entry) for key, entry in known.items()},
    }
    write_json(path, stored)
