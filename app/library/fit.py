"""Estimates whether a model fits this machine, before it is loaded or downloaded.

The memory of a GGUF model is computed by `hearth.quant.memory` from the plan that the worker would
make (`hearth.backends.llamacpp.params`), that of a model in safetensors by the native runner
(`hearth.backends.native.footprint`), so the estimate matches what the worker does. For a model that
is not downloaded, facts that neither the Hub nor the catalogue has are guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from hearth.app.format import binary_size, size
from hearth.app.library.bandwidth import Bandwidth
from hearth.app.library.catalogue import Entry, Shape
from hearth.app.library.hub import Repository
from hearth.app.machine import Machine, free_disk_bytes, this_machine
from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import DoesNotFit
from hearth.backends.llamacpp.facts import GgufFacts
from hearth.backends.llamacpp.footprint import NO_LIMIT, is_mapped, memory_of, pool_of
from hearth.backends.llamacpp.params import ContextPlan, plan_context
from hearth.backends.llamacpp.rope import UNCHANGED, RopeParams, rope_params
from hearth.backends.machine.memory import available_bytes
from hearth.quant.gguf.file import GgufFile
from hearth.quant.hf_names import EMBEDDING, canonical
from hearth.quant.memory import MemoryUse, estimated_use
from hearth.quant.memory_sessions import Sizing
from hearth.quant.memory_shape import ModelShape, guessed_shape, shape_of, shape_of_config
from hearth.quant.memory_weights import read_bytes_per_token
from hearth.quant.stored import StoredTensor

if TYPE_CHECKING:
    from hearth.backends.native.model_folder import ModelFolder

State = Literal["fits", "tight", "slow", "cannot"]

USUAL_CONTEXT: Final = 8192
"""Default context in tokens; the trained context is used if it is smaller."""
NATIVE_BASE_BYTES: Final = 168 << 20
"""Memory of a worker of the native runner without a model.

The interpreter, PyTorch and their dependencies (231 MiB), less the buffers of libraries that
`Workspace` counts (benchmarks/memory_fit.py; CPython 3.11, torch 2.13 for processors, Linux x86-64,
2026-11-26).
"""
NATIVE_TOKEN_BYTES: Final = 745
"""Memory of the native runner's tokenizer per token of the vocabulary, including merges.

Measured as the increase of a worker's VmHWM by loading the tokenizer of Qwen3, which has 151,936
tokens (same benchmark, machine and date as `NATIVE_BASE_BYTES`).
"""
_EXPERTS: Final = ".experts."
_USUAL_BITS: Final = 4.85
"""Bits per weight assumed if the number of weights in a file is unknown: those of Q4_K_M."""
_ARCHITECTURE: Final = "unknown"
_LEAST_READ_BYTES: Final = 64_000_000
"""Bytes of weights read per token from which memory bandwidth limits the speed."""
_MUCH: Final = 0.75
"""A model that needs more than this share of the free memory leaves little."""


@dataclass(frozen=True, slots=True)
class Room:
    """The resources of this machine that are free now.

    GPU memory is not included, because only workers load the libraries that report it.
    """

    free_bytes: int
    """Memory that can be allocated without swapping, within the limit of the control group."""
    total_bytes: int
    disk_free_bytes: int | None = None
    """Free space on the disk for downloads; None if not requested."""
    cpu_flags: tuple[str, ...] = ()
    bandwidth: Bandwidth | None = None
    """None if not measured; then no speed is estimated."""


@dataclass(frozen=True, slots=True)
class Speed:
    """An upper limit of the decoding speed, estimated from memory bandwidth.

    Each token reads all weights, and the keys and values of the tokens before it. `hearth bench`
    measures the actual speed. There is no estimate for weights that fit into caches, because their
    speed depends on other costs.
    """

    tok_per_s: float
    """At the beginning of a context."""
    full_tok_per_s: float
    """At the end of a context."""
    source: str
    is_limit: bool = True
    """False if other programs were busy during the measurement: at rest, decoding may be faster."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether and how a model fits this machine.

    Attributes:
        state: fits; tight: leaves little memory, or may swap; slow: weights are read from the disk
            again and again; cannot: Hearth would refuse to load it.
        reason: the reason in one sentence.
        use: memory of the worker with one full context.
        context: the context in tokens that this result is for.
        largest_context: the largest context in tokens that fits now, up to the trained context; 0
            if none fits.
        kv_type: type of keys and values.
        room: the free resources.
        download_bytes: disk space for the download; 0 if the model is on this machine.
        speed: None if bandwidth was not measured, and for encoders, which generate nothing.
        sizing: weights, KV cache and the number of sessions that fit, computed by formulas for one
            session of `context` tokens.
    """

    state: State
    reason: str
    use: MemoryUse
    context: int
    largest_context: int
    kv_type: str
    room: Room
    download_bytes: int = 0
    speed: Speed | None = None
    sizing: Sizing | None = None

    @property
    def fits_on_disk(self) -> bool | None:
        """Whether the download fits on the disk; None if the free space is unknown."""
        free = self.room.disk_free_bytes
        return None if free is None else self.download_bytes <= free

    @property
    def is_usable(self) -> bool:
        """Whether the model can be downloaded and loaded."""
        return self.state != "cannot" and self.fits_on_disk is not False

    @property
    def words(self) -> str:
        """A short description, such as "fits: needs 3.4 GB of 12.0 GB free"."""
        if self.fits_on_disk is False:
            free = self.room.disk_free_bytes or 0
            return (
                f"does not fit on the disk: {size(free)} free, {size(self.download_bytes)} needed"
            )
        about = "about " if self.use.uncertain else ""
        numbers = f"needs {about}{size(self.use.needed)} of {size(self.room.free_bytes)} free"
        return f"{_STATE_WORDS[self.state]}: {numbers}"

    def to_json(self) -> dict[str, Any]:
        """JSON values with stable keys; sizes are in bytes, unknown values are null."""
        hidden = ("mapped", "uncertain")
        parts = {name: part for name, part in asdict(self.use).items() if name not in hidden}
        return {
            "state": self.state,
            "reason": self.reason,
            "usable": self.is_usable,
            "context": self.context,
            "largest_context": self.largest_context,
            "kv_type": self.kv_type,
            "needed_bytes": self.use.needed,
            "peak_bytes": self.use.total,
            "uncertain_bytes": self.use.uncertain,
            "parts_bytes": parts,
            "mapped": self.use.mapped,
            "free_bytes": self.room.free_bytes,
            "total_bytes": self.room.total_bytes,
            "vram_bytes": None,
            "download_bytes": self.download_bytes,
            "disk_free_bytes": self.room.disk_free_bytes,
            "fits_on_disk": self.fits_on_disk,
            "speed": None if self.speed is None else asdict(self.speed),
            "sizing": None if self.sizing is None else self.sizing.to_json(),
        }


_STATE_WORDS: Final[dict[State, str]] = {
    "fits": "fits",
    "tight": "tight",
    "slow": "slow, from the disk",
    "cannot": "does not fit",
}


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts about a model that is not downloaded. Only the size must be known.

    Attributes:
        size_bytes: total size of all files.
        parameters: number of weights.
        active_parameters: number of weights that a token uses, if that is less.
        context: trained context in tokens.
        shape: determines the size of keys and values.
        generates: False if the model embeds or ranks texts.
    """

    size_bytes: int
    parameters: int | None = None
    active_parameters: int | None = None
    context: int | None = None
    shape: Shape | None = None
    generates: bool = True

    @property
    def read_bytes(self) -> int:
        """Approximate bytes of weights read to generate a token; 0 if the model generates none."""
        if not self.generates:
            return 0
        if not self.parameters or not self.active_parameters:
            return self.size_bytes
        return round(self.size_bytes * min(1.0, self.active_parameters / self.parameters))


def facts_of(
    size_bytes: int, entry: Entry | None = None, repository: Repository | None = None
) -> FileFacts:
    """The facts that the catalogue and the Hub have; the Hub's numbers take precedence.

    Args:
        size_bytes: total size of the file or files.
    """
    parameters = repository.parameters if repository is not None else None
    context = repository.context if repository is not None else None
    if entry is None:
        return FileFacts(size_bytes, parameters=parameters, context=context)
    return FileFacts(
        size_bytes,
        parameters=parameters or entry.parameters,
        active_parameters=entry.active_parameters,
        context=context or entry.context or None,
        shape=entry.shape,
        generates=entry.purpose in ("chat", "code"),
    )


def shape_for(facts: FileFacts) -> ModelShape:
    """The shape of a model with these facts; numbers that are unknown are guessed."""
    guessed = guessed_shape(facts.parameters or facts.size_bytes * 8 / _USUAL_BITS)
    known = facts.shape
    if known is None:
        return guessed
    return replace(
        guessed,
        layers=known.layers,
        kv_heads=known.kv_heads,
        kv_heads_in_all=known.layers * known.kv_heads,
        key_length=known.head_size,
        value_length=known.head_size,
    )


@dataclass(frozen=True, slots=True)
class GuessedFacts:
    """Implements `hearth.backends.llamacpp.facts.GgufFacts` without a file.

    With it, a context is planned as by the worker.
    """

    shape: ModelShape
    context_length: int

    @property
    def architecture(self) -> str:
        """The prefix of the keys that `value` knows."""
        return _ARCHITECTURE

    def value(self, key: str, default: Any = None) -> Any:
        known = {
            "block_count": self.shape.layers,
            "embedding_length": self.shape.width,
            "attention.head_count": self.shape.heads,
            "attention.key_length": self.shape.key_length,
            "attention.value_length": self.shape.value_length,
        }
        return known.get(key.removeprefix(f"{_ARCHITECTURE}."), default)

    def kv_bytes_per_token(self, type_k: str, type_v: str) -> int:
        return self.shape.kv_bytes_per_token(type_k, type_v)


def room_here(
    disk: Path | None = None,
    bandwidth: Bandwidth | None = None,
    machine: Machine | None = None,
) -> Room:
    """The resources of this machine that are free now.

    Args:
        disk: folder for downloads; need not exist yet.
        bandwidth: the bandwidth, if known (`bandwidth.known_bandwidth`).
        machine: the properties of this machine, if known already.
    """
    machine = machine or this_machine()
    return Room(
        free_bytes=min(available_bytes(), machine.memory_total_bytes),
        total_bytes=machine.memory_total_bytes,
        disk_free_bytes=None if disk is None else free_disk_bytes(disk),
        cpu_flags=machine.cpu_flags,
        bandwidth=bandwidth,
    )


def fit_of_header(header: GgufFile, settings: ModelSettings, room: Room) -> Fit:
    """Whether a model whose header is known fits this machine.

    The result is exact, except that the free memory may change until the model is loaded.

    Args:
        header: from `preflight.check`, or of a file that is not downloaded yet.
        settings: settings for loading; `context` None: `USUAL_CONTEXT`.

    Raises:
        InvalidParameter: a setting cannot be honoured.
        DoesNotFit: the context does not fit into the KV budget of the settings.
        CorruptFile: the header lacks a number.
    """
    weight_bytes = sum(tensor.nbytes for tensor in header.all_tensors)
    rope = rope_params(settings.rope, header)
    plan, largest = _planned(header, settings, weight_bytes, room, rope)
    use = memory_of(header, plan, cpu_flags=room.cpu_flags, available_bytes=room.free_bytes)
    return _fit(
        use,
        room,
        context=plan.context,
        largest_context=largest,
        kv_type=settings.kv_types,
        kv_bytes=plan.context * plan.kv_bytes_per_token,
        read_bytes=0 if header.is_encoder else read_bytes_per_token(header),
        shape=shape_of(header),
        parameters=sum(tensor.elements for tensor in header.all_tensors),
        precision=header.file_type_name,
    )


def fit_of_download(facts: FileFacts, settings: ModelSettings, room: Room) -> Fit:
    """Whether a model that is not downloaded fits this machine.

    The result is computed from the facts of the Hub or the catalogue; `use.uncertain` is its
    uncertainty.

    Raises:
        InvalidParameter: a setting cannot be honoured.
        DoesNotFit: the context does not fit into the KV budget of the settings.
    """
    shape = shape_for(facts)
    guessed = GuessedFacts(shape, facts.context or USUAL_CONTEXT)
    plan, largest = _planned(guessed, settings, facts.size_bytes, room)
    use = estimated_use(
        facts.size_bytes,
        shape,
        pool_of(guessed, plan, plan.context),
        knows_kv=facts.shape is not None,
        mapped=is_mapped(facts.size_bytes, room.free_bytes),
    )
    return _fit(
        use,
        room,
        context=plan.context,
        largest_context=largest,
        kv_type=settings.kv_types,
        kv_bytes=plan.context * plan.kv_bytes_per_token,
        read_bytes=facts.read_bytes,
        download_bytes=facts.size_bytes,
        shape=shape,
        parameters=facts.parameters or 0,
    )


def fit_of_folder(folder: ModelFolder, settings: ModelSettings, room: Room) -> Fit:
    """Whether a model in safetensors fits this machine, with all of it in memory.

    Args:
        settings: settings for loading; `context` None: `USUAL_CONTEXT`.

    Raises:
        InvalidParameter: the native runner does not support the KV type.
    """
    from hearth.backends.native.footprint import PAGE, packed_types, pool_tokens
    from hearth.backends.native.kv_sizes import kv_sizes, queued_bytes
    from hearth.backends.native.model_folder import weight_bytes
    from hearth.backends.native.workspace import Workspace

    config = settings.rope.applied_to(folder.config)
    trained = config.context
    sizes = kv_sizes(config, settings, page=PAGE)
    dtype = settings.dtype or folder.dtype
    packed = packed_types(folder.tensors, settings, dtype, free_bytes=room.free_bytes)
    weights = weight_bytes(folder.tensors, dtype, packed=packed)
    context = settings.context or min(trained, USUAL_CONTEXT)
    free = int(room.free_bytes * settings.memory_fraction) - weights
    most = max(trained, context)
    workspace = Workspace(config, settings)

    def taken(tokens: int) -> int:
        return sizes.pool_bytes(tokens) + workspace.bytes(tokens)

    largest = min(sizes.tokens_in(free, most, taken), most)
    tokens = pool_tokens(settings, sizes, context)
    use = MemoryUse(
        weights=weights,
        repacked=0,
        kv=sizes.pool_bytes(tokens),
        states=0,
        compute=workspace.bytes(tokens, scores=False) + queued_bytes(sizes, settings, tokens),
        outputs=0,
        vocabulary=NATIVE_TOKEN_BYTES * config.vocab_size,
        base=NATIVE_BASE_BYTES,
        growing=0,
        transposing=0,
        mapped=dtype == folder.dtype and folder.checkpoint is None,
    )
    return _fit(
        use,
        room,
        context=context,
        largest_context=largest,
        kv_type=settings.kv_types,
        kv_bytes=context * sizes.bytes_per_token + sizes.seen_window_bytes(context),
        read_bytes=_folder_read_bytes(
            folder, lambda tensor: weight_bytes((tensor,), dtype, packed=packed)
        ),
        shape=shape_of_config(folder.config),
        parameters=sum(prod(tensor.shape) for tensor in folder.tensors),
        precision=dtype,
    )


def _fit(
    use: MemoryUse,
    room: Room,
    *,
    context: int,
    largest_context: int,
    kv_type: str,
    kv_bytes: int,
    read_bytes: int,
    shape: ModelShape,
    parameters: int,
    precision: str = "",
    download_bytes: int = 0,
) -> Fit:
    """The result for a model with the given needs.

    Args:
        use: memory of a worker with one full context.
        context: requested context in tokens.
        largest_context: largest context in tokens that can be planned with the free memory.
        kv_bytes: bytes of keys and values that a token at the end of the context reads.
        read_bytes: bytes of weights read for each token; 0 if the model generates none.
        shape: shape of the model.
        parameters: number of weights; 0 if unknown.
        precision: type of the weights; empty if unknown.
        download_bytes: disk space for the download.
    """
    state, reason = _verdict(use, room, context, largest_context)
    speed = None
    if room.bandwidth is not None and read_bytes >= _LEAST_READ_BYTES:
        rate = room.bandwidth.bytes_per_s
        speed = Speed(
            tok_per_s=rate / read_bytes,
            full_tok_per_s=rate / (read_bytes + kv_bytes),
            source=room.bandwidth.source,
            is_limit=not room.bandwidth.is_busy,
        )
    sizing = Sizing(
        shape,
        parameters=parameters,
        weight_bytes=use.weights,
        precision=precision,
        tokens=context,
        sessions=1,
        kv_type=kv_type,
        memory_bytes=room.free_bytes,
        read_bytes=read_bytes,
    )
    return Fit(
        state, reason, use, context, largest_context, kv_type, room, download_bytes, speed, sizing
    )


def sizing_words(sizing: Sizing) -> str:
    """KV cache and sessions in one line, for lists and panels; "" for models without KV cache."""
    if not sizing.session_bytes:
        return ""
    kinds = ", ".join(
        f"{one.kind} with {one.kv_heads} KV heads {binary_size(one.kv_bytes)}"
        for one in sizing.variants()
        if not one.is_own
    )
    words = f"KV cache of {sizing.tokens:,} tokens: {binary_size(sizing.session_bytes)}"
    words += f" ({kinds})." if kinds else "."
    if (sessions := sizing.sessions_that_fit) is not None:
        words += f" Sessions that fit at once: {sessions:,}."
    return " ".join((words, *sizing.outside()))


def _verdict(use: MemoryUse, room: Room, context: int, largest: int) -> tuple[State, str]:
    free, needed = room.free_bytes, use.needed
    if context > largest:
        if largest:
            return "cannot", f"There is room for a context of {largest:,} tokens, not {context:,}."
        reason = f"It needs {size(needed)}; {size(free)} of {size(room.total_bytes)} are free."
        if needed < _MUCH * room.total_bytes:
            reason += " It would fit if other programs were closed."
        return "cannot", reason
    if needed > free:
        if use.mapped:
            missing = size(needed - free)
            return "slow", f"{missing} of the weights would be read from the disk again and again."
        return "tight", "Some of it would be swapped to the disk."
    if use.total > free:
        return "tight", "While it loads, it takes more than is free."
    if needed + use.uncertain > _MUCH * free:
        left = size(max(0, free - needed))
        doubt = f", give or take {size(use.uncertain)}" if use.uncertain else ""
        return "tight", f"It leaves {left} for everything else{doubt}."
    return "fits", f"It leaves {size(free - needed)} for everything else."


def _planned(
    facts: GgufFacts,
    settings: ModelSettings,
    weight_bytes: int,
    room: Room,
    rope: RopeParams = UNCHANGED,
) -> tuple[ContextPlan, int]:
    """The plan for the requested context with unlimited memory; the largest context that fits."""

    def planned(context: int | None, available_bytes: int) -> ContextPlan:
        return plan_context(
            replace(settings, context=context),
            facts,
            weight_bytes=weight_bytes,
            available_bytes=available_bytes,
            rope=rope,
        )

    wanted = settings.context or min(planned(None, NO_LIMIT).context, USUAL_CONTEXT)
    plan = planned(wanted, NO_LIMIT)
    is_stretched = wanted > (rope.context or facts.context_length)
    try:
        largest = planned(wanted if is_stretched else None, room.free_bytes).context
    except DoesNotFit as error:
        fitting = error.data.get("fitting_context", 0)
        largest = fitting if isinstance(fitting, int) else 0
    return plan, largest


def _folder_read_bytes(folder: ModelFolder, held: Callable[[StoredTensor], int]) -> int:
    """Bytes of weights that a token reads.

    Only the experts that the token uses count, and only one row of an embedding matrix that is not
    the output matrix as well.

    Args:
        held: returns the bytes of a tensor in memory.
    """
    config, read = folder.config, 0.0
    for tensor in folder.tensors:
        size: float = held(tensor)
        if canonical(tensor.name) == EMBEDDING and not config.tied:
            size /= config.vocab_size
        elif config.experts is not None and _EXPERTS in tensor.name:
            size *= config.experts.active / config.experts.count
        read += size
    return max(1, round(read))
