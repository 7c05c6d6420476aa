"""The effect of an importance matrix: perplexity of the same type with one and without.

    python benchmarks/importance_matrix.py --guide [--types Q4_K_M ...] [--tokens 16384]
    python benchmarks/importance_matrix.py MODEL --calibration FILE --text FILE [--types ...]

Each type is made from MODEL by the job of `hearth quantize`, with `--imatrix off` and `auto`, into
a temporary folder, and is scored as that job scores its result
(`hearth.app.library.compare_quality`), on the first tokens of a text that is not the calibration
text. With --guide the model is the bundled one, and both texts are conversations of its corpus with
different seeds. Changes and their standard errors are paired token by token: against MODEL, and
with the matrix against without. The root mean square of the changes of log probabilities shows how
far a model is from its source, even where perplexity falls by accident. Types that need a matrix
have no row without one.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import platform
import random
import tempfile
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev

from hearth.app.host_link import HostLink
from hearth.app.jobs.job import run_job
from hearth.app.library import quantize_job
from hearth.app.library.compare_quality import Quality, Sample, measure_on, perplexity_change
from hearth.assets.guide.corpus.mixture import conversation
from hearth.backends.contract.models import ModelSpec
from hearth.backends.host.client import HostPlace
from hearth.quant.gguf.errors import NeedsImportanceMatrix
from hearth.quant.gguf.quantize_method import GgufMethod

TYPES = ("Q4_K_M", "Q3_K_M", "IQ3_XXS", "Q2_K", "IQ2_XS")
GUIDE_BYTES = 90_000


def conversations(seed: int) -> str:
    """Conversations of the bundled model's corpus, with its special tokens."""
    rng, parts, size = random.Random(seed), [], 0
    while size < GUIDE_BYTES:
        turns = "".join(f"<|{role}|>{text}<|end|>" for role, text in conversation(rng))
        parts.append(turns)
        size += len(turns)
    return "".join(parts)


def made(source: Path, kind: str, matrix: str, calibration: Path, folder: Path) -> Path | None:
    """The file of a type; None if the type needs a matrix and `matrix` allows none."""
    options = {"imatrix": matrix, "calibration": str(calibration), "requantize": True}
    try:
        GgufMethod().plan(source, kind, options)
    except NeedsImportanceMatrix:
        return None
    question = quantize_job.question(
        method="gguf",
        source=str(source),
        type=kind,
        options=options,
        target=folder / f"{kind}-{matrix}.gguf",
        replace=True,
    )
    run_job(quantize_job.quantize, question, lambda values: None)
    return folder / f"{kind}-{matrix}.gguf"


def distortion(before: Quality, after: Quality) -> str:
    """Root mean square of the change of a token's log probability, and its standard error."""
    squares = [(b - a) ** 2 for a, b in zip(before.losses, after.losses, strict=True)]
    rms = fmean(squares) ** 0.5
    error = stdev(squares) / len(squares) ** 0.5 / (2 * rms)
    return f"{rms:.3f} ± {error:.3f}"


def row(
    title: str, path: Path, found: Quality, before: Quality | None, without: Quality | None
) -> str:
    """A row of the table: `before` is the source, `without` the same type without a matrix."""
    cells = [title, f"{path.stat().st_size / 1e6:,.1f}"]
    cells.append(f"{found.perplexity:.3f} ± {found.perplexity_error:.3f}")
    for other in (before, without):
        change, error = perplexity_change(other, found) if other else (0.0, 0.0)
        cells.append(f"{change:+.2%} ± {error:.2%}" if other else "")
    cells.append(distortion(before, found) if before else "")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--guide", action="store_true", help="the bundled model and its corpus")
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--types", nargs="+", default=list(TYPES))
    parser.add_argument("--tokens", type=int, default=16_384)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hearth-imatrix-") as name:
        folder = Path(name)
        os.environ["HEARTH_HOME"] = str(folder / "home")  # Its cache contains no matrix.
        calibration = folder / "calibration.txt"
        if args.guide:
            source = Path(str(files("hearth.assets") / "guide" / "guide.f16.gguf"))
            calibration.write_text(conversations(1))
            sample = Sample("conversations of seed 2", conversations(2), marked=True)
        elif args.model and args.calibration and args.text:
            source = args.model
            calibration.write_bytes(args.calibration.read_bytes())
            sample = Sample(args.text.name, args.text.read_text())
        else:
            parser.error("name MODEL, --calibration and --text, or --guide")
        digests = [
            hashlib.sha256(text).hexdigest()[:12]
            for text in (calibration.read_bytes(), sample.text.encode())
        ]
        print(
            f"{platform.machine()}, {os.cpu_count()} CPUs, {datetime.date.today()}; calibration "
            f"{calibration.stat().st_size:,} bytes ({digests[0]}), measured on {sample.name} "
            f"({digests[1]})\n"
        )
        titles = ("type", "MB", "perplexity", "against the source", "matrix against none")
        print("| " + " | ".join((*titles, "RMS of Δ log p against the source")) + " |")
        print("|---|" + "---:|" * 5)
        for private in ("run", "log", "cache"):
            (folder / private).mkdir(mode=0o700)
        place = HostPlace(folder / "run", folder / "log", folder / "cache")
        with HostLink(place, host_idle_s=0.0) as link:

            def measured(path: Path) -> Quality:
                async def work() -> Quality:
                    spec = ModelSpec(str(path), path.stem)
                    return await measure_on(link.connection, spec, sample, most_tokens=args.tokens)

                return link.run(work())

            before = measured(source)
            print(row(source.stem, source, before, None, None), flush=True)
            for kind in args.types:
                without: Quality | None = None
                for matrix in ("off", "auto"):
                    path = made(source, kind, matrix, calibration, folder)
                    if path is None:
                        continue
                    found = measured(path)
                    title = f"{kind}{' with a matrix' if matrix == 'auto' else ''}"
                    print(row(title, path, found, before, without), flush=True)
                    without = found
                    path.unlink()
        print(f"\n{before.scored_tokens:,} tokens scored, windows of {before.window_tokens}")


if __name__ == "__main__":
    main()
