"""Opens the model of a `ModelSpec`: the only entry point that a worker uses."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hearth.backends.contract.checks import check_settings
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.models import Dtype, ModelSettings, ModelSpec
from hearth.backends.contract.requests import Pooling
from hearth.backends.engine.loaded_model import Loaded, described
from hearth.backends.errors import HearthError, InvalidParameter, ModelNotFound
from hearth.backends.machine.memory import available_bytes, separate_allocations
from hearth.backends.machine.threads import usable_cores
from hearth.backends.native.determinism import make_deterministic
from hearth.backends.native.footprint import (
    MAX_SESSIONS,
    is_mapped,
    least_bytes,
    packed_types,
)
from hearth.backends.native.gguf_model import read_gguf_config
from hearth.backends.native.model_folder import (
    most_common_kind,
    own_dtype,
    read_config,
    weight_bytes,
)
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.notices import (
    OWN_HEAD,
    about_packing,
    about_positions,
    about_tensors,
)
from hearth.backends.native.plan import NativePlan, plan_memory
from hearth.backends.native.runner import NativeRunner
from hearth.backends.native.weights import TensorFile, load_weights
from hearth.backends.text.chat_templates import ChatTemplates, templates_of
from hearth.backends.text.tokenizer import Tokenizer
from hearth.backends.text.vocab import load as vocabularies
from hearth.backends.text.vocab.gguf_vocabulary import longest_token_bytes
from hearth.kernels import device as devices
from hearth.kernels.cpu.layouts import instructions, multiplied
from hearth.kernels.cuda.matrix import has_triton
from hearth.kernels.cuda.packings import PACKINGS, WIDER, has_graphs
from hearth.kernels.metal.packings import PACKINGS as METAL_PACKINGS
from hearth.kernels.metal.shaders import has_metal
from hearth.quant.checkpoints.scheme import QuantizedTensor
from hearth.quant.convert.folder_files import chat_templates, optional_fields
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.fingerprint import WeightFile, fingerprint
from hearth.quant.generation_defaults import (
    GenerationDefaults,
    about_sampling,
    gguf_generation_defaults,
    read_generation_defaults,
)
from hearth.quant.gguf import preflight
from hearth.quant.gguf.tensor_file import GgufTensorFile
from hearth.quant.safetensors import SafetensorsFolder
from hearth.quant.stored import STAYS_PACKED, StoredTensor
from hearth.quant.tied_weights import as_stored

NAME = "native"
_NAMES: Mapping[torch.dtype, Dtype] = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}
_DTYPES: Mapping[str, torch.dtype] = {name: dtype for dtype, name in _NAMES.items()}
_GGUF_POOLING: Mapping[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}
"""llama_pooling_type of llama.h."""


def open_model(spec: ModelSpec, *, packs: bool = True) -> Loaded:
    """Check and load a model: a GGUF file, or a folder with `config.json` and safetensors.

    Args:
        spec: the file or folder and how to load it.
        packs: whether matrices may stay packed.

    Raises:
        ModelNotFound: there is no such file or folder.
        CorruptFile, UnsupportedModel: the model cannot be run.
        InvalidParameter: a setting cannot be honoured.
        DoesNotFit: there is not enough memory; names the needed and the available bytes.
    """
    started = time.perf_counter()
    settings = spec.settings
    check_settings(settings, MAX_SESSIONS)
    source = _open_source(Path(spec.path))
    try:
        return _load(spec, source, started, packs=packs)
    except HearthError:
        source.file.close()
        raise


@dataclass(frozen=True, slots=True)
class _Source:
    """What is known of a model from its files before its weights are read."""

    path: Path
    family: Family
    config: ModelConfig
    file: TensorFile
    tokenizer: Tokenizer
    longest_token_bytes: int
    end_ids: frozenset[int]
    templates: ChatTemplates
    defaults: GenerationDefaults
    pooling: Pooling
    architecture: str
    quantization: str
    weight_files: tuple[WeightFile, ...]
    notices: tuple[str, ...] = ()


def _open_source(path: Path) -> _Source:
    if path.suffix == ".safetensors":
        path = path.parent
    if path.is_dir():
        return _open_folder(path)
    if path.is_file():
        return _open_gguf(path)
    raise ModelNotFound(
        f"There is no file or folder {path}.", "`hearth list` shows the models you have."
    )


def _open_folder(folder: Path) -> _Source:
    architecture, family, said, checkpoint = read_config(folder)
    tokenizer = vocabularies.open_folder(folder, rows=said.vocab_size)
    defaults = read_generation_defaults(folder)
    file = SafetensorsFolder(folder, checkpoint)
    config = as_stored(said, file.headers, file.stored)
    return _Source(
        path=folder,
        family=family,
        config=config,
        file=file,
        tokenizer=tokenizer,
        longest_token_bytes=tokenizer.longest_token_bytes,
        end_ids=_with_a_row(tokenizer.end_ids | defaults.eos_ids, config),
        templates=chat_templates(folder),
        defaults=defaults,
        pooling=_folder_pooling(folder),
        architecture=architecture,
        quantization=checkpoint.label if checkpoint else most_common_kind(file.stored.values()),
        weight_files=tuple(WeightFile(one.path, one.header_bytes) for one in file.headers),
        notices=(
            *((OWN_HEAD,) if config != said else ()),
            *(checkpoint.notices if checkpoint else ()),
        ),
    )


def _open_gguf(path: Path) -> _Source:
    header = preflight.check(path)
    family, config = read_gguf_config(header)
    tokenizer = vocabularies.open_gguf(header)
    pooling = header.value(f"{header.architecture}.pooling_type", 0)
    return _Source(
        path=path,
        family=family,
        config=config,
        file=GgufTensorFile(header),
        tokenizer=tokenizer,
        longest_token_bytes=longest_token_bytes(header),
        end_ids=_with_a_row(tokenizer.end_ids, config),
        templates=header.chat_templates,
        defaults=gguf_generation_defaults(header),
        pooling=_GGUF_POOLING.get(pooling, "mean") if isinstance(pooling, int) else "mean",
        architecture=header.architecture,
        quantization=header.file_type_name,
        weight_files=header.weight_files,
    )


def _with_a_row(ids: frozenset[int], config: ModelConfig) -> frozenset[int]:
    """Those of `ids` that the model can generate."""
    return frozenset(ident for ident in ids if ident < config.vocab_size)


@dataclass(frozen=True, slots=True)
class Numbers:
    """How weights are held in memory and computed with."""

    dtype: torch.dtype
    """Dtype of weights that are not packed."""
    compute_dtype: torch.dtype
    """Dtype of activations."""
    packed: frozenset[str]
    """Types whose matrices stay packed."""
    held_bytes: int
    mapped: bool
    """Whether weights stay mapped from their file where possible."""
    tiled: bool
    """Whether the processor's kernels multiply by matrices of `dtype`."""
    exact: bool
    """See `kernels.packed.prepare`."""


def choose_numbers(
    stored: Collection[StoredTensor],
    settings: ModelSettings,
    device: torch.device,
    *,
    free_bytes: int,
    gpu_least_bytes: int | None = None,
    overflows_f16: bool = False,
    packs: bool = True,
) -> Numbers:
    """How the weights `stored` are held and computed with on `device`.

    Args:
        free_bytes, gpu_least_bytes: see `packed_types`.
        overflows_f16: activations of the model's family overflow float16.
        packs: whether matrices may stay packed.
    """
    dtype = _dtype(settings, stored, device)
    name = _NAMES[dtype]
    packed: frozenset[str] = frozenset()
    if packs:
        packed = packed_types(
            stored,
            settings,
            name,
            free_bytes=free_bytes,
            gpu_least_bytes=gpu_least_bytes,
            on_gpu=_packings(device.type),
        )
    held_bytes = weight_bytes(stored, name, packed=packed, on_gpu=device.type != "cpu")
    mapped = is_mapped(held_bytes)
    tiled = is_tiled(device, dtype) and not mapped
    overflows = dtype == torch.float16 and overflows_f16
    # The kernels for processors take and return float32.
    has_kernels = tiled or (device.type == "cpu" and bool(packed & multiplied()))
    is_half = devices.multiplies(device, dtype) and not (overflows or has_kernels)
    return Numbers(
        dtype,
        dtype if is_half else torch.float32,
        packed,
        held_bytes,
        mapped,
        tiled,
        exact=settings.dtype == "f32" or settings.deterministic,
    )


def _packings(device_type: str) -> frozenset[str]:
    """Types that the kernels of a GPU multiply packed."""
    if has_triton(device_type):
        return PACKINGS | WIDER.keys()
    return METAL_PACKINGS | WIDER.keys() if has_metal(device_type) else frozenset()


def _load(spec: ModelSpec, source: _Source, started: float, *, packs: bool) -> Loaded:
    settings = spec.settings
    config = settings.rope.applied_to(source.config)
    config = config.for_context(settings.context or config.context)
    source = replace(source, config=config)
    device = _device(settings, len(config.layers))
    on_gpu = device.type != "cpu"
    stored = list(source.file.stored.values())
    free = devices.free_bytes(device) if on_gpu else available_bytes()
    numbers = choose_numbers(
        stored,
        settings,
        device,
        free_bytes=free,
        gpu_least_bytes=least_bytes(config, settings) if on_gpu else None,
        overflows_f16=config.overflows_f16,
        packs=packs,
    )
    dtype, packed = numbers.dtype, numbers.packed
    unpacked = weight_bytes(stored, _NAMES[dtype], packed=frozenset())
    plan = plan_memory(
        settings,
        config,
        device=device,
        dtype=dtype,
        compute_dtype=numbers.compute_dtype,
        weight_bytes=numbers.held_bytes,
        available_bytes=free,
        triton=has_triton(device.type) or has_metal(device.type),
        graphs=has_graphs() and device.type == "cuda",
    )
    plan = replace(plan, packed=packed)
    decoder = Decoder(config, device, dtype, activations=plan.compute_dtype, context=plan.context)
    parameters = sum(one.numel() for one in decoder.parameters())
    with separate_allocations():
        report = load_weights(
            decoder,
            source.family,
            source.file,
            device,
            packed=packed,
            exact=numbers.exact,
            tiled=numbers.tiled,
            mapped=numbers.mapped,
        )
    if plan.deterministic:
        make_deterministic(decoder)
    threads, batch_threads = _thread_counts(settings, device)
    runner = NativeRunner(
        decoder,
        plan,
        end_ids=source.end_ids,
        fingerprint=_fingerprint(source, plan),
        own_pooling=source.pooling,
        threads=threads,
        batch_threads=batch_threads,
        on_close=source.file.close,
    )
    templates = templates_of(settings, source.templates)
    info = ModelInfo(
        name=spec.name or (source.path.name if source.path.is_dir() else source.path.stem),
        path=str(source.path),
        backend=NAME,
        backend_version=str(torch.__version__),
        architecture=source.architecture,
        quantization=source.quantization,
        parameters=parameters,
        size_bytes=report.weight_bytes,
        trained_context=config.context,
        kv_type=settings.kv_types,
        threads=runner.threads,
        batch_threads=batch_threads,
        gpu_layers=0 if device.type == "cpu" else len(config.layers) + 1,
        load_s=time.perf_counter() - started,
        notices=(
            *plan.notices,
            *source.notices,
            *about_positions(config, plan.context),
            *about_packing(
                weight_bytes(stored, _NAMES[dtype], packed=STAYS_PACKED | packed),
                *(unpacked, free),
                packed=bool(packed),
                # Types with kernels are not unpacked in each step.
                on_gpu=on_gpu and not packed <= _packings(device.type),
            ),
            *about_tensors(report.unknown),
            *about_sampling(source.defaults),
        ),
        longest_token_bytes=source.longest_token_bytes,
    )
    info = described(info, runner, source.tokenizer, templates)
    return Loaded(runner, source.tokenizer, info, templates)


def _thread_counts(settings: ModelSettings, device: torch.device) -> tuple[int | None, int]:
    """Threads for steps of one token per row, or None to measure it; and for steps with prefill."""
    if settings.deterministic:
        # The division of sums among threads affects rounding, so the count is not measured.
        count = settings.threads or settings.batch_threads or usable_cores()
        return count, count
    threads = settings.threads or (None if device.type == "cpu" else usable_cores())
    return threads, settings.batch_threads or settings.threads or usable_cores()


def _device(settings: ModelSettings, layers: int) -> torch.device:
    """The device for all layers.

    Raises:
        InvalidParameter: only some of the layers were requested for the GPU, or a GPU or card that
            is absent.
    """
    if settings.device is not None:
        best = _named_device(settings.device)
    elif settings.is_on_processor:
        return torch.device("cpu")
    else:
        best = devices.best_device()
    devices.use(best)
    if settings.gpu_layers is None or settings.device == "cpu":
        return best
    if best.type == "cpu":
        raise InvalidParameter(
            "gpu_layers",
            f"{settings.gpu_layers} GPU layers were asked for, but PyTorch finds no GPU here.",
            "Set gpu_layers (--gpu-layers) to auto, or install a CUDA build of PyTorch "
            "(`hearth doctor`).",
        )
    if settings.gpu_layers <= layers:
        raise InvalidParameter(
            "gpu_layers",
            f"The native runner has all {layers + 1} layers of a model on one device, not "
            f"{settings.gpu_layers}.",
            "Set gpu_layers (--gpu-layers) to auto or 0, or backend (--backend) to llamacpp.",
        )
    return best


def _named_device(name: str) -> torch.device:
    """The device named by `ModelSettings.device`. Raises `InvalidParameter` if it is absent."""
    here = devices.all_devices()
    wanted = torch.device("cuda", 0) if name == "cuda" else torch.device(name)
    if wanted in here:
        return wanted
    raise InvalidParameter(
        "device",
        f"PyTorch finds no {name} here, but {', '.join(map(devices.device_name, here))}.",
        "Set device (--device) to one of these, or to auto.",
    )


def _dtype(
    settings: ModelSettings, stored: Iterable[StoredTensor], device: torch.device
) -> torch.dtype:
    """The dtype of plain weights.

    The requested dtype, if any. By default, a GPU's default dtype, or on a processor the dtype in
    which most of the weights are stored.
    """
    if settings.dtype is None and device.type != "cpu":
        return devices.default_dtype(device)
    return _DTYPES[settings.dtype or own_dtype(stored)]


def is_tiled(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the processor's kernels multiply by matrices of `dtype`.

    They do for half precision, if they use AMX or torch has no instructions for it.
    """
    if device.type != "cpu" or dtype not in (torch.float16, torch.bfloat16):
        return False
    return instructions() == "amx" or (not devices.multiplies(device, dtype) and bool(multiplied()))


def _fingerprint(source: _Source, plan: NativePlan) -> bytes:
    """A hash of everything that keys and values depend on."""
    config = source.config
    scalings = [layer.rope.scaling for layer in config.layers if layer.rope is not None]
    # Longrope has different factors for short and for long contexts.
    is_long = [one is not None and plan.context > one.original_context for one in scalings]
    numbers = (plan.dtype, plan.compute_dtype, *plan.kv_dtypes)
    computed = (*numbers, plan.deterministic, sorted(plan.packed))
    stored = source.file.stored.values()
    schemes = sorted({repr(one.scheme) for one in stored if isinstance(one, QuantizedTensor)})
    said = repr((fingerprint(source.weight_files), config, is_long, computed, schemes))
    return hashlib.blake2b(said.encode(), digest_size=16).digest()


def _folder_pooling(folder: Path) -> Pooling:
    """The pooling in sentence-transformers' configuration next to a model, or mean."""
    config = optional_fields(folder, "1_Pooling/config.json").values
    if config.get("pooling_mode_lasttoken") is True:
        return "last"
    return "cls" if config.get("pooling_mode_cls_token") is True else "mean"
