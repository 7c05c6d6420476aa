"""Finds models on this machine that can draft for another model (docs/speculation.md)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from hearth.app.library.local import FoundModel, Library
from hearth.backends.contract.models import heads_path
from hearth.backends.errors import HearthError
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.values import StringArray

TIMES_SMALLER: Final = 3
"""A draft model's file must be this many times smaller, because drafting costs time, too."""
_TOKENS: Final = "tokenizer.ggml.tokens"


def fitting_drafts(model: FoundModel, library: Library) -> list[str]:
    """The possible values of the setting `draft` for `model`.

    For a GGUF file, these are the names of GGUF models in `library` that have the same tokens and
    are much smaller, the largest first. The path of the model's Medusa heads follows, if it has
    any. Reads the headers of all smaller models.

    Raises:
        CorruptFile, UnsupportedModel, OSError: the header of `model` cannot be read.
    """
    heads = heads_path(model.path)
    own = [str(heads)] if heads.is_file() else []
    if not model.path.is_file():
        return own
    header = preflight.check(model.path)
    tokens, most_bytes = _tokens(header), _size(header) // TIMES_SMALLER
    drafts = []
    for candidate in dict.fromkeys((*library.found(), *library.fixed())):
        if candidate.remote is not None or not _may_fit(candidate.path, most_bytes):
            continue
        with suppress(HearthError, OSError):  # Damaged files are skipped.
            other = preflight.check(candidate.path)
            both = min(len(tokens), len(its := _tokens(other)))
            if both and not other.is_encoder and tokens[:both] == its[:both]:
                drafts.append((_size(other), candidate.name))
    return [name for size, name in sorted(drafts, reverse=True) if size <= most_bytes] + own


def _may_fit(path: Path, most_bytes: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= most_bytes
    except OSError:
        return False


def _size(header: GgufFile) -> int:
    return sum(part.size_bytes for part in (header, *header.shards))


def _tokens(header: GgufFile) -> list[bytes]:
    tokens = header.value(_TOKENS)
    return tokens.raw_strings() if isinstance(tokens, StringArray) else []
