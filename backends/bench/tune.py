"""Searches for the settings that suit this machine and model: threads, chunk, KV type, sessions.

Decode is measured for each number of sessions, and prefill for each chunk size (which does not
affect decode), both for each KV type of the runner and each number of threads that may matter. The
choice is then computed: a request with P prompt tokens and G new tokens, one of S sessions, takes
`S * P / prefill + S * G / decode` seconds, where `prefill` and `decode` are tokens per second of
all sessions together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from hearth.backends.bench.cases import Case, cases, check_job
from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.bench.job import Choice, Job, Message, Progress, Skipped, Tuned
from hearth.backends.bench.measure import median_rate
from hearth.backends.bench.model_facts import ModelFacts, read_facts
from hearth.backends.bench.session import impossible, sized
from hearth.backends.contract.models import KvType, ModelSpec
from hearth.backends.errors import DoesNotFit, InvalidParameter, UnsupportedModel
from hearth.backends.machine.gpus import has_cuda
from hearth.backends.machine.threads import candidates, usable_cores, usable_threads
from hearth.backends.worker.runners import open_model

CHUNKS = (512, 256, 128)
"""Chunk sizes, the library's default first: of two that are equally fast, the earlier is chosen."""
KV_TYPES: tuple[KvType, ...] = ("f16", "q8_0")
CLEARLY_BETTER = 1.03
"""Factor by which a later candidate must be faster, because single timings are noisy."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds measured with one KV type, in tokens per second of all sessions together."""

    kv_type: KvType
    prefill: dict[tuple[int, int], float]
    """Prefill speed by (threads, chunk)."""
    decode: dict[tuple[int, int], float]
    """Decode speed by (threads, sessions)."""


def tune(job: Job) -> Iterator[Message]:
    """Measure, then choose the settings. KV types that cannot be used are skipped.

    Raises:
        InvalidParameter: a number of the job cannot be honoured.
        HearthError: what `open_model` raises.
    """
    check_job(job)
    facts = read_facts(job)
    for case in (_prompt_case(job), *_decode_cases(job, job.sessions)):
        reason = impossible(case, job, facts)
        if reason:
            raise InvalidParameter("prompt_tokens", f"{case.name} {reason}.", "Measure less.")
    measured: list[Speeds] = []
    library = ""
    for kv_type in KV_TYPES:
        reason = _refusal(job, facts, kv_type)
        if reason:
            yield Skipped(f"KV {kv_type}", reason)
            continue
        speeds = Speeds(kv_type, {}, {})
        library = yield from _measure_kv_type(job, facts, speeds)
        measured.append(speeds)
    yield choose(measured, job, library)


def thread_counts(spec: ModelSpec) -> list[int]:
    """Numbers of threads worth trying, the number of physical cores first; only that if the native
    runner computes on a GPU, where threads do not matter.
    """
    counts = candidates(usable_cores(), usable_threads())
    has_gpu = has_cuda() or sys.platform == "darwin"
    if spec.backend == "native" and not spec.settings.is_on_processor and has_gpu:
        return counts[:1]
    return counts


def _refusal(job: Job, facts: ModelFacts, kv_type: KvType) -> str:
    """Why this model cannot run with `kv_type` under these settings; empty if it can."""
    no_flash = job.spec.settings.flash_attention is False
    if kv_type != "f16" and no_flash and facts.spec.backend == "llamacpp":
        return "it needs flash attention, which is switched off"
    try:
        facts.kv_bytes(kv_type, kv_type)
    except (InvalidParameter, UnsupportedModel) as error:
        return error.message
    return ""


def _measure_kv_type(job: Job, facts: ModelFacts, speeds: Speeds) -> Generator[Message, None, str]:
    """Measure into `speeds`; returns the version of the library."""
    library = ""
    for threads in thread_counts(facts.spec):
        sessions = job.sessions
        for chunk in CHUNKS:
            yield Progress(f"{speeds.kv_type} KV · {threads} threads · chunk {chunk}")
            library = yield from _measure_load(job, facts, speeds, threads, chunk, sessions)
            sessions = ()  # The chunk size does not affect decode.
    return library


def _measure_load(
    job: Job,
    facts: ModelFacts,
    speeds: Speeds,
    threads: int,
    chunk: int,
    sessions: tuple[int, ...],
) -> Generator[Message, None, str]:
    """Load the model once, and measure prefill with `chunk` and decode for each of `sessions`."""
    prompt, decodes = _prompt_case(job), _decode_cases(job, sessions)
    settings = replace(
        job.spec.settings,
        kv_type=speeds.kv_type,
        kv_type_v=None,
        threads=threads,
        batch_threads=threads,
        max_batch_tokens=chunk,
    )
    wanted = replace(job, spec=replace(job.spec, settings=settings))
    loaded = open_model(sized(wanted, facts, [prompt, *decodes]), Path(job.cache_dir))
    try:
        side = EngineSide(loaded)
        speeds.prefill[threads, chunk] = median_rate(prompt, side, job.repeats)
        for case in decodes:
            room = loaded.runner.info.pool_tokens
            if case.pool_tokens(job.repeats) > room:
                yield Skipped(
                    f"{case.sessions} sessions", f"their tokens do not fit into a pool of {room:,}"
                )
                continue
            speeds.decode[threads, case.sessions] = median_rate(case, side, job.repeats)
        return loaded.info.backend_version
    finally:
        loaded.runner.close()


def _prompt_case(job: Job) -> Case:
    return next(cases(replace(job, tests=("pp",))))


def _decode_cases(job: Job, sessions: tuple[int, ...]) -> list[Case]:
    return list(cases(replace(job, tests=("sessions",), sessions=sessions)))


def choose(found: Sequence[Speeds], job: Job, library: str) -> Tuned:
    """The settings with the shortest request, for the fewest sessions, and those with the most new
    tokens per second.

    Raises `DoesNotFit` if nothing was measured.
    """
    choices = [
        _choice(speeds, sessions, job.prompt_tokens, job.gen_tokens)
        for speeds in found
        for sessions in sorted({sessions for _, sessions in speeds.decode})
    ]
    if not choices:
        raise DoesNotFit("No number of sessions fits into memory.", "Use a smaller quantization.")
    fewest = min(choice.sessions for choice in choices)
    return Tuned(
        latency=preferred(
            [choice for choice in choices if choice.sessions == fewest],
            lambda choice: 1 / choice.request_s,
        ),
        throughput=preferred(choices, lambda choice: choice.generated_tok_per_s),
        tried=sum(len(speeds.prefill) + len(speeds.decode) for speeds in found),
        library=library,
    )


def preferred(options: Sequence[_T], rate: Callable[[_T], float]) -> _T:
    """The first of `options` that no other option clearly beats."""
    best = max(map(rate, options))
    return next(option for option in options if rate(option) * CLEARLY_BETTER >= best)


def _choice(speeds: Speeds, sessions: int, prompt_tokens: int, gen_tokens: int) -> Choice:
    batch_threads, chunk = preferred(list(speeds.prefill), lambda key: speeds.prefill[key])
    threads = preferred(
        [threads for threads, count in speeds.decode if count == sessions],
        lambda threads: speeds.decode[threads, sessions],
    )
    prefill = speeds.prefill[batch_threads, chunk]
    decode = speeds.decode[threads, sessions]
    request_s = sessions * (prompt_tokens / prefill + gen_tokens / decode)
    return Choice(
        threads=threads,
        batch_threads=batch_threads,
        max_batch_tokens=chunk,
        kv_type=speeds.kv_type,
        sessions=sessions,
        prefill_tok_per_s=prefill,
        decode_tok_per_s=decode,
        request_s=request_s,
        generated_tok_per_s=sessions * gen_tokens / request_s,
    )
