"""Quantizing a GGUF file compared with llama.cpp's own tool: time, and whether tensors are equal.

    python benchmarks/beside_llama_quantize.py LLAMA_QUANTIZE FILE [--types Q4_0 ...] [--rounds 3]

FILE is in F16, BF16 or F32. Each type is made by `hearth quantize` and by the program
LLAMA_QUANTIZE, alternating, with one thread each, into a temporary folder next to FILE. Speed is
the median over the rounds of llama-quantize's seconds divided by Hearth's: 1.1 means that Hearth is
a tenth faster. It is given for wall time and for processor time. Hearth also hashes the source and
the result, checks every weight, and syncs the file to the disk, in threads next to the one that
packs; start-up is included. The exit code is 1 if the ratio of wall times is less than 0.9. To
build the tool: `cmake --build BUILD --target llama-quantize` in vendor/llama.cpp of the source
package of llama-cpp-python.
"""

from __future__ import annotations

import argparse
import datetime
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from hearth.backends.machine.cpu import cpu_name
from hearth.quant.gguf.preflight import check

BAR: Final = 0.9


def seconds(command: list[str]) -> tuple[float, float]:
    """Wall-clock and processor time of `command`."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return wall, spent


def tensors(path: Path) -> list[tuple[str, bytes]]:
    """Names and bytes of all tensors, by name."""
    header, found = check(path), []
    with path.open("rb") as stream:
        for tensor in sorted(header.tensors, key=lambda one: one.name):
            stream.seek(header.data_offset + tensor.offset)
            found.append((tensor.name, stream.read(tensor.nbytes)))
    return found


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tool", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--types", nargs="+", default=["Q4_0", "Q6_K", "Q4_K_M"])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    cores = f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    print(f"{cpu_name()}, {cores}, {args.file.name}, {datetime.date.today()}, one thread each\n")
    print("| type | ours, s | theirs, s | speed | ours, CPU s | theirs | speed by CPU | tensors |")
    print("|---|" + "---:|" * 6 + "---|")
    slowest = 9.0
    with tempfile.TemporaryDirectory(dir=args.file.parent, prefix="quantize-") as folder:
        ours, theirs = Path(folder, "ours.gguf"), Path(folder, "theirs.gguf")
        for kind in args.types:
            hearth = [
                str(Path(sys.executable).with_name("hearth")),
                "quantize",
                str(args.file),
                kind,
            ]
            hearth += ["-o", str(ours), "--no-check", "--imatrix", "off", "--threads", "1", "-y"]
            rounds = []
            for _ in range(args.rounds):
                rounds.append(
                    (
                        seconds(hearth),
                        seconds([str(args.tool), str(args.file), str(theirs), kind, "1"]),
                    )
                )
            same = "the same" if tensors(ours) == tensors(theirs) else "DIFFERENT"
            cells, speeds = [], []
            for what in (0, 1):
                speeds.append(median(other[what] / own[what] for own, other in rounds))
                cells += [f"{median(one[side][what] for one in rounds):.1f}" for side in (0, 1)]
                cells.append(f"{speeds[what]:.2f}")
            print(f"| {kind} | " + " | ".join(cells) + f" | {same} |", flush=True)
            slowest = min(slowest, speeds[0])
    return 0 if slowest >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
