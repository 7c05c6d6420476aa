"""The peak of anonymous memory while a folder of safetensors is quantized, for each method, from
the start of the job's process to its end.

    python benchmarks/quantize_memory.py [--layers 16] [--methods gptq,awq,best,hqq,…]
        [--samples 64] [--seq-len 512] [--threads N] [--folder MODEL]

Without --folder a model with random weights in the shape of Llama 3.2 1B, with that many layers, is
written to a temporary folder in BF16. A method holds one block in memory at a time, so that fewer
layers take less time but not less memory: two runs with different --layers show it. RssAnon of the
process is read every 20 ms; it does not include mapped files. Linux only.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from gguf_folder import write_folder
from hearth.app.library import quantize_job
from hearth.app.library.quantize_methods import all_methods
from model_shapes import SHAPES
from random_models import write_model

_EVERY_S = 0.02
_CALIBRATED = ("gptq", "awq", "best")


def random_folder(place: Path, layers: int) -> Path:
    """Llama 3.2 1B with `layers` layers, in BF16; its positions are not scaled."""
    shape = replace(SHAPES["llama-3.2-1b"], layers=layers, rope_stretch=1.0)
    file = write_model(shape, "f16", place / "model.gguf")
    folder = write_folder(file, place / f"llama-1b-{layers}-layers", "bf16")
    file.unlink()
    return folder


def measure(source: Path, method: str, asked: argparse.Namespace, target: Path) -> tuple[int, ...]:
    """Peak of RssAnon in bytes, and seconds of wall and processor time, of one job."""
    options = {"samples": asked.samples, "seq-len": asked.seq_len} if method in _CALIBRATED else {}
    question = quantize_job.question(
        method=method,
        source=str(source),
        type=method,
        options=options,
        target=target,
        replace=True,
        threads=asked.threads,
    )
    job = ("hearth.app.jobs.child", "hearth.app.library.quantize_job", "quantize")
    started, most, spent = time.monotonic(), 0, 0
    process = subprocess.Popen(
        [sys.executable, "-m", *job], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def look() -> None:
        nonlocal most, spent
        own = Path("/proc", str(process.pid))
        while process.poll() is None:
            try:
                status = (own / "status").read_text()
                times = (own / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                return
            for line in status.splitlines():
                if line.startswith("RssAnon:"):
                    most = max(most, int(line.split()[1]) * 1024)
            spent = (int(times[11]) + int(times[12])) // 100
            time.sleep(_EVERY_S)

    watch = threading.Thread(target=look)
    watch.start()
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        last = [json.loads(line) for line in process.stdout][-1]
    process.wait()
    watch.join()
    if "done" not in last:
        raise SystemExit(f"{method}: {last}")
    return most, round(time.monotonic() - started), spent


def main() -> None:
    every = [one.name for one in all_methods() if not one.suffix]
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--methods", default=",".join(every))
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    print(f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {asked}")
    with tempfile.TemporaryDirectory() as place:
        source = asked.folder or random_folder(Path(place), asked.layers)
        size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
        print(f"{source.name}: {size / 1e9:.2f} GB of safetensors", flush=True)
        for method in asked.methods.split(","):
            most, wall_s, spent_s = measure(source, method, asked, Path(place, "made"))
            print(
                f"| {method} | {most / 2**30:.2f} GiB | {wall_s:,} s | {spent_s:,} s |", flush=True
            )


if __name__ == "__main__":
    main()
