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
from hearth.backends.bench.raw_llama import RawLoop
from hearth.backends.contract import ModelSpec
from hearth.backends.errors import InternalError, InvalidParameter, ModelNotFound
from hearth.backends.llamacpp import recurrent
from hearth.backends.llamacpp.params import KEPT_STATES
from hearth.backends.llamacpp.runner import LlamaRunner
from hearth.backends.runners import Loaded, open_model
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile

_FLASH_ATTENTION = {-1: "auto", 0: "off", 1: "on"}


def run_tests(job: Job) -> Iterator[Message]:
    """Every test of `job` that the model can do, and why not for the others.

    Raises:
        InvalidParameter: a number of the job, or a setting, cannot be honoured.
        HearthError: what `open_model` raises.
    """
    check_job(job)
    header = read_header(job.spec)
    possible: list[Case] = []
    for case in cases(job):
        reason = impossible(case, job, header)
        if reason:
            yield Skipped(case.name, reason)
        else:
            possible.append(case)
    if not possible:
        return
    yield Progress(f"loading {job.spec.name or Path(job.spec.path).stem}")
    with opened(job, header, possible) as bench:
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


def read_header(spec: ModelSpec) -> GgufFile:
    """The header of the model's file. Raises `ModelNotFound`, or what `preflight.check` does."""
    if spec.backend != "llamacpp":
        raise InvalidParameter(
            "backend", f"The raw loop beside the {spec.backend} backend is not there."
        )
    path = Path(spec.path)
    if not path.is_file():
        raise ModelNotFound(f"There is no file {path}.", "`hearth list` shows the models you have.")
    return preflight.check(path)


def impossible(case: Case, job: Job, header: GgufFile) -> str:
    """Why `case` cannot be measured on this model under these settings; empty if it can."""
    asked = job.spec.settings.context
    limit = asked or header.context_length
    need = case.tokens(job.repeats)
    if limit and need > limit:
        whose = "--ctx" if asked else "the model's context"
        return f"needs {need:,} tokens a session, {whose} is {limit:,}"
    return ""


def sized(job: Job, header: GgufFile, wanted: list[Case]) -> ModelSpec:
    """`job.spec` with context, sessions and pool as large as `wanted` need; the pool is made whole
    at load, so that no measurement waits for it to grow.
    """
    settings = job.spec.settings
    pool = pool_tokens(wanted, job.repeats)
    context = max(case.tokens(job.repeats) for case in wanted)
    sessions = max(case.sessions for case in wanted)
    kv_bytes = header.kv_bytes_per_token(settings.kv_type, settings.kv_type)
    # Recurrent states come out of the same budget, with some for kept prefixes.
    states = recurrent.state_bytes(header) * (2 * sessions + KEPT_STATES)
    return replace(
        job.spec,
        settings=replace(
            settings,
            context=context,
            max_sessions=sessions,
            kv_pool="static",
            kv_budget_bytes=pool * kv_bytes + states or None,
        ),
    )


@dataclass(slots=True)
class Bench:
    """A loaded model with both sides; closes all of it at the end of a `with` block."""

    loaded: Loaded
    engine: EngineSide
    raw: RawLoop
    setup: Setup

    @property
    def room(self) -> int:
        """Tokens that a pool holds."""
        return self.loaded.runner.info.pool_tokens

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()
        self.loaded.runner.close()


def opened(job: Job, header: GgufFile, wanted: list[Case]) -> Bench:
    """Load the model once for both sides.

    Raises:
        DoesNotFit: the weights or two pools need more memory than there is.
        HearthError: what else `open_model` raises.
    """
    loaded = open_model(sized(job, header, wanted), Path(job.cache_dir))
    runner = loaded.runner
    if not isinstance(runner, LlamaRunner):
        runner.close()
        raise InternalError(f"The raw loop cannot run beside a {type(runner).__name__}.")
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
        weight_bytes=sum(tensor.nbytes for tensor in header.all_tensors),
        mixture=bool(header.value(f"{header.architecture}.expert_count", 0)),
        read_bytes_per_s=read_bytes_per_s(runner.threads),
    )
    return Bench(loaded, EngineSide(loaded), raw, setup)
