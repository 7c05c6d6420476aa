"""Runs one job: loads the model once, then runs the tests one after the other on all sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hearth.backends.bench.bandwidth import read_bytes_per_s
from hearth.backends.bench.cases import Case, cases, check_job, pool_tokens
from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.bench.job import Job, Message, Progress, Setup, Skipped
from hearth.backends.bench.measure import Reference, measure
from hearth.backends.bench.model_facts import ModelFacts, read_facts
from hearth.backends.bench.raw_llama import RawLoop
from hearth.backends.bench.reference_room import check_reference, check_room
from hearth.backends.contract.models import ModelSpec
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.llamacpp.params import KEPT_STATES
from hearth.backends.llamacpp.runner import LlamaRunner
from hearth.backends.worker.runners import open_model

_FLASH_ATTENTION = {-1: "auto", 0: "off", 1: "on"}


def run_tests(job: Job) -> Iterator[Message]:
    """The results of every test of `job` that the model supports, and the reasons for the others.

    Raises:
        InvalidParameter: a number of the job, or a setting, cannot be honoured.
        HearthError: what `open_model` and `check_reference` raise.
    """
    check_job(job)
    facts = read_facts(job)
    if job.reference is not None:
        check_reference(facts)
    possible: list[Case] = []
    for case in cases(job):
        reason = impossible(case, job, facts)
        if reason:
            yield Skipped(case.name, reason)
        else:
            possible.append(case)
    if not possible:
        return
    yield Progress(f"loading {job.spec.name or Path(job.spec.path).stem}")
    with opened(job, facts, possible) as bench:
        yield bench.setup
        for case in possible:
            need, room = case.pool_tokens(job.repeats), bench.loaded.runner.info.pool_tokens
            if need > room:
                yield Skipped(
                    case.name, f"needs a pool of {need:,} tokens, and {room:,} fit into memory"
                )
                continue
            if case.shared_tokens and not bench.loaded.runner.info.keeps_past:
                yield Skipped(case.name, "this model's memory cannot share a part of a prompt")
                continue
            yield Progress(case.name)
            yield measure(case, bench.engine, bench.beside, job.repeats)


def impossible(case: Case, job: Job, facts: ModelFacts) -> str:
    """Why `case` cannot be measured on this model under these settings; empty if it can."""
    asked = job.spec.settings.context
    limit = asked or facts.context
    need = case.tokens(job.repeats)
    if limit and need > limit:
        whose = "--ctx" if asked else "the model's context"
        return f"needs {need:,} tokens a session, {whose} is {limit:,}"
    return ""


def sized(job: Job, facts: ModelFacts, wanted: list[Case]) -> ModelSpec:
    """The model's spec with context, sessions and pool as large as `wanted` need. The whole pool is
    allocated at load, so that no measurement waits for it to grow.

    Raises:
        InvalidParameter, UnsupportedModel: the runner or the model does not support the KV type.
    """
    settings = job.spec.settings
    pool = pool_tokens(wanted, job.repeats)
    context = max(case.context(job.repeats) for case in wanted)
    sessions = max(case.sessions for case in wanted)
    token_bytes = facts.kv_bytes(settings.kv_type, settings.value_type)
    # Recurrent states, including some for kept prefixes, count against the same budget.
    states = facts.state_bytes * (2 * sessions + KEPT_STATES)
    return replace(
        facts.spec,
        settings=replace(
            settings,
            context=context,
            max_sessions=sessions,
            kv_pool="static",
            kv_budget_bytes=pool * token_bytes + states or None,
        ),
    )


@dataclass(slots=True)
class Bench:
    """A loaded model, with all sides that run it."""

    loaded: Loaded
    engine: EngineSide
    beside: Mapping[str, Reference]
    """The other sides by their names in `Setup.beside`; empty: the engine is measured alone."""
    setup: Setup


@contextmanager
def opened(job: Job, facts: ModelFacts, wanted: list[Case]) -> Iterator[Bench]:
    """Load the model once for all sides, until the block ends; transformers loads the weights a
    second time.

    Raises:
        DoesNotFit: the weights or pools of all sides need more memory than there is.
        BackendUnavailable, UnsupportedModel: transformers is missing, or cannot run this model.
        HearthError: any other error of `open_model`.
    """
    spec = sized(job, facts, wanted)
    if job.reference is not None:
        check_room(spec, facts, pool_tokens(wanted, job.repeats))
    loaded = open_model(spec, Path(job.cache_dir))
    beside: dict[str, Reference] = {}
    try:
        beside = _beside(job, loaded)
        yield Bench(loaded, EngineSide(loaded), beside, setup_of(loaded, facts, tuple(beside)))
    finally:
        for one in beside.values():
            one.close()
        loaded.runner.close()


def _beside(job: Job, loaded: Loaded) -> dict[str, Reference]:
    """The sides that `loaded` is compared with, by their names."""
    runner = loaded.runner
    if isinstance(runner, LlamaRunner):
        cells = runner.store.context.cells
        threads, batch_threads = runner.threads, runner.batch_threads
        return {"raw": RawLoop(runner.model, runner.plan, cells, threads, batch_threads)}
    if job.reference is None:
        return {}
    # Imported here because it imports PyTorch, which is not imported where llama.cpp runs models.
    from hearth.backends.bench.transformers_side import (
        BatchingSide,
        GenerateSide,
        load_transformers,
    )
    from hearth.backends.native.runner import NativeRunner

    assert isinstance(runner, NativeRunner)
    model = load_transformers(
        Path(loaded.info.path),
        dtype=runner.plan.dtype,
        device=runner.plan.device,
        threads=loaded.info.threads,
        batch_threads=loaded.info.batch_threads,
    )
    return {"generate": GenerateSide(model), "batching": BatchingSide(model)}


def setup_of(loaded: Loaded, facts: ModelFacts, beside: tuple[str, ...]) -> Setup:
    """How a loaded model is run, and with which settings."""
    runner = loaded.runner
    if isinstance(runner, LlamaRunner):
        batch, ubatch = runner.plan.batch, runner.plan.ubatch
        pool = runner.store.context.cells
        attention = _FLASH_ATTENTION[runner.plan.flash_attention]
    else:
        batch = ubatch = runner.info.max_batch_tokens
        pool = runner.info.pool_tokens
        attention = "by PyTorch"
    return Setup(
        info=loaded.info,
        batch=batch,
        ubatch=ubatch,
        pool_tokens=pool,
        flash_attention=attention,
        weight_bytes=facts.weight_bytes,
        mixture=facts.mixture,
        read_bytes_per_s=read_bytes_per_s(loaded.info.threads),
        beside=beside,
    )
