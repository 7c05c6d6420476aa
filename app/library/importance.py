"""Computes the importance matrix of a model, in a child process that runs the model on a text.

A matrix is stored in the cache, and used again for the same weights, text and runner.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from hearth.app.jobs.child import Reporter
from hearth.app.jobs.job import follow_job
from hearth.app.library.compare_quality import Sample
from hearth.app.paths import Paths, own_folder
from hearth.backends.errors import UnsupportedModel
from hearth.quant.fingerprint import WeightFile, fingerprint
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.gguf.imatrix import planned_path, weighed
from hearth.quant.gguf.quantize import QuantizePlan
from hearth.quant.gguf.quantize_method import dataset_of
from hearth.quant.methods import Check, OnNote

_VERSION: Final = 1
"""Version of the computation; matrices of other versions are computed again."""
_LOOK_S: Final = 0.2

OnWindow = Callable[[int, int], None]
"""Called with the number of windows of text done and the total number of windows."""


def calibration_text(options: Mapping[str, Any], source: Path) -> Sample:
    """The text of the option calibration, or a bundled text by default.

    The bundled text is not the one on which `source` is measured.

    Raises:
        CannotQuantize: the file is not UTF-8 text, or cannot be read.
    """
    if path := options.get("calibration"):
        try:
            return Sample(dataset_of(options), Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CannotQuantize(
                f"{path} cannot be read as UTF-8 text: {error}.", "Name another (--calibration)."
            ) from error
    texts = files("hearth.assets") / "texts"
    own = texts / "calibration.txt"
    is_guide = source.is_relative_to(str(files("hearth.assets") / "guide"))
    other = "sample.txt" if is_guide else "guide.txt"
    chosen = own if own.is_file() else texts / other
    return Sample(dataset_of(options), chosen.read_text(encoding="utf-8"))


def matrix_for(
    plan: QuantizePlan,
    options: Mapping[str, Any],
    paths: Paths,
    *,
    threads: int,
    on_window: OnWindow,
    on_note: OnNote,
    check: Check,
) -> Path:
    """The file of the importance matrix of the source of `plan`, computed unless it is cached.

    Args:
        options: options of the method: calibration, and backend: "llamacpp", "native" or "auto".
        check: raises an exception to stop; the sums so far are then lost.

    Raises:
        CannotQuantize: the text, or the model's values for it, cannot be used.
        HearthError: the model cannot be run.
        OSError: a file cannot be read or written.
    """
    source = plan.source.header.path
    runner = options.get("backend") or "auto"
    if runner == "auto":
        runner = "native" if plan.source.converts else "llamacpp"
    if runner == "llamacpp" and plan.source.converts:
        raise UnsupportedModel(
            f"llama.cpp cannot run the folder {source.name}, so it makes no importance matrix.",
            "Leave out --backend: the native runner makes it.",
        )
    text = calibration_text(options, source)
    digest = hashlib.blake2b(f"{_VERSION} {runner}\n".encode(), digest_size=12)
    digest.update(fingerprint(WeightFile(one.path, 0) for one in plan.source.files).encode())
    digest.update(text.text.encode())
    folder = own_folder(own_folder(paths.cache / "imatrix") / digest.hexdigest())
    target = planned_path(plan.source.header, folder)
    if target.is_file():
        on_note("The importance matrix was made before.")
        return target
    question = {
        "runner": runner,
        "source": str(source),
        "names": sorted(weighed(plan.source.header.all_tensors)),
        "text": text.text,
        "dataset": text.name,
        "threads": threads,
        "target": str(target),
    }
    on_window(0, 1)
    asyncio.run(_made(question, on_window, check, own_folder(paths.log)))
    return target


async def _made(
    question: dict[str, Any], on_window: OnWindow, check: Check, log_dir: Path
) -> dict[str, Any]:
    """The answer of the child process, which is killed if `check` raises an exception."""

    def on_progress(values: dict[str, Any]) -> None:
        on_window(values["done"], values["total"])

    running = asyncio.create_task(follow_job(make_matrix, question, on_progress, log_dir))
    try:
        while not running.done():
            check()
            await asyncio.wait((running,), timeout=_LOOK_S)
        return await running
    finally:
        running.cancel()
        await asyncio.wait((running,))


def make_matrix(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """In the child process: run the model on the text, and write the sums.

    Args:
        question: {"runner", "source", "names": names of tensors, "text", "dataset", "threads",
            "target"}.
    """
    from hearth.quant.gguf.imatrix_sums import Sums

    name = f"hearth.backends.{question['runner']}.importance"

    def on_window(done: int, total: int) -> None:
        reporter.progress(done=done, total=total)
        reporter.check()

    sums = Sums(question["names"])
    windows: int = import_module(name).collect(
        Path(question["source"]),
        question["text"],
        sums,
        threads=question["threads"],
        on_window=on_window,
    )
    sums.write(Path(question["target"]), dataset=question["dataset"], windows=windows)
    return {"windows": windows, "tensors": len(sums)}
