"""One job from a model file to its results: load once, then test after test on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hearth.backends.bench.bandwidth import read_bytes_per_s
from hearth.backends.bench.cases import Case, cases, check_job, pool_tokens
from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.bench.job import Job, Message, Progress, Setup, Skipped
from hearth.backends.bench.measure import measure
from hearth.backends.bench.model_facts import ModelFacts, read_facts
from hearth.backends.bench.raw_llama import RawLoop
from hearth.backends.contract import ModelSpec
from hearth.backends.llamacpp.params import KEPT_STATES
from hearth.backends.llamacpp.runner import LlamaRunner
from hearth.backends.runners import Loaded, open_model

_FLASH_ATTENTION = {-1: "auto", 0: "off", 1: "on"}


def run_tests(job: Job) -> Iterator[Message]:
    """Every test of `job` that the model can do, and why not for the others.

    Raises:
        InvalidParameter: a number of the job, or a setting, cannot be honoured.
        HearthError: what `open_model` raises.
    """
    check_job(job)
    facts = read_facts(job)
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
            room = bench.room
            if case.pool_tokens(job.repeats) > room:
                need = case.pool_tokens(job.repeats)
                yield Skipped(
                    case.name, f"needs a pool of {need:,} tokens, and {room:,} fit into memory"
                )
                continue
            if case.shared_tokens and not bench.loaded.runner.info.keeps_past:
                yield Skipped(case.name, "this model's memory cannot share a part of a prompt")
                continue
            yield Progress(case.name)
            yield measure(case, bench.engine, bench.raw, job.repeats)


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
    """The model's spec with context, sessions and pool as large as `wanted` need; the pool is made
    whole at load, so that no measurement waits for it to grow.

    Raises:
        InvalidParameter, UnsupportedModel: a KV type that the runner or model cannot have.
    """
    settings = job.spec.settings
    pool = pool_tokens(wanted, job.repeats)
    context = max(case.tokens(job.repeats) for case in wanted)
    sessions = max(case.sessions for case in wanted)
    if settings.kv_type in facts.kv_refusals:
        raise facts.kv_refusals[settings.kv_type]
    # Recurrent states come out of the same budget, with some for kept prefixes.
    states = facts.state_bytes * (2 * sessions + KEPT_STATES)
    return replace(
        replace(facts.spec, settings=settings),
        settings=replace(
            settings,
            context=context,
            max_sessions=sessions,
            kv_pool="static",
            kv_budget_bytes=pool * facts.kv_bytes[settings.kv_type] + states or None,
        ),
    )


@dataclass(slots=True)
class Bench:
    """A loaded model with both sides; closes all of it at the end of a `with` block."""

    loaded: Loaded
    engine: EngineSide
    raw: RawLoop | None
    """None: the runner's library has no bare loop of its own."""
    setup: Setup

    @property
    def room(self) -> int:
        """Tokens that a pool holds."""
        return self.loaded.runner.info.pool_tokens

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        if self.raw is not None:
            self.raw.close()
        self.loaded.runner.close()


def opened(job: Job, facts: ModelFacts, wanted: list[Case]) -> Bench:
    """Load the model once for both sides.

    Raises:
        DoesNotFit: the weights or two pools need more memory than there is.
        HearthError: what else `open_model` raises.
    """
    loaded = open_model(sized(job, facts, wanted), Path(job.cache_dir))
    runner = loaded.runner
    if not isinstance(runner, LlamaRunner):
        info = runner.info
        setup = Setup(
            info=loaded.info,
            batch=info.max_batch_tokens,
            ubatch=info.max_batch_tokens,
            pool_tokens=info.pool_tokens,
            flash_attention="by PyTorch",
            weight_bytes=facts.weight_bytes,
            mixture=facts.mixture,
            read_bytes_per_s=read_bytes_per_s(loaded.info.threads),
        )
        return Bench(loaded, EngineSide(loaded), None, setup)
    try:
        raw = RawLoop(
            runner.model,
            runner.plan,
            runner.store.context.cells,
            runner.threads,
            runner.batch_threads,
        )
    except Exception:
        runner.close()
        raise
    setup = Setup(
        info=loaded.info,
        batch=runner.plan.batch,
        ubatch=runner.plan.ubatch,
        pool_tokens=runner.store.context.cells,
        flash_attention=_FLASH_ATTENTION[runner.plan.flash_attention],
        weight_bytes=facts.weight_bytes,
        mixture=facts.mixture,
        read_bytes_per_s=read_bytes_per_s(runner.threads),
    )
    return Bench(loaded, EngineSide(loaded), raw, setup)
