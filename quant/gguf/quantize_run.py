"""Executes a plan: tensor by tensor, chunk by chunk, into one new file."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hearth.quant.errors import CorruptFile
from hearth.quant.ggml import Floats, Ggml
from hearth.quant.gguf import preflight
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.gguf.mixes import PLAIN
from hearth.quant.gguf.quantize import CHUNK_WEIGHTS, CHUNKS_AHEAD, QuantizePlan, TensorPlan
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
from hearth.quant.gguf.source import SourceFile, WeightReader
from hearth.quant.gguf.writer import padded
from hearth.quant.methods import Check, OnNote, OnProgress, Quantized
from hearth.quant.versions import installed_version

_COPY_BYTES = 4 << 20


def run(
    plan: QuantizePlan,
    target: Path,
    *,
    threads: int = 2,
    replace: bool = False,
    on_progress: OnProgress = lambda done, total, name: None,
    on_note: OnNote = lambda text: None,
    check: Check = lambda: None,
) -> Quantized:
    """Make the file `target` according to `plan`, and its manifest next to it.

    The file gets its name only when it is complete. Tensors that an earlier run wrote before it was
    stopped or killed are kept, and the result is identical byte for byte; see `quantize_file`.

    Args:
        threads: number of threads that pack, at least 1.
        replace: an existing file may be replaced.
        on_note: called with a sentence if an earlier run is resumed, or cannot be.
        check: raises to stop the work; complete tensors are kept.

    Raises:
        CannotQuantize: a weight is not a finite number, or the target is the source itself.
        CorruptFile: the source or the importance matrix changed meanwhile.
        BeingWritten, TargetExists, NoSpace, GgmlUnavailable: see the classes.
        OSError: a file cannot be read or written.
    """
    ggml = Ggml()
    files = plan.source.files
    _check_places(files, target)
    check_target(target, replace=replace)
    for kind in {tensor.type for tensor in plan.tensors if tensor.changes}:
        ggml.prepare(kind)
    sources = [file.path for file in files]
    matrices = [plan.matrix.path] if plan.matrix is not None else []
    source_stamps, matrix_stamps = stamps(sources), stamps(matrices)
    begin = {
        "request": {**_request(plan), "replace": replace},
        "size_bytes": plan.size_bytes,
        "made_of": {
            "source": source_stamps,
            "importance matrix": matrix_stamps,
            "options or version": [
                hashlib.sha256(plan.layout.header).hexdigest(),
                *_versions(ggml),
            ],
        },
    }
    try:
        with ExitStack() as leaving:
            partial = leaving.enter_context(open_partial(target, begin, check))
            if partial.note:
                on_note(partial.note)
            hashes = _SourceHashes(sources)
            leaving.callback(hashes.stop)
            _Work(plan, ggml, threads, on_progress, check).write(partial)
            partial.sync()
            source_hashes = hashes.result(check)
            check_unchanged(plan.source.header.path, sources, source_stamps)
            if plan.matrix is not None:
                check_unchanged(plan.matrix.path, matrices, matrix_stamps)
            _verify(partial.path, plan)
            check()
            check_target(target, replace=replace)
            # The old manifest describes the file that is about to be replaced.
            manifest_path(target).unlink(missing_ok=True)
            partial.finish()
    except (CannotQuantize, CorruptFile):
        discard(target)
        raise
    facts = _manifest(plan, target, partial.sha256, source_hashes, ggml)
    write_json(manifest_path(target), facts)
    return Quantized(target, manifest_path(target), plan.size_bytes, partial.sha256, facts)


class _Work:
    """Packs the tensors, in order."""

    def __init__(
        self, plan: QuantizePlan, ggml: Ggml, threads: int, on_progress: OnProgress, check: Check
    ) -> None:
        self._plan = plan
        self._ggml = ggml
        self._threads = max(1, threads)
        self._on_progress = on_progress
        self._check = check
        self._done = 0
        self._total = sum(tensor.source_bytes for tensor in plan.tensors)

    def write(self, partial: Partial) -> None:
        """Append the missing parts of `partial`: header, tensors, padding."""
        layout = self._plan.layout
        if not partial.parts:
            partial.write(layout.header)
            partial.end_part("header")
        written = partial.parts - 1
        self._done = sum(tensor.source_bytes for tensor in self._plan.tensors[:written])
        with ExitStack() as leaving:
            pool = leaving.enter_context(ThreadPoolExecutor(self._threads, "quantize"))
            leaving.callback(pool.shutdown, wait=True, cancel_futures=True)
            source = leaving.enter_context(self._plan.source.open())
            for tensor in self._plan.tensors[written:]:
                size = 0
                for data in self._packed(tensor, source, pool):
                    size += data.nbytes
                    partial.write(data.data)
                partial.write(bytes(padded(size, layout.alignment) - size))
                partial.end_part(tensor.name, share=self._done / self._total)
                source.done(tensor.name)

    def _packed(
        self, tensor: TensorPlan, source: WeightReader, pool: ThreadPoolExecutor
    ) -> Iterator[NDArray[np.uint8]]:
        """The data of one tensor. Chunks are packed in parallel and yielded in order."""
        waiting: deque[tuple[int, Future[NDArray[np.uint8]]]] = deque()
        importance = self._importance(tensor)
        for first, data in self._chunks(tensor, source):
            waiting.append((data.size, pool.submit(self._pack, tensor, first, data, importance)))
            if len(waiting) > self._threads * CHUNKS_AHEAD:
                yield self._take(tensor, waiting)
        while waiting:
            yield self._take(tensor, waiting)

    def _take(
        self, tensor: TensorPlan, waiting: deque[tuple[int, Future[NDArray[np.uint8]]]]
    ) -> NDArray[np.uint8]:
        size, future = waiting.popleft()
        packed = future.result()
        self._check()
        self._done += size
        self._on_progress(self._done, self._total, tensor.name)
        return packed

    def _importance(self, tensor: TensorPlan) -> Floats | None:
        """[experts, columns] float32, or None."""
        if not tensor.weighted or self._plan.matrix is None:
            return None
        values = self._plan.matrix.columns(tensor.name)
        return None if values is None else values.reshape(-1, tensor.row_length)

    def _chunks(
        self, tensor: TensorPlan, source: WeightReader
    ) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """(first row, bytes) of each run of whole rows; no run spans two experts."""
        rows_each = tensor.shape[1] if len(tensor.shape) > 1 else 1
        most = max(1, CHUNK_WEIGHTS // tensor.row_length)
        if not tensor.changes:
            most = max(1, _COPY_BYTES * tensor.rows // tensor.source_bytes)
        first = 0
        while first < tensor.rows:
            count = min(most, rows_each - first % rows_each)
            yield first, np.frombuffer(source.rows(tensor.name, first, count), dtype=np.uint8)
            first += count

    def _pack(
        self,
        tensor: TensorPlan,
        first: int,
        data: NDArray[np.uint8],
        importance: Floats | None,
    ) -> NDArray[np.uint8]:
        """Pack `data`, whole rows of `tensor` from row `first` on, into the new type. Runs in a
        thread of the pool.
        """
        try:
            if not tensor.changes:
                if not self._ggml.is_valid(tensor.source_type, data):
                    raise CannotQuantize("A value is no finite number.")
                return data
            rows = self._ggml.to_float(tensor.source_type, data, tensor.row_length)
            columns = None if importance is None else importance[first // tensor.shape[1]]
            return self._ggml.quantize_chunk(tensor.type, rows, columns)
        except CannotQuantize as error:
            raise type(error)(
                f"{tensor.name} of {tensor.path.name}, row {first:,} and on: {error.message}",
                error.hint or "The source is damaged: convert or download it again.",
                tensor=tensor.name,
            ) from error


class _SourceHashes:
    """SHA-256 of the source's files, computed while tensors are packed."""

    def __init__(self, paths: list[Path]) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, "source hash")
        self._hashes = self._pool.submit(lambda: [self._one(path) for path in paths])

    def _one(self, path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as stream:
            while not self._stop.is_set() and (data := stream.read(_COPY_BYTES)):
                digest.update(data)
        return digest.hexdigest()

    def result(self, check: Check) -> list[str]:
        """Wait for the digests of all files."""
        while True:
            check()
            try:
                return self._hashes.result(timeout=0.2)
            except TimeoutError:
                if self._hashes.done():
                    raise

    def stop(self) -> None:
        """Stop hashing; the digests are not needed any more."""
        self._stop.set()
        self._pool.shutdown(wait=True)


def _check_places(files: Sequence[SourceFile], target: Path) -> None:
    for file in files:
        if target.exists() and file.path.samefile(target):
            raise CannotQuantize(
                f"{target} is the source itself.", "Write to another name (--output)."
            )


def _request(plan: QuantizePlan) -> dict[str, Any]:
    """The request, from which the same plan can be made again."""
    if plan.request is not None:
        return dict(plan.request)
    requantize = any(one.changes and one.source_type not in PLAIN for one in plan.tensors)
    return {
        "method": "gguf",
        "source": str(plan.source.header.path),
        "type": plan.recipe.mix.name,
        "options": {
            "imatrix": str(plan.matrix.path) if plan.matrix is not None else None,
            "tensor": [str(override) for override in plan.recipe.overrides],
            "requantize": requantize,
        },
    }


def _verify(path: Path, plan: QuantizePlan) -> None:
    """Check that the new file is the planned one, and that it passes the check of all models."""
    file = preflight.check(path)
    expected = [(tensor.name, tensor.type) for tensor in plan.tensors]
    if file.size_bytes != plan.size_bytes or expected != [(t.name, t.type) for t in file.tensors]:
        raise CannotQuantize(
            f"The new file has {file.size_bytes:,} bytes and {len(file.tensors):,} tensors, not "
            f"the {plan.size_bytes:,} and {len(expected):,} that were planned.",
            "The disk may be failing: try another folder.",
        )


def _manifest(
    plan: QuantizePlan, target: Path, sha256: str, source_hashes: list[str], ggml: Ggml
) -> dict[str, Any]:
    matrix = plan.matrix
    hearth, llama_cpp, ggml_version = _versions(ggml)
    return {
        "format": 1,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": _request(plan)["method"],
        "source": {
            "name": plan.source.header.path.name,
            "type": plan.source.header.file_type_name,
            "files": [
                {"name": file.path.name, "size_bytes": file.size_bytes, "sha256": digest}
                for file, digest in zip(plan.source.files, source_hashes, strict=True)
            ],
        },
        "recipe": {
            "type": plan.recipe.mix.name,
            "overrides": [str(override) for override in plan.recipe.overrides],
            "imatrix": None
            if matrix is None
            else {
                "name": matrix.path.name,
                "sha256": _sha256(matrix.path),
                "dataset": matrix.dataset,
                "chunks": matrix.chunks,
            },
        },
        "result": {
            "name": target.name,
            "size_bytes": plan.size_bytes,
            "sha256": sha256,
            "bits_per_weight": round(plan.bits_per_weight, 3),
            "types": {kind.name: count for kind, count in plan.types.most_common()},
        },
        "versions": {
            "hearth": hearth,
            "llama-cpp-python": llama_cpp,
            "ggml": ggml_version,
        },
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _versions(ggml: Ggml) -> list[str | None]:
    """The versions of Hearth, llama-cpp-python and ggml."""
    return [installed_version("hearth-llm"), installed_version("llama-cpp-python"), ggml.version]
