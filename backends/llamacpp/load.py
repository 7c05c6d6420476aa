"""Opens the model of a `ModelSpec`: the only entry point that a worker uses."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.loaded_model import Loaded, described
from hearth.backends.errors import DoesNotFit, HearthError, ModelNotFound
from hearth.backends.llamacpp import attention, footprint, selftest
from hearth.backends.llamacpp.attention_choice import Attention
from hearth.backends.llamacpp.encoder import EncoderRunner
from hearth.backends.llamacpp.facts import has_rank_head, least_long_cells
from hearth.backends.llamacpp.lib import load_library
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.offload import Offload, device_memory, offload_of
from hearth.backends.llamacpp.params import ContextPlan, check_settings, gpu_layers
from hearth.backends.llamacpp.rope import no_streaming
from hearth.backends.llamacpp.runner import LlamaRunner
from hearth.backends.llamacpp.tokenizer import LlamaTokenizer
from hearth.backends.machine.memory import available_bytes
from hearth.backends.text.chat_templates import templates_of
from hearth.backends.text.vocab.gguf_vocabulary import longest_token_bytes
from hearth.quant.fingerprint import fingerprint
from hearth.quant.generation_defaults import (
    about_sampling,
    gguf_generation_defaults,
)
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile
from hearth.quant.memory_shape import shape_of

NAME = "llamacpp"


def open_model(spec: ModelSpec, cache_dir: Path | None = None) -> Loaded:
    """Check, load and warm up a GGUF model.

    Args:
        spec: the file and how to load it.
        cache_dir: stores the verdict on the library (`selftest.verdict`) and the cost of attention
            (`attention.measured`); None to test and measure each time.

    Raises:
        ModelNotFound: there is no such file.
        CorruptFile, UnsupportedModel: the file cannot be run.
        InvalidParameter: a setting cannot be honoured.
        DoesNotFit: there is not enough memory; names the needed and the available bytes.
        BackendUnavailable: the library is missing or broken.
    """
    started = time.perf_counter()
    path = Path(spec.path)
    if path.is_dir() or not path.exists():
        raise ModelNotFound(f"There is no file {path}.", "`hearth list` shows the models you have.")
    header = preflight.check(path)
    library = load_library()
    settings = spec.settings
    check_settings(settings, library.max_sequences)
    layers = gpu_layers(settings, library.supports_gpu)
    memory = device_memory(library) if layers else None
    offload = None if memory is None else offload_of(header, layers, memory)
    plan = _plan(settings, header, offload)
    # On a GPU llama.cpp's default is good.
    is_open = settings.flash_attention is None and layers == 0 and not header.is_encoder
    costs = attention.costs(header, plan, settings.threads, cache_dir) if is_open else None
    if costs is not None and costs.flash_pays:
        costs = None
    if costs is not None:
        plain = _plain_plan(plan, settings, header, offload)
        plan, costs = (plan, None) if plain is None else (plain, costs)
    extra_buffers, notice = _extra_buffers(settings.extra_buffers, header, cache_dir)
    model = LlamaModel.open(
        path,
        gpu_layers=layers,
        extra_buffers=extra_buffers,
        map_file=layers != 0
        or footprint.is_mapped(footprint.weight_bytes(header), available_bytes()),
        shape=shape_of(header),
    )
    try:
        runner = _runner(model, plan, header, settings, costs)
    except HearthError:
        model.close()
        raise
    templates = templates_of(settings, header.chat_templates)
    tokenizer = LlamaTokenizer(model)
    info = ModelInfo(
        name=spec.name or path.stem,
        path=str(path),
        backend=NAME,
        backend_version=library.version,
        architecture=header.architecture,
        quantization=header.file_type_name,
        parameters=model.facts.parameters,
        size_bytes=sum(part.size_bytes for part in (header, *header.shards)),
        trained_context=plan.rope.context or model.facts.trained_context,
        kv_type=settings.kv_types,
        threads=runner.threads,
        batch_threads=runner.batch_threads,
        gpu_layers=model.facts.layers + 1 if layers < 0 else layers,
        load_s=time.perf_counter() - started,
        notices=(
            *plan.notices,
            *filter(None, (notice,)),
            *about_sampling(gguf_generation_defaults(header)),
        ),
        longest_token_bytes=longest_token_bytes(header),
    )
    return Loaded(runner, tokenizer, described(info, runner, tokenizer, templates), templates)


def _runner(
    model: LlamaModel,
    plan: ContextPlan,
    header: GgufFile,
    settings: ModelSettings,
    costs: Attention | None,
) -> LlamaRunner | EncoderRunner:
    has_head = has_rank_head({one.name: one.shape for one in header.all_tensors})
    if header.is_encoder:
        threads = settings.batch_threads or settings.threads
        return EncoderRunner(model, plan, threads=threads, has_rank_head=has_head)
    return LlamaRunner(
        model,
        plan,
        threads=settings.threads,
        batch_threads=settings.batch_threads,
        has_rank_head=has_head,
        attention=costs,
        fingerprint=fingerprint(header.weight_files),
        no_streaming=no_streaming(header, settings.rope),
    )


def _plan(settings: ModelSettings, header: GgufFile, offload: Offload | None) -> ContextPlan:
    plan = footprint.plan_for(header, settings, available_bytes(), offload)
    least = least_long_cells(header)
    if plan.pool_tokens < least:
        return plan
    return replace(plan, first_tokens=max(plan.first_tokens, least), least_cells=least)


def _plain_plan(
    plan: ContextPlan, settings: ModelSettings, header: GgufFile, offload: Offload | None
) -> ContextPlan | None:
    """`plan` with memory for attention without flash; None if that would cut its context."""
    try:
        plain = _plan(replace(settings, flash_attention=False), header, offload)
    except DoesNotFit:
        return None
    return plain if plain.context >= plan.context else None


def _extra_buffers(
    asked: bool | None, header: GgufFile, cache_dir: Path | None
) -> tuple[bool, str | None]:
    """Whether to let llama.cpp repack weights, and a notice for the user or None."""
    if asked is not None:
        return asked, None
    # A broken repacking kernel only affects tensors that are stored in blocks.
    if all(tensor.type.block_elements == 1 for tensor in header.all_tensors):
        return True, None
    verdict = selftest.verdict(cache_dir)
    return verdict.extra_buffers_safe, selftest.explain(verdict)
