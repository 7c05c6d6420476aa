"""The memory calculator's prediction for a worker, compared with what the worker uses.

    python benchmarks/memory_fit.py [--models FOLDER] [--sdist FILE] [--full | --change]
        [--only NAME ...] [--kv TYPE ...] [--contexts N ...] [--filled N] [--backend native ...]

Three shapes with random weights, contexts of 2,048, 8,192 and 16,384 tokens, keys and values in f16
and q8_0: each is loaded by its own host, as a front end does it, gets one prompt of random tokens
and decodes 16; then VmHWM of the worker, its peak memory, is read. The prediction is what
`hearth.backends.llamacpp.footprint` calculates from the file's header and the settings.

The pool is static, so that the keys and values of the whole context are zeroed and in memory from
the start, and the prompt fills the first 2,048 tokens of it (--filled). For the tokens beyond, only
the attention mask is missing, 1 KiB per token, and it is missing in the prediction too. Flash
attention stays on. With --full the pool grows, as it does by default, and prompts fill all of the
context, in f16: that takes half an hour, and its peak is the moment at which the pool grew last.
With --change attention is left to the worker, in f16, and it decodes until it has changed to the
other kind, which copies the contents of the pool; cases in which it never changes are skipped.

With --backend native the workers are those of the native runner, and the prediction, in the column
of the weights, is the total of `hearth fit` for them (`hearth.backends.native.footprint`, and its
base).

The exit code is 1 if a prediction is off by more than 5 %.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

TOOLS = Path(__file__).resolve().parent.parent / "tools"
sys.path.insert(0, str(TOOLS))

import psutil  # noqa: E402

import vocabularies  # noqa: E402
from hearth.app.host_link import HostLink  # noqa: E402
from hearth.app.library.fit import NATIVE_BASE_BYTES, NATIVE_TOKEN_BYTES  # noqa: E402
from hearth.app.machine import this_machine  # noqa: E402
from hearth.backends.contract.events import Finished  # noqa: E402
from hearth.backends.contract.models import (  # noqa: E402
    BackendName,
    KvType,
    ModelSettings,
    ModelSpec,
)
from hearth.backends.contract.requests import Request  # noqa: E402
from hearth.backends.contract.sampling import SamplingParams  # noqa: E402
from hearth.backends.host.client import HostPlace  # noqa: E402
from hearth.backends.llamacpp.attention import heads_of, measured  # noqa: E402
from hearth.backends.llamacpp.footprint import memory_of, plan_for  # noqa: E402
from hearth.backends.machine.memory import available_bytes  # noqa: E402
from hearth.backends.machine.threads import usable_cores  # noqa: E402
from hearth.backends.native.footprint import needed_bytes as native_bytes  # noqa: E402
from hearth.quant.gguf import preflight  # noqa: E402
from hearth.quant.memory import MemoryUse  # noqa: E402
from hearth.quant.memory_shape import shape_of  # noqa: E402
from model_shapes import SHAPES, Shape  # noqa: E402
from random_models import FileType, write_model  # noqa: E402

CONTEXTS: Final = (2048, 8192, 16_384)
KV_TYPES: Final[tuple[KvType, ...]] = ("f16", "q8_0")
FILLED: Final = 2048
FIRST_FILLED: Final = 64
"""Tokens of the worker before those that are measured."""
NEW_TOKENS: Final = 16
UNTIL_CHANGED: Final = 256
BAR: Final = 0.05
MODELS: Final[dict[str, tuple[Shape, FileType]]] = {
    "0.13b q8_0": (
        Shape(
            architecture="llama",
            layers=30,
            width=576,
            heads=9,
            kv_heads=3,
            head_length=64,
            feed_forward=1536,
            context=32_768,
            rope_base=1e5,
            vocabulary="gpt-2",
            tokens=50_304,
            tied=True,
        ),
        "q8_0",
    ),
    "qwen3-0.6b q4_k_m": (SHAPES["qwen3-0.6b"], "q4_k_m"),
    "llama-3.2-1b q4_k_m": (SHAPES["llama-3.2-1b"], "q4_k_m"),
}


@dataclass(frozen=True)
class Case:
    """The model and settings of one worker."""

    model: str
    context: int
    kv_type: KvType
    filled: int
    changes: bool = False
    """Attention may switch kinds, and enough tokens are decoded for that."""
    backend: BackendName = "llamacpp"

    @property
    def new_tokens(self) -> int:
        """Number of tokens to decode, the last of `filled`."""
        return UNTIL_CHANGED if self.changes else NEW_TOKENS

    @property
    def settings(self) -> ModelSettings:
        """One session, with a static pool, or a growing one if the whole context is filled."""
        is_full = self.filled == self.context
        return ModelSettings(
            context=self.context,
            kv_type=self.kv_type,
            max_sessions=1,
            kv_pool="grow" if is_full else "static",
            flash_attention=None if self.changes else True,
            keep_alive_s=60,
        )


def cases(
    *, full: bool, changes: bool, backend: BackendName, contexts: Sequence[int], filled: int
) -> Iterator[Case]:
    """All rows of the table."""
    for model in MODELS:
        for context in contexts[1:] if changes else contexts:
            for kv_type in KV_TYPES[:1] if full or changes else KV_TYPES:
                tokens = context if full else min(context, filled)
                yield Case(model, context, kv_type, tokens, changes, backend)


def is_never_changed(path: Path, case: Case, cache: Path) -> bool:
    """Whether flash attention always pays here, as measured by an earlier worker."""
    heads = heads_of(preflight.check(path))
    if heads is None:
        return True
    return measured(heads, case.kv_type, usable_cores(), cache).flash_pays


def predicted(path: Path, case: Case) -> MemoryUse:
    """The prediction from the header and the memory that is free now."""
    header = preflight.check(path)
    if case.backend == "native":
        needed = native_bytes(path, case.settings, scores=False)
        vocabulary = NATIVE_TOKEN_BYTES * shape_of(header).vocabulary
        return MemoryUse(needed, 0, 0, 0, 0, 0, vocabulary, NATIVE_BASE_BYTES, 0, 0)
    free_bytes = available_bytes()
    plan = plan_for(header, case.settings, free_bytes)
    return memory_of(
        header,
        plan,
        tokens=case.filled,
        cpu_flags=this_machine().cpu_flags,
        available_bytes=free_bytes,
    )


def measured_bytes(path: Path, case: Case, cache: Path) -> int:
    """VmHWM of a worker after one prompt and its answer."""
    spec = ModelSpec(str(path), case.model, case.backend, settings=case.settings)
    with tempfile.TemporaryDirectory(prefix="hearth-fit-") as folder:
        run, log = Path(folder, "run"), Path(folder, "log")
        for private in (run, log):
            private.mkdir(mode=0o700)
        with HostLink(HostPlace(run, log, cache), host_idle_s=0.0) as link:
            words = min(link.info(spec).vocab_size, 40_000)
            drawn = random.Random(case.context).choices(
                range(100, words), k=case.filled - case.new_tokens
            )
            request = Request(
                token_ids=tuple(drawn),
                max_tokens=case.new_tokens,
                ignore_eos=True,
                sampling=SamplingParams(temperature=0),
            )
            with link.stream(spec, request) as events:
                *_, last = events
            if not isinstance(last, Finished) or last.usage.completion_tokens != case.new_tokens:
                raise RuntimeError(f"{case} ended with {last}")
            (worker,) = link.stats().workers
            peak_bytes = high_water_bytes(worker.pid)
            host = psutil.Process(worker.pid).parent()
            link.unload(worker.name)
        if host is not None:  # It ends by itself, after which its folder can be deleted.
            psutil.wait_procs([host], timeout=60)
        return peak_bytes


def high_water_bytes(pid: int) -> int:
    """The peak resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"process {pid} says nothing of its memory")


def written(folder: Path, name: str, sdist: Path | None) -> Path:
    """The file of a model, created now if missing."""
    shape, file_type = MODELS[name]
    path = folder / f"{name.replace(' ', '-')}.gguf"
    if not path.is_file():
        vocabulary = vocabularies.from_sdist(shape.vocabulary, sdist=sdist)
        write_model(shape, file_type, path, vocab=vocabulary)
    return path


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, help="where the models are, and stay")
    parser.add_argument("--sdist", type=Path, help="source package, in place of a download")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--full", action="store_true", help="fill all of a pool that grows")
    kind.add_argument("--change", action="store_true", help="let attention change")
    parser.add_argument("--kv", nargs="+", choices=KV_TYPES, default=list(KV_TYPES))
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--contexts", nargs="+", type=int, default=list(CONTEXTS))
    parser.add_argument("--filled", type=int, default=FILLED, help="tokens of each prompt")
    parser.add_argument(
        "--backend", nargs="+", choices=("llamacpp", "native"), default=["llamacpp"]
    )
    args = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, {datetime.date.today()}, MiB\n")
    parts = (
        "weights",
        "repacked",
        "kv",
        "compute",
        "outputs",
        "vocabulary",
        "base",
        "growing",
        "transposing",
    )
    columns = ("runner", "model", "context", "filled", "KV", *parts, "predicted", "VmHWM", "ratio")
    print("| " + " | ".join(columns) + " |")
    print("|---|---|" + "---:|" * 2 + "---|" + "---:|" * (len(columns) - 5))
    worst = 0.0
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hearth-fit-")))
        folder = args.models or temporary
        # Run the self-test and measure attention once, not in a worker that is measured.
        cache = temporary / "cache"
        known: set[tuple[str, str, KvType]] = set()
        every = [
            case
            for backend in args.backend
            for case in cases(
                full=args.full,
                changes=args.change,
                backend=backend,
                contexts=args.contexts,
                filled=args.filled,
            )
        ]
        for case in every:
            if case.model not in args.only or case.kv_type not in args.kv:
                continue
            path = written(folder, case.model, args.sdist)
            if (case.backend, case.model, case.kv_type) not in known:
                measured_bytes(path, replace(case, filled=FIRST_FILLED), cache)
                known.add((case.backend, case.model, case.kv_type))
            if case.changes and is_never_changed(path, case, cache):
                print(f"| {case.backend} | {case.model} | never changes here |", flush=True)
                continue
            use, peak_bytes = predicted(path, case), measured_bytes(path, case, cache)
            total = use.most if case.changes else use.total
            ratio = total / peak_bytes
            worst = max(worst, abs(ratio - 1))
            figures = [f"{getattr(use, part) / (1 << 20):,.0f}" for part in parts]
            sums = (f"{total / (1 << 20):,.0f}", f"{peak_bytes / (1 << 20):,.0f}")
            row = (case.backend, case.model, f"{case.context:,}", f"{case.filled:,}", case.kv_type)
            print("| " + " | ".join((*row, *figures, *sums, f"{ratio:.3f}")) + " |", flush=True)
    print(f"\nat most {worst:.1%} off; the bar is {BAR:.0%}")
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
