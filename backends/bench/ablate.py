"""Measures the gain of each optimization of the engine: the same requests with one of them off,
alternating with all of them on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hearth.backends.bench.cases import Case, check_job
from hearth.backends.bench.engine_side import Answer, EngineSide
from hearth.backends.bench.job import Ablated, Job, Means, Message, Progress, Skipped
from hearth.backends.bench.measure import alternate, random_prompts, same_tokens
from hearth.backends.bench.model_facts import read_facts
from hearth.backends.bench.session import impossible, setup_of, sized
from hearth.backends.contract.models import ModelSpec
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.errors import DoesNotFit, InvalidParameter
from hearth.backends.worker.runners import open_model

Answering = Callable[[list[list[int]], int], list[Answer]]
"""Function that answers prompts with a given number of tokens each."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request alone, then requests of all sessions with the same prefix: see `Ablated`."""

    computed_by: str
    ttft_s: float
    shared_ttft_s: float
    tpot_s: float
    tok_per_s: float
    computed_tokens: int
    tokens: list[list[int]]
    """Tokens of each answer."""


def ablate(job: Job) -> Iterator[Message]:
    """Measure with all optimizations on, and without each that can be switched off.

    Raises:
        InvalidParameter: a number of the job cannot be honoured.
        DoesNotFit: the tokens of the job need more memory than there is.
        HearthError: what `open_model` raises.
    """
    check_job(job)
    if len(job.sessions) > 1 or job.session_gen_tokens < 2:
        raise InvalidParameter(
            "sessions", "--ablate measures one number of sessions, with two new tokens or more."
        )
    facts = read_facts(job)
    prompt = job.session_prompt_tokens
    shared = prompt - max(1, prompt // 8)
    requests = job.sessions[0] + 1
    case = Case("--ablate", "shared", requests, prompt, shared, job.session_gen_tokens, fresh=True)
    if reason := impossible(case, job, facts):
        raise InvalidParameter("session_prompt_tokens", f"{case.name} {reason}.", "Measure less.")
    spec = sized(job, facts, [case])
    yield Progress(f"loading {job.spec.name or Path(job.spec.path).stem}")
    with ExitStack() as opened:
        loaded = open_model(spec, Path(job.cache_dir))
        opened.callback(loaded.runner.close)
        need, room = case.pool_tokens(job.repeats), loaded.runner.info.pool_tokens
        if need > room:
            raise DoesNotFit(
                f"A pool of {need:,} tokens is needed, and {room:,} fit into memory.",
                "Measure fewer --sessions, or a smaller --session-prompt.",
            )
        yield setup_of(loaded, facts, ())
        without = _not_applicable(loaded)
        variants = _variants(loaded, case, without)
        if "quantization" not in without:
            try:
                dense = _unpacked(spec, loaded)
            except DoesNotFit as error:
                without["quantization"] = f"unpacked weights do not fit, too: {error.message}"
            else:
                opened.callback(dense.runner.close)
                variants["quantization"] = _variants(dense, case, without)["nothing"]
        yield from (Skipped(name, reason) for name, reason in without.items())
        yield Progress("all on, and without one of them each")
        by_variant = _measured(variants, job.repeats)
    expected = by_variant["nothing"][0].tokens
    yield from (_ablated(name, samples, expected) for name, samples in by_variant.items())


def _unpacked(spec: ModelSpec, packed: Loaded) -> Loaded:
    """The same model with unpacked weights, loaded next to `packed` with as many threads."""
    from hearth.backends.native import load

    threads, batch_threads = packed.info.threads, packed.info.batch_threads
    settings = replace(spec.settings, threads=threads, batch_threads=batch_threads)
    return load.open_model(replace(spec, settings=settings), packs=False)


def _measured(
    variants: Mapping[Means, Callable[[], Sample]], repeats: int
) -> dict[Means, tuple[Sample, ...]]:
    """Samples of each variant, measured alternately, after one warm-up sample of each."""
    for measure in variants.values():
        measure()
    return dict(zip(variants, alternate(list(variants.values()), repeats), strict=True))


def _not_applicable(loaded: Loaded) -> dict[Means, str]:
    """The optimizations that cannot be switched off, with the reasons."""
    reasons: dict[Means, str] = {}
    if not loaded.runner.info.keeps_past:
        reasons["prefix reuse"] = "this model's memory cannot share a part of a prompt"
    if loaded.info.backend != "native":
        reasons["fused calls"] = "llama.cpp computes its own graph of a layer"
        reasons["quantization"] = (
            "llama.cpp computes with the types of the file; measure another one"
        )
        return reasons
    from hearth.backends.native.runner import NativeRunner

    assert isinstance(loaded.runner, NativeRunner)
    if loaded.runner.decoder.fused is None:
        reasons["fused calls"] = "there are none for this device, or this model's shape or weights"
    if not loaded.runner.plan.packed:
        reasons["quantization"] = "no weights stay packed here"
    return reasons


def _variants(
    loaded: Loaded, case: Case, without: Mapping[Means, str]
) -> dict[Means, Callable[[], Sample]]:
    """The variants that can be measured on `loaded`: all optimizations on, and one of them off."""
    side = EngineSide(loaded)
    sample = partial(_sample, loaded, side, case)
    whole = partial(sample, side.answer)
    variants: dict[Means, Callable[[], Sample]] = {
        "nothing": whole,
        "KV cache": partial(sample, partial(_recompute, side)),
        "prefix reuse": partial(sample, partial(side.answer, reuses_prefix=False)),
        "fused calls": partial(_unfused, loaded, whole),
    }
    return {name: measure for name, measure in variants.items() if name not in without}


def _sample(loaded: Loaded, side: EngineSide, case: Case, answer: Answering) -> Sample:
    side.clear()
    computed = side.computed_tokens()
    first, *others = random_prompts(case, side.usable_tokens)
    (alone,) = answer([first], case.gen_tokens)
    together = answer(others, case.gen_tokens)
    computed = side.computed_tokens() - computed
    side.clear()
    return Sample(
        computed_by=_computed_by(loaded),
        ttft_s=alone.times[0],
        shared_ttft_s=statistics.median(one.times[0] for one in together),
        tpot_s=(alone.times[-1] - alone.times[0]) / (case.gen_tokens - 1),
        tok_per_s=len(others) * case.gen_tokens / max(one.times[-1] for one in together),
        computed_tokens=computed,
        tokens=[one.tokens for one in (alone, *together)],
    )


def _recompute(side: EngineSide, prompts: list[list[int]], count: int) -> list[Answer]:
    """Answers for which every token is computed from an empty KV cache, as if there were none."""
    answers = [Answer([], []) for _ in prompts]
    began = time.perf_counter()
    for _ in range(count):
        texts = [[*prompt, *answer.tokens] for prompt, answer in zip(prompts, answers, strict=True)]
        before = time.perf_counter() - began
        for answer, new in zip(answers, side.answer(texts, 1, reuses_prefix=False), strict=True):
            answer.tokens.extend(new.tokens)
            answer.times.extend(before + at for at in new.times)
        side.clear()
    return answers


def _unfused(loaded: Loaded, measure: Callable[[], Sample]) -> Sample:
    """The result of `measure` with PyTorch's layers in place of the fused ones."""
    from hearth.backends.native.runner import NativeRunner

    assert isinstance(loaded.runner, NativeRunner)
    decoder = loaded.runner.decoder
    fused, decoder.fused = decoder.fused, None
    try:
        return measure()
    finally:
        decoder.fused = fused


def _ablated(off: Means, samples: Sequence[Sample], expected: list[list[int]]) -> Ablated:
    tokens = samples[0].tokens
    return Ablated(
        off,
        samples[0].computed_by,
        tuple(one.ttft_s for one in samples),
        tuple(one.shared_ttft_s for one in samples),
        tuple(one.tpot_s for one in samples),
        tuple(one.tok_per_s for one in samples),
        samples[0].computed_tokens,
        sum(map(len, tokens)),
        sum(same_tokens(*pair) for pair in zip(tokens, expected, strict=True)),
    )


def _computed_by(loaded: Loaded) -> str:
    """The implementation of the layers, and the types of the weights that they multiply."""
    if loaded.info.backend != "native":
        return f"llama.cpp, {loaded.info.quantization}"
    from hearth.backends.native.runner import NativeRunner
    from hearth.kernels.linear import DTYPE_NAMES

    assert isinstance(loaded.runner, NativeRunner)
    plan = loaded.runner.plan
    weights = "+".join(sorted(plan.packed)) or DTYPE_NAMES[plan.dtype]
    return f"{'C' if loaded.runner.decoder.fused else 'PyTorch'}, {weights}"
