"""Writing a planned folder: matrices are rounded one after the other, everything else is copied."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, Unpack

import torch
from torch import Tensor

from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.checkpoints.config import KEY
from hearth.quant.checkpoints.reading import read_quantized
from hearth.quant.checkpoints.scheme import QuantizedTensor
from hearth.quant.convert.folder_files import ALL, CONFIG
from hearth.quant.errors import BadGrid, CorruptFile
from hearth.quant.folders.config import quantization_config
from hearth.quant.folders.encode import stored_tensors
from hearth.quant.folders.matrices import Matrix
from hearth.quant.folders.plan import FolderPlan, Piece
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.gguf.quantize_file import (
    Partial,
    check_target,
    check_unchanged,
    discard,
    manifest_path,
    open_partial,
    stamps,
    write_json,
)
from hearth.quant.json_fields import read_fields
from hearth.quant.methods import Check, OnProgress, Quantized, Running
from hearth.quant.safetensors import DTYPES, SafetensorsTensors
from hearth.quant.safetensors_shards import INDEX_NAME
from hearth.quant.versions import installed_version

_COPY_BYTES: Final = 4 << 20
_FURTHER_FILES: Final = (
    *("*.model", "LICENSE*", "vocab.*", "merges.txt"),
    *("*processor_config.json", "modules.json", "*sentence_transformers.json", "sentence_bert*"),
)
"""Files to copy besides those that Hearth reads: vocabularies for other programs, the licence, and
files that transformers and sentence-transformers read for vision and embedding models."""
_FOLDERS: Final = ("additional_chat_templates/*.jinja", "1_Pooling/config.json")

Report = Callable[[float, str], None]
"""Called with the share of a piece that is done, and the current tensor."""


class Rounding(Protocol):
    """Rounds a model's matrices to packed weights, piece by piece."""

    def round(self, piece: Piece, report: Report) -> Iterator[tuple[Matrix, PackedWeight]]:
        """Round the matrices of `piece`, in their order."""
        ...

    def changed(self, piece: Piece) -> Mapping[str, Tensor]:
        """The copied tensors of `piece` whose values differ from the source; valid once `round` is
        exhausted.
        """
        ...

    def facts(self, piece: Piece) -> dict[str, Any]:
        """Facts about `piece` for the manifest, JSON values."""
        ...

    def restore(
        self, piece: Piece, weight: Callable[[Matrix], PackedWeight], plain: Callable[[str], Tensor]
    ) -> None:
        """Catch up on `piece`, which an earlier run wrote.

        Args:
            weight, plain: read a written matrix, and a written copied tensor.
        """
        ...


class EachAlone:
    """Packs each matrix on its own.

    Args:
        file: the tensors of the source.
        pack: reads and packs a matrix.
    """

    def __init__(self, file: SafetensorsTensors, pack: Callable[[Matrix], PackedWeight]) -> None:
        self._file = file
        self._pack = pack

    def round(self, piece: Piece, report: Report) -> Iterator[tuple[Matrix, PackedWeight]]:
        for number, matrix in enumerate(piece.matrices):
            report(number / len(piece.matrices), matrix.name)
            with naming(matrix):
                packed = self._pack(matrix)
            yield matrix, packed
            self._file.release(matrix.source)

    def changed(self, piece: Piece) -> Mapping[str, Tensor]:
        return {}

    def facts(self, piece: Piece) -> dict[str, Any]:
        return {}

    def restore(
        self, piece: Piece, weight: Callable[[Matrix], PackedWeight], plain: Callable[[str], Tensor]
    ) -> None:
        pass


@contextmanager
def naming(matrix: Matrix) -> Iterator[None]:
    """Add the name of the matrix to errors."""
    try:
        yield
    except CannotQuantize as error:
        raise CannotQuantize(
            f"{matrix.name}: {error.message}", error.hint, tensor=matrix.name
        ) from error


def write(
    plan: FolderPlan,
    target: Path,
    rounding: Callable[[SafetensorsTensors], Rounding],
    **how: Unpack[Running],
) -> Quantized:
    """Make the folder `target` according to `plan`, and its manifest next to it.

    The folder gets its name only when it is complete. Pieces that an earlier run wrote before it
    was stopped or killed are kept, and the result is identical byte for byte; see `quantize_file`.

    Args:
        rounding: makes the `Rounding` from the tensors of the source.

    Raises:
        CannotQuantize: a weight is not a finite number, or the target is the source itself.
        CorruptFile: the source changed since it was planned.
        BeingWritten, TargetExists, NoSpace: see the classes.
        OSError: a file cannot be read or written.
    """
    replace, check = how["replace"], how["check"]
    if target.exists() and target.samefile(plan.source):
        raise CannotQuantize(f"{target} is the source itself.", "Write to another name (--output).")
    check_target(target, replace=replace, is_folder=True)
    sources = [plan.source / CONFIG, *(header.path for header in plan.headers)]
    begun_at = stamps(sources)
    begin = {
        "request": {
            "method": plan.method,
            "source": str(plan.source),
            "type": plan.method,
            "options": dict(plan.options),
            "replace": replace,
        },
        "size_bytes": plan.size_bytes,
        "files": [[one.name, one.size_bytes] for one in plan.layout.files],
        "made_of": {
            "source": begun_at,
            "method": plan.method,
            "calibration text": _text_hash(plan),
            "options or version": [
                [hashlib.sha256(one.header).hexdigest() for one in plan.layout.files],
                {key: value for key, value in plan.options.items() if key != "calibration"},
                *_versions(),
            ],
        },
    }
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, how["threads"]))
    try:
        with (
            torch.inference_mode(),
            open_partial(target, begin, check) as partial,
            closing(SafetensorsTensors(plan.headers, plan.checkpoint)) as file,
        ):
            if partial.note:
                how["on_note"](partial.note)
            work = _Work(plan, file, partial, how["on_progress"], check)
            work.write(rounding(file))
            partial.sync()
            check_unchanged(plan.source, sources, begun_at)
            facts = _manifest(plan, target, partial)
            check()
            check_target(target, replace=replace, is_folder=True)
            # The old manifest describes the folder that is about to be replaced.
            manifest_path(target).unlink(missing_ok=True)
            partial.finish_folder([one.name for one in plan.layout.files], _files(plan))
    except (BadGrid, CannotQuantize, CorruptFile):
        discard(target)
        raise
    finally:
        torch.set_num_threads(before)
    write_json(manifest_path(target), facts)
    return Quantized(target, manifest_path(target), plan.size_bytes, partial.sha256, facts)


class _Work:
    """Writes the pieces, in order."""

    def __init__(
        self,
        plan: FolderPlan,
        file: SafetensorsTensors,
        partial: Partial,
        on_progress: OnProgress,
        check: Check,
    ) -> None:
        self._plan = plan
        self._file = file
        self._partial = partial
        self._on_progress = on_progress
        self._check = check
        self._total = sum(self._rounded_bytes(piece) for piece in plan.pieces)
        self._headers = plan.layout.headers

    def write(self, rounding: Rounding) -> None:
        """Append the missing pieces."""
        pieces, written = self._plan.pieces, self._partial.parts
        done = sum(self._rounded_bytes(piece) for piece in pieces[:written])
        for piece in pieces[:written]:
            self._check()
            self._on_progress(done, self._total, f"{piece.name}, which is written")
            rounding.restore(piece, self._written_weight, self._written)
        for piece in pieces[written:]:
            size = self._rounded_bytes(piece)

            def report(share: float, name: str, done: int = done, size: int = size) -> None:
                self._check()
                self._on_progress(done + int(share * size), self._total, name)

            done += size
            self._write_piece(piece, rounding, report, done / max(1, self._total))
        self._on_progress(self._total, self._total, "")

    def _write_piece(self, piece: Piece, rounding: Rounding, report: Report, share: float) -> None:
        """
        Args:
            share: share of all work that is done once the piece is written.
        """
        for matrix, weight in rounding.round(piece, report):
            storage = self._plan.stored[matrix.name]
            tensors = stored_tensors(storage, weight)
            for leaf, _, _ in storage.leaves(matrix.outputs, matrix.inputs):
                self._append(f"{matrix.module}{leaf}", tensors[leaf])
            self._check()
        changed = rounding.changed(piece)
        for name in piece.plain:
            self._append(name, changed.get(name, self._file.read(name)))
            self._file.release(name)
        self._partial.end_part(piece.name, rounding.facts(piece), share=share)

    def _append(self, name: str, tensor: Tensor) -> None:
        entry = self._plan.layout.entries[name]
        if tensor.dtype != DTYPES[entry.kind] or tensor.shape != entry.shape:
            shown = f"{tensor.dtype} {tuple(tensor.shape)}"
            raise ValueError(f"{name}: {shown} is not {entry.kind} {entry.shape}")
        self._partial.write(self._headers.get(name, b""))
        data = tensor.contiguous().flatten().view(torch.uint8).numpy().data
        for start in range(0, len(data), _COPY_BYTES):
            self._partial.write(data[start : start + _COPY_BYTES])
            self._check()

    def _written(self, name: str) -> Tensor:
        """A tensor that is already in the new files."""
        entry = self._plan.layout.entries[name]
        data = bytearray(self._partial.read(entry.start, entry.nbytes))
        return torch.frombuffer(data, dtype=DTYPES[entry.kind]).view(entry.shape)

    def _written_weight(self, matrix: Matrix) -> PackedWeight:
        storage = self._plan.stored[matrix.name]
        leaves = storage.leaves(matrix.outputs, matrix.inputs)
        tensor = QuantizedTensor(
            matrix.name,
            (matrix.outputs, matrix.inputs),
            storage.label,
            0,
            scheme=storage.scheme,
            parts={leaf: f"{matrix.module}{leaf}" for leaf, _, _ in leaves},
        )
        return read_quantized(tensor, self._written)

    def _rounded_bytes(self, piece: Piece) -> int:
        """Bytes of the source that are rounded; copying takes hardly any time."""
        names = {one.source for one in piece.matrices}
        return sum(self._file.stored[name].nbytes for name in names)


def _files(plan: FolderPlan) -> dict[str, bytes | Path]:
    """The files of the new folder besides its weights, as contents or source paths."""
    files: dict[str, bytes | Path] = {}
    folder = plan.source
    patterns = (*ALL, *_FURTHER_FILES, *_FOLDERS)
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path
    values = dict(read_fields(folder / CONFIG).values)
    values[KEY] = quantization_config(plan.storage, plan.ignored, plan.outside, plan.skipped)
    files[CONFIG] = _json(values)
    if len(plan.layout.files) > 1:
        files[INDEX_NAME] = _json(plan.layout.index)
    return files


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def _text_hash(plan: FolderPlan) -> str | None:
    if plan.calibration is None:
        return None
    return hashlib.sha256(plan.calibration.text.read_bytes()).hexdigest()


def _versions() -> list[str]:
    """The versions of Hearth and PyTorch, on which rounding depends."""
    return [installed_version("hearth-llm") or "unknown", str(torch.__version__)]


def _manifest(plan: FolderPlan, target: Path, partial: Partial) -> dict[str, Any]:
    hearth, torch_version = _versions()
    choices = {name: facts for one in partial.facts for name, facts in one.items()}
    return {
        "format": 1,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": plan.method,
        "source": {
            "name": plan.source.name,
            "files": [
                {"name": one.path.name, "size_bytes": one.size_bytes} for one in plan.headers
            ],
        },
        "recipe": {**plan.facts(), "options": dict(plan.options), "choices": choices},
        "result": {
            "name": target.name,
            "size_bytes": plan.size_bytes,
            "sha256": partial.sha256,
            "bits_per_weight": round(plan.bits_per_weight, 3),
        },
        "versions": {"hearth": hearth, "torch": torch_version},
    }
