"""From a `ModelSpec` to a model that can run: the one door that a worker uses."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from hearth.backends.contract import Capability, ModelInfo, ModelSettings, ModelSpec, Pooling
from hearth.backends.errors import HearthError, InvalidParameter, ModelNotFound
from hearth.backends.memory import available_bytes
from hearth.backends.native.config import ModelConfig
from hearth.backends.native.dense_attention import DenseAttention
from hearth.backends.native.determinism import make_deterministic
from hearth.backends.native.families.family import Family
from hearth.backends.native.families.gguf_fields import GgufFields
from hearth.backends.native.families.table import family_of_gguf, family_of_hf
from hearth.backends.native.footprint import MAX_SESSIONS, is_mapped, stays_packed
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.plan import plan_memory
from hearth.backends.native.runner import NativeRunner
from hearth.backends.native.tensors import TensorFile
from hearth.backends.native.weights import LoadReport, load_weights
from hearth.backends.runners import Loaded
from hearth.backends.settings_checks import check_settings
from hearth.backends.text.output.families import takes_tools, thinks
from hearth.backends.text.tokenizer import Tokenizer
from hearth.backends.text.vocab import load as vocabularies
from hearth.backends.text.vocab.chat_template import read_chat_template
from hearth.backends.text.vocab.generation_defaults import (
    GenerationDefaults,
    gguf_generation_defaults,
    read_generation_defaults,
)
from hearth.backends.text.vocab.model_folder import read_json
from hearth.backends.threads import candidates, measure_threads, usable_cores, usable_threads
from hearth.kernels import device as devices
from hearth.quant.gguf import preflight
from hearth.quant.gguf.tensor_file import GgufTensorFile
from hearth.quant.json_fields import read_fields
from hearth.quant.safetensors import SafetensorsFolder

NAME = "native"
_CONFIG = "config.json"
_SHOWN_NAMES = 5
_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_GGUF_POOLING: Mapping[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}
"""llama_pooling_type of llama.h."""


def open_model(spec: ModelSpec) -> Loaded:
    """Check and load a model: a GGUF file, or a folder with `config.json` and safetensors.

    Args:
        spec: the file or folder and how to load it.

    Raises:
        ModelNotFound: there is no such file or folder.
        CorruptFile, UnsupportedModel: it cannot be run.
        InvalidParameter: a setting cannot be honoured.
        DoesNotFit: with both numbers.
    """
    started = time.perf_counter()
    settings = spec.settings
    check_settings(settings, MAX_SESSIONS)
    source = _open_source(Path(spec.path))
    try:
        return _load(spec, source, started)
    except HearthError:
        source.file.close()
        raise


@dataclass(frozen=True, slots=True)
class _Source:
    """What a model's files say, before its weights are read."""

    path: Path
    family: Family
    config: ModelConfig
    file: TensorFile
    tokenizer: Tokenizer
    end_ids: frozenset[int]
    template: str | None
    defaults: GenerationDefaults
    pooling: Pooling
    architecture: str
    quantization: str


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
    if not (folder / _CONFIG).is_file():
        raise ModelNotFound(
            f"{folder} has no {_CONFIG}.",
            "Name a folder with config.json, tokenizer.json and safetensors, or a GGUF file.",
        )
    fields = read_fields(folder / _CONFIG)
    family = family_of_hf(fields.text("model_type"), fields.texts("architectures"))
    config = family.from_hf(fields)
    tokenizer = vocabularies.open_folder(folder, rows=config.vocab_size)
    defaults = read_generation_defaults(folder)
    file = SafetensorsFolder(folder)
    return _Source(
        path=folder,
        family=family,
        config=config,
        file=file,
        tokenizer=tokenizer,
        end_ids=tokenizer.end_ids | defaults.eos_ids,
        template=read_chat_template(folder),
        defaults=defaults,
        pooling=_folder_pooling(folder),
        architecture=fields.text("model_type"),
        quantization=_most_common_dtype(file),
    )


def _open_gguf(path: Path) -> _Source:
    header = preflight.check(path)
    family = family_of_gguf(header.architecture)
    file = GgufTensorFile(header)
    tokenizer = vocabularies.open_gguf(header)
    pooling = header.value(f"{header.architecture}.pooling_type", 0)
    return _Source(
        path=path,
        family=family,
        config=family.from_gguf(GgufFields(header, file)),
        file=file,
        tokenizer=tokenizer,
        end_ids=tokenizer.end_ids,
        template=header.chat_template,
        defaults=gguf_generation_defaults(header),
        pooling=_GGUF_POOLING.get(pooling, "mean") if isinstance(pooling, int) else "mean",
        architecture=header.architecture,
        quantization=header.file_type_name,
    )


def _load(spec: ModelSpec, source: _Source, started: float) -> Loaded:
    settings, config = spec.settings, source.config
    device = _device(settings, len(config.layers))
    dtype = _dtype(settings, source, device)
    unpacked = _weight_bytes(source, dtype, packed=False)
    packed = stays_packed(unpacked, on_gpu=device.type != "cpu")
    weight_bytes = _weight_bytes(source, dtype, packed=packed)
    plan = plan_memory(
        settings,
        config,
        device=device,
        dtype=dtype,
        compute_dtype=dtype if devices.multiplies(device, dtype) else torch.float32,
        weight_bytes=weight_bytes,
        available_bytes=(available_bytes() if device.type == "cpu" else devices.free_bytes(device)),
    )
    decoder = Decoder(config, device, dtype, activations=plan.compute_dtype, context=plan.context)
    parameters = sum(one.numel() for one in decoder.parameters())
    report = load_weights(
        decoder,
        source.family,
        source.file,
        device,
        packed=packed,
        mapped=is_mapped(weight_bytes),
    )
    if plan.deterministic:
        make_deterministic(decoder)
    threads = settings.threads or _fastest_threads(decoder, device)
    batch_threads = settings.batch_threads or settings.threads or usable_cores()
    torch.set_num_threads(threads)
    runner = NativeRunner(
        decoder,
        plan,
        end_ids=source.end_ids,
        fingerprint=_fingerprint(source, plan.kv_dtype),
        own_pooling=source.pooling,
        threads=threads,
        batch_threads=batch_threads,
        on_close=source.file.close,
    )
    template = settings.chat_template or source.template
    info = ModelInfo(
        name=spec.name or (source.path.name if source.path.is_dir() else source.path.stem),
        path=str(source.path),
        backend=NAME,
        backend_version=str(torch.__version__),
        architecture=source.architecture,
        quantization=source.quantization,
        parameters=parameters,
        size_bytes=report.weight_bytes,
        context=plan.context,
        trained_context=config.context,
        vocab_size=config.vocab_size,
        kv_bytes_per_token=plan.kv_bytes_per_token,
        kv_type=settings.kv_type,
        threads=threads,
        batch_threads=batch_threads,
        gpu_layers=0 if device.type == "cpu" else len(config.layers) + 1,
        load_s=time.perf_counter() - started,
        has_chat_template=template is not None,
        template_sha256=hashlib.sha256(template.encode()).hexdigest() if template else "",
        notices=(*plan.notices, *_unknown(report), *_advice(source.defaults)),
        capabilities=_capabilities(template, source.tokenizer),
        max_sessions=plan.slots,
        max_batch_tokens=plan.max_batch_tokens,
    )
    return Loaded(runner, source.tokenizer, info, template)


@torch.inference_mode()
def _fastest_threads(decoder: Decoder, device: torch.device) -> int:
    """For steps of one token: measured, unless they take long."""
    cores = usable_cores()
    if device.type != "cpu":
        return cores
    token = torch.zeros(1, dtype=torch.long)

    def step(threads: int) -> None:
        torch.set_num_threads(threads)
        decoder.logits(decoder(token, token, DenseAttention(decoder.config, [1])))

    return measure_threads(step, candidates(cores, usable_threads())).threads


def _device(settings: ModelSettings, layers: int) -> torch.device:
    """The device for all layers.

    Raises:
        InvalidParameter: some layers were asked for, or a GPU where there is none.
    """
    best = devices.best_device()
    if settings.gpu_layers == 0:
        return torch.device("cpu")
    if settings.gpu_layers is None:
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


def _dtype(settings: ModelSettings, source: _Source, device: torch.device) -> torch.dtype:
    """What plain weights are held in: as asked, else as most of them are stored where the device
    can use that, else the device's own choice.
    """
    if settings.dtype is not None:
        return _DTYPES[settings.dtype]
    if device.type == "cpu":
        # Packed ones lose nothing that matters in half precision, and take half of the memory.
        return _DTYPES.get(_most_common_dtype(source.file), torch.bfloat16)
    return devices.default_dtype(device)


def _most_common_dtype(file: TensorFile) -> str:
    """What most numbers are stored as, by our names for dtypes, or a packing."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    sizes: dict[str, int] = {}
    for one in file.stored.values():
        name = one.packing or names.get(one.dtype or torch.float32, str(one.dtype))
        sizes[name] = sizes.get(name, 0) + one.nbytes
    return max(sizes, key=lambda name: sizes[name], default="f32")


def _weight_bytes(source: _Source, dtype: torch.dtype, *, packed: bool) -> int:
    """Of the weights in memory: packed ones as they are, others in the dtype of the run."""
    return sum(
        one.nbytes if packed and one.packing else prod(one.shape) * dtype.itemsize
        for one in source.file.stored.values()
    )


def _fingerprint(source: _Source, numbers: torch.dtype) -> bytes:
    """Of everything that keys and values depend on."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((source.config, str(numbers), str(source.path))).encode())
    for name, one in sorted(source.file.stored.items()):
        digest.update(repr((name, one.shape, one.packing, str(one.dtype))).encode())
    return digest.digest()


def _folder_pooling(folder: Path) -> Pooling:
    """What sentence-transformers notes beside a model, or mean."""
    config: Mapping[str, Any] = read_json(folder, "1_Pooling/config.json")
    if config.get("pooling_mode_lasttoken") is True:
        return "last"
    return "cls" if config.get("pooling_mode_cls_token") is True else "mean"


def _unknown(report: LoadReport) -> tuple[str, ...]:
    """What is in the file and nobody knows."""
    if not report.unknown:
        return ()
    shown = ", ".join(report.unknown[:_SHOWN_NAMES])
    more = len(report.unknown) - _SHOWN_NAMES
    rest = f" and {more} more" if more > 0 else ""
    return (
        f"Tensors of the file are not known and not used: {shown}{rest}. The model may not be what "
        "its config says.",
    )


def _advice(defaults: GenerationDefaults) -> tuple[str, ...]:
    """The sampling that the model's makers recommend, in words."""
    named = {
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "repetition_penalty": defaults.repetition_penalty,
    }
    said = ", ".join(f"{name} {value:g}" for name, value in named.items() if value is not None)
    return (f"The model's makers recommend {said}.",) if said else ()


def _capabilities(template: str | None, tokenizer: Tokenizer) -> tuple[Capability, ...]:
    can: dict[Capability, bool] = {
        "chat": template is not None,
        "tools": takes_tools(template),
        "thinking": thinks(template),
        "infill": tokenizer.infill_ids is not None,
        "embed": True,
    }
    return tuple(capability for capability, is_possible in can.items() if is_possible)
