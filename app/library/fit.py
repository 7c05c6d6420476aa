"""Whether a model fits this machine, before it is loaded and before it is downloaded.

What a GGUF needs is `hearth.quant.memory`'s arithmetic, over the plan that the worker would make
(`hearth.backends.llamacpp.params`); what safetensors need, the native runner says
(`hearth.backends.native.footprint`). So what is reported here is what happens there. Of a model
that is not here, what the Hub or the catalogue does not say is guessed.
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
from hearth.backends.worker.footprint import free_bytes
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
"""Tokens, where no number is given; or what the model was trained for, if that is less."""
NATIVE_BASE_BYTES: Final = 168 << 20
"""What a worker of the native runner takes without a model: the interpreter, PyTorch and what they
need (231 MiB), less the buffers of libraries that `Workspace` counts (benchmarks/memory_fit.py;
CPython 3.11, torch 2.13 for processors, Linux x86-64, 2026-11-26)."""
NATIVE_TOKEN_BYTES: Final = 745
"""What its tokenizer keeps for each token, merges included: by how much VmHWM of a worker with the
151,936 tokens of Qwen3 is larger when it has loaded the model (the same place and date)."""
_EXPERTS: Final = ".experts."
_USUAL_BITS: Final = 4.85
"""Of a weight, where nothing says how many weights a file has: those of Q4_K_M."""
_ARCHITECTURE: Final = "unknown"
_LEAST_READ_BYTES: Final = 64_000_000
"""Of weights read for a token, from which on memory bandwidth limits the speed."""
_MUCH: Final = 0.75
"""A model that needs more than so much of the free memory leaves little."""


@dataclass(frozen=True, slots=True)
class Room:
    """What there is on this machine now. Memory of a GPU is not asked for: the libraries that know
    it are loaded by workers alone."""

    free_bytes: int
    """Memory that can be taken without swapping, within a control group's limit."""
    total_bytes: int
    disk_free_bytes: int | None = None
    """Where downloads go; None: not asked."""
    cpu_flags: tuple[str, ...] = ()
    bandwidth: Bandwidth | None = None
    """None: not measured; then no speed is estimated."""


@dataclass(frozen=True, slots=True)
class Speed:
    """An estimate from memory bandwidth: each token reads all weights, and the keys and values of
    those before it. No answer is faster; `hearth bench` measures how near it comes. There is none
    for weights that caches hold, whose speed depends on other costs.
    """

    tok_per_s: float
    """At the beginning of a context."""
    full_tok_per_s: float
    """At its end."""
    source: str
    is_limit: bool = True
    """False: bandwidth was measured while other programs were busy, so it may be faster at rest."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model suits this machine.

    Attributes:
        state: fits; tight: leaves little, or may swap; slow: weights are read from the disk again
            and again; cannot: Hearth would refuse to load it.
        reason: why, in a sentence.
        use: memory of its worker with one full context.
        context: tokens that this is for.
        largest_context: tokens for which there is room now, and no more than it was trained for; 0
            if there is room for none.
        kv_type: of keys and values.
        room: what there is.
        download_bytes: that it would take of the disk; 0 if it is there.
        speed: None where bandwidth was not measured, and of encoders, which generate nothing.
        sizing: weights, KV cache and the sessions that fit, by the formulas; one session of
            `context` tokens.
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
        """None where the disk was not asked."""
        free = self.room.disk_free_bytes
        return None if free is None else self.download_bytes <= free

    @property
    def is_usable(self) -> bool:
        """It can be downloaded and loaded."""
        return self.state != "cannot" and self.fits_on_disk is not False

    @property
    def words(self) -> str:
        """In a few words, such as "fits: needs 3.4 GB of 12.0 GB free"."""
        if self.fits_on_disk is False:
            free = self.room.disk_free_bytes or 0
            return (
                f"does not fit on the disk: {size(free)} free, {size(self.download_bytes)} needed"
            )
        about = "about " if self.use.uncertain else ""
        numbers = f"needs {about}{size(self.use.needed)} of {size(self.room.free_bytes)} free"
        return f"{_STATE_WORDS[self.state]}: {numbers}"

    def to_json(self) -> dict[str, Any]:
        """JSON values with stable keys; sizes in bytes, null for what is not known."""
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
    """What an entry says of a model. Only the size must be known.

    Attributes:
        size_bytes: of all its files.
        parameters: its weights.
        active_parameters: those that a token uses, where they are fewer.
        context: tokens that it was trained for.
        shape: from which the size of keys and values follows.
        generates: False: it embeds or ranks texts.
    """

    size_bytes: int
    parameters: int | None = None
    active_parameters: int | None = None
    context: int | None = None
    shape: Shape | None = None
    generates: bool = True

    @property
    def read_bytes(self) -> int:
        """Of weights, that generating a token reads: about; 0 where it generates none."""
        if not self.generates:
            return 0
        if not self.parameters or not self.active_parameters:
            return self.size_bytes
        return round(self.size_bytes * min(1.0, self.active_parameters / self.parameters))


def facts_of(
    size_bytes: int, entry: Entry | None = None, repository: Repository | None = None
) -> FileFacts:
    """What the catalogue and the Hub say of a model together; the Hub's numbers count.

    Args:
        size_bytes: of the file or files.
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
    """The shape of such a model: known numbers as they are, the others guessed."""
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
    """Implements `hearth.backends.llamacpp.facts.GgufFacts` without a file, so that a context is
    planned as the worker would."""

    shape: ModelShape
    context_length: int

    @property
    def architecture(self) -> str:
        """A name of which `value` knows keys."""
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
    """What there is now.

    Args:
        disk: where downloads go; need not exist yet.
        bandwidth: if it is known (`bandwidth.known_bandwidth`).
        machine: if it was asked already.
    """
    machine = machine or this_machine()
    return Room(
        free_bytes=min(free_bytes(), machine.memory_total_bytes),
        total_bytes=machine.memory_total_bytes,
        disk_free_bytes=None if disk is None else free_disk_bytes(disk),
        cpu_flags=machine.cpu_flags,
        bandwidth=bandwidth,
    )


def fit_of_header(header: GgufFile, settings: ModelSettings, room: Room) -> Fit:
    """How a model whose header is known suits this machine: exactly, up to what is free later.

    Args:
        header: from `preflight.check`, or of a file that is not here yet.
        settings: how it would be loaded; `context` None: `USUAL_CONTEXT`.

    Raises:
        InvalidParameter: a setting cannot be honoured.
        DoesNotFit: the context does not fit into the KV budget of the settings.
        CorruptFile: a number is missing in the header.
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
    """How a model that is not here suits this machine, by what the Hub or the catalogue says of
    it; `use.uncertain` says how much of that is a guess.

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
    """How a model in safetensors whose headers are known suits this machine, all of it in memory.

    Args:
        settings: how it would be loaded; `context` None: `USUAL_CONTEXT`.

    Raises:
        InvalidParameter: a KV type that the native runner does not have.
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
        turning=0,
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
    """The verdict.

    Args:
        use: memory of a worker with one full context.
        context: tokens that were asked for.
        largest_context: tokens for which a plan could be made with what is free.
        kv_bytes: of keys and values that a token at the end of the context reads.
        read_bytes: of weights, for each token; 0: it generates none.
        shape: of the model.
        parameters: its weights; 0: not known.
        precision: of the weights, if that is known.
        download_bytes: that it would take of the disk.
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
    """KV cache and sessions in a line, for lists and panels; "" of models without a KV cache."""
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
    """The plan for the context that is asked for, if there were room for anything; and the largest
    context for which there is."""

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
        found = error.data.get("fitting_context", 0)
        largest = found if isinstance(found, int) else 0
    return plan, largest


def _folder_read_bytes(folder: ModelFolder, held: Callable[[StoredTensor], int]) -> int:
    """Of weights that a token reads: of the experts only those that it goes through, and one row of
    an embedding that is not the output matrix too.

    Args:
        held: bytes of a tensor in memory.
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
