"""The jobs of `hearth eval`: scoring a text with a model, and measuring the model's speed.

`hearth.app.jobs` runs each in a process of its own, so that only one model is in memory at a time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from hearth.app.jobs.child import Reporter
from hearth.app.machine import QUIET_CORES, busy_cores
from hearth.backends.contract.models import ModelSpec

_PROMPT_TOKENS: Final = 128
_NEW_TOKENS: Final = 32
_REPEATS: Final = 3


def quality_question(
    spec: ModelSpec, cache_dir: Path, conditions: dict[str, Any], **reference: Any
) -> dict[str, Any]:
    """The question for `quality`.

    Args:
        conditions: {"text", "name", "marked", "protocol", "context", "tokens"}; see
            `Conditions.question`.
        reference: "keep", the path of a file to write the logits to; or "reference", {"path" of
            such a file, "tokens_sha256" of the answer that came with it}; or neither.
    """
    return {"spec": asdict(spec), "cache_dir": str(cache_dir), **conditions, **reference}


def quality(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Score the text, and compare the logits with a reference if there is one.

    The answer: {"scores": fields of `TokenScores`, "counts": scored tokens of each window,
    "window_tokens", "tokens_sha256": hash of all windows and the size of the vocabulary, "runner",
    "runner_version", "quantization", "threads", "notices", "wall_s"}. Only some rows of logits are
    in memory at a time.

    Raises:
        TextTooShort: the text has too few tokens.
        BadLogits: the model computed values that are not numbers.
        NotComparable: the reference has other tokens for the text, or another vocabulary.
        NoSpace: the disk has no room for the logits.
        HearthError: the model cannot be loaded, or failed.
    """
    import numpy as np

    from hearth.backends.bench.logits import next_token_logits
    from hearth.backends.engine.cached_runner import CachedRunner
    from hearth.quant.evaluation.divergence import TokenScores
    from hearth.quant.evaluation.errors import NotComparable
    from hearth.quant.evaluation.protocols import windows
    from hearth.quant.gguf.quantize_file import check_room

    began = time.perf_counter()
    spec = _spec(question, context=question["context"], max_sessions=1)
    keep, reference = question.get("keep"), question.get("reference")
    with ExitStack() as leaving:
        loaded = leaving.enter_context(_opened(spec, question))
        tokenizer, vocabulary = loaded.tokenizer, loaded.runner.info.vocab_size
        ids = tokenizer.encode(question["text"], special=question["marked"], add_bos=False)
        ids = ids[: question["tokens"]]
        head = tokenizer.encode("", special=False, add_bos=True)
        length = min(question["context"], loaded.runner.info.context)
        cut = windows(ids, head, length, question["protocol"], question["name"])
        total = sum(window.scored for window in cut)
        digest = hashlib.sha256(repr((cut, vocabulary)).encode()).hexdigest()
        written: BinaryIO | None = None
        known: BinaryIO | None = None
        if keep is not None:
            check_room(Path(keep), total * vocabulary * 4)
            written = leaving.enter_context(Path(keep).open("wb"))
        if reference is not None:
            if digest != reference["tokens_sha256"]:
                raise NotComparable(
                    f"{spec.name} cuts {question['name']} into other tokens than the reference, or "
                    "has another vocabulary.",
                    "Compare a model with one that it was made of.",
                )
            known = leaving.enter_context(Path(reference["path"]).open("rb"))
        scores, cached = TokenScores(), CachedRunner(loaded.runner)
        for window in cut:
            at = window.first
            for logits in next_token_logits(cached, window.tokens, window.first):
                reporter.check()
                if written is not None:
                    written.write(np.ascontiguousarray(logits).data)
                targets = np.array(window.tokens[at : at + len(logits)])
                theirs = None
                if known is not None:
                    data = known.read(logits.nbytes)
                    theirs = np.frombuffer(data, np.float32).reshape(logits.shape)
                scores.add(logits, targets, theirs)
                at += len(logits)
                reporter.progress(done=len(scores.losses), total=total)
        answer = {
            "scores": scores.facts(),
            "counts": [window.scored for window in cut],
            "window_tokens": len(cut[0].tokens),
            "tokens_sha256": digest,
            "runner": loaded.info.backend,
            "runner_version": loaded.info.backend_version,
            "quantization": loaded.info.quantization,
            "threads": loaded.info.batch_threads,
            "notices": loaded.info.notices,
        }
    return {**answer, "wall_s": round(time.perf_counter() - began, 3)}


def speed(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """The decoding speed of the model as served.

    The answer: {"tok_per_s": {number of sessions: tokens per second of all sessions together, the
    median of three measurements of 32 tokens after prompts of 128}, "rss_bytes": resident memory
    afterwards, "is_busy": whether other programs used the processor, "threads"}.

    Args:
        question: {"spec", "cache_dir", "sessions": list of numbers}.

    Raises:
        HearthError: the model cannot be loaded, or failed.
    """
    import psutil

    from hearth.backends.bench.cases import Case
    from hearth.backends.bench.engine_side import EngineSide
    from hearth.backends.bench.measure import median_rate

    busy = busy_cores()
    sessions = question["sessions"]
    cases = [
        Case(f"tg × {count}", "sessions", count, _PROMPT_TOKENS, 0, _NEW_TOKENS, fresh=False)
        for count in sessions
    ]
    context = max(case.tokens(_REPEATS) for case in cases)
    spec = _spec(question, context=context, max_sessions=max(sessions))
    with _opened(spec, question) as loaded:
        side, rates = EngineSide(loaded), {}
        for number, case in enumerate(cases):
            reporter.check()
            reporter.progress(done=number, total=len(cases))
            rates[case.sessions] = median_rate(case, side, _REPEATS)
        rss = psutil.Process().memory_info().rss
        threads = loaded.info.threads
    return {
        "tok_per_s": rates,
        "rss_bytes": rss,
        "is_busy": max(busy, busy_cores()) > QUIET_CORES,
        "threads": threads,
    }


def _spec(question: dict[str, Any], **settings: Any) -> ModelSpec:
    import msgspec

    spec = msgspec.convert(question["spec"], ModelSpec)
    pool: dict[str, Any] = {"kv_pool": "static", "kv_budget_bytes": None}
    return replace(spec, settings=replace(spec.settings, **settings, **pool))


@contextmanager
def _opened(spec: ModelSpec, question: dict[str, Any]) -> Iterator[Any]:
    """The `Loaded` model of `spec`, until the block ends."""
    from hearth.backends.worker.runners import open_model

    loaded = open_model(spec, Path(question["cache_dir"]))
    try:
        yield loaded
    finally:
        loaded.runner.close()
