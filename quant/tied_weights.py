"""The output matrix of a folder whose config ties it to the embedding. Standard library only.

A checkpoint may store both matrices anyway: with the same numbers, or, if training untied them and
the config was not updated, with different ones. transformers ties them only in the first case
(`PreTrainedModel.tie_weights`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from hearth.quant.checkpoints.scheme import QuantizedTensor
from hearth.quant.families.config import ModelConfig
from hearth.quant.gguf.faults import corrupt, quoted
from hearth.quant.hf_names import EMBEDDING, HEAD, by_canonical_name, canonical
from hearth.quant.safetensors_header import SafetensorsHeader, TensorEntry
from hearth.quant.stored import StoredTensor

_BARE_EMBEDDING: Final = "embed_tokens.weight"
"""The name of the embedding in files of model classes without a head."""
_SLICE_BYTES: Final = 4 << 20


def as_stored(
    config: ModelConfig, headers: Sequence[SafetensorsHeader], stored: Mapping[str, StoredTensor]
) -> ModelConfig:
    """`config` with `tied` corrected by what the files hold, as transformers does it.

    It is untied if the files store an output matrix that is not a copy of the embedding, or a
    quantized one. A bare embedding model has no output matrix and is run as if it were tied.

    Args:
        stored: the tensors of all files, see `resolve`.

    Raises:
        CorruptFile, OSError: as `has_own_head`.
    """
    names = by_canonical_name(stored)
    is_quantized = HEAD in names and isinstance(stored[names[HEAD]], QuantizedTensor)
    if config.tied and ((is_quantized and EMBEDDING in names) or has_own_head(headers)):
        return replace(config, tied=False)
    if not config.tied and HEAD not in names and names.get(EMBEDDING) == _BARE_EMBEDDING:
        return replace(config, tied=True)
    return config


def has_own_head(headers: Sequence[SafetensorsHeader]) -> bool:
    """Whether there is an output matrix that is not a byte-for-byte copy of the embedding. If both
    are stored with the same type and shape, they are read up to the first difference.

    Raises:
        CorruptFile: a file has become shorter since its header was checked.
        OSError: a file cannot be read.
    """
    tensors = {
        canonical(name): (header.path, entry)
        for header in headers
        for name, entry in header.tensors.items()
    }
    if EMBEDDING not in tensors or HEAD not in tensors:
        return False
    (path, embedding), (other_path, head) = tensors[EMBEDDING], tensors[HEAD]
    if (embedding.kind, embedding.shape) != (head.kind, head.shape):
        return True
    with path.open("rb") as stream, other_path.open("rb") as other:
        stream.seek(embedding.start)
        other.seek(head.start)
        for place in range(0, head.nbytes, _SLICE_BYTES):
            count = min(_SLICE_BYTES, head.nbytes - place)
            if _read(stream, path, embedding, count) != _read(other, other_path, head, count):
                return True
    return False


def _read(stream: BinaryIO, path: Path, entry: TensorEntry, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise corrupt(
            path,
            f"tensor {quoted(entry.name)}",
            "is cut off: the file became shorter",
            "Try again once nobody writes to it.",
        )
    return data
