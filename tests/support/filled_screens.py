"""Scripted contents of the screens in snapshots, the same on every machine."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from hearth.app.doctor import Finding
from hearth.app.endpoint_control import Launch
from hearth.app.jobs.child import Stopped
from hearth.app.library.bandwidth import Bandwidth
from hearth.app.library.catalogue import Catalogue, Entry
from hearth.app.library.downloads import DownloadItem
from hearth.app.library.fit import Fit, Room, Speed, State
from hearth.app.library.hub import HubModel, Repository, RepositoryFile
from hearth.app.library.hub_files import offer
from hearth.app.library.local import LocalModel
from hearth.app.library.menu import Menu
from hearth.app.server.logs import REQUESTS_LOG, RequestLog
from hearth.backends.contract.events import Prompt
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.errors import ErrorInfo
from hearth.quant.errors import HearthError
from hearth.quant.memory import MemoryUse
from hearth.quant.methods import Option, Plan, Target
from scripted import Script, ScriptedModel

GB: Final = 10**9
_SPEED: Final = Bandwidth(26.9e9, 8, "a processor", "2026-01-01")
_ROOM: Final = Room(24 * GB, 32 * GB, 180 * GB, bandwidth=_SPEED)

BUNDLED_BYTES: Final = {"guide": 8_500_000, "guide-draft": 2_000_000}


def models() -> list[LocalModel]:
    """Models of every kind; the library displays the home folder as ~."""
    home = Path.home()
    return [
        LocalModel(
            "guide",
            home / "hearth/assets/guide/guide.f16.gguf",
            "bundled",
            8_500_000,
            "F16",
            "llama",
            4_200_000,
            2_048,
        ),
        LocalModel(
            "Qwen3-4B-Instruct-2507-Q4_K_M",
            home / ".cache/huggingface/hub/models--unsloth--Qwen3-4B-Instruct-2507-GGUF/snapshots/"
            "a06e946bb6b655725eafa393f4a9745d460374c9/Qwen3-4B-Instruct-2507-Q4_K_M.gguf",
            "huggingface",
            2_497_281_120,
            "Q4_K_M",
            "qwen3",
            4_022_000_000,
            262_144,
            repo="unsloth/Qwen3-4B-Instruct-2507-GGUF",
        ),
        LocalModel(
            "Mistral-Small-3.2-24B-Instruct-2506-UD-Q4_K_XL",
            home / ".lmstudio/models/unsloth/Mistral-Small-3.2/Mistral-Small-3.2-24B.gguf",
            "lmstudio",
            14_500_000_000,
            "Q4_K_M",
            "llama",
            23_600_000_000,
            131_072,
            repo="unsloth/Mistral-Small-3.2-24B-Instruct-2506-GGUF",
        ),
        LocalModel(
            "notes-bf16",
            home / ".local/share/hearth/models/notes-bf16.gguf",
            "library",
            1_192_134_784,
            "BF16",
            "qwen3",
            596_000_000,
            40_960,
        ),
        LocalModel(
            "half-a-download",
            home / ".local/share/hearth/models/half-a-download.gguf",
            "library",
            734_003_200,
            error="half-a-download.gguf ends before its last tensor: 734,003,200 of 1,117,320,736 "
            "bytes are there.",
        ),
        LocalModel("study", Path("study"), "remote", 0, url="http://192.168.1.20:4242/v1"),
    ]


def last_used(_: object, model: LocalModel) -> float:
    """Unix time of the last chat with `model`: noon of a day, in any time zone; 0: none."""
    return time.mktime((2026, 1, 1, 12, 0, 0, 0, 0, -1)) if model.name == "guide" else 0.0


def _entry(name: str, title: str, repo: str, weights: int, active: int, licence: str) -> Entry:
    sizes = {"Q4_K_M": round(weights * 0.61), "Q8_0": round(weights * 1.06)}
    summary = f"{title} answers, reasons and writes code in many languages."
    return Entry(
        name,
        title,
        repo,
        "chat",
        weights,
        active,
        licence,
        131_072,
        None,
        sizes,
        "Q4_K_M",
        summary,
    )


_ENTRIES: Final = (
    _entry("small-1b", "Small 1B", "maker/Small-1B-GGUF", GB, GB, "apache-2.0"),
    _entry("medium-8b", "Medium 8B", "maker/Medium-8B-it-GGUF", 8 * GB, 8 * GB, "gemma"),
    _entry(
        "experts-30b-a3b-instruct",
        "Experts 30B",
        "some-organisation/Experts-30B-A3B-Instruct-2507-GGUF",
        30 * GB,
        3 * GB,
        "apache-2.0",
    ),
    _entry("large-70b", "Large 70B", "maker/Large-70B-GGUF", 70 * GB, 70 * GB, "llama3.3"),
)
CATALOGUE: Final = Catalogue(_ENTRIES, {entry.name: entry for entry in _ENTRIES})

_CHANGED: Final = datetime(2026, 1, 1, tzinfo=UTC)
FOUND: Final = [
    HubModel("maker/Medium-8B-GGUF", 1_204_331, 912, False, "apache-2.0", _CHANGED, 8 * GB),
    HubModel("maker/Gated-27B-it-GGUF", 88_210, 140, True, "gemma", _CHANGED, 27 * GB),
    HubModel(
        "some-organisation/Experts-30B-A3B-Instruct-2507-GGUF",
        5_310,
        7,
        False,
        "",
        _CHANGED,
        None,
    ),
]
DOWNLOADS: Final = (
    DownloadItem(
        "1",
        "some-organisation/Experts-30B-A3B-Instruct-2507-GGUF:Q4_K_M",
        "running",
        "downloading",
        "Experts-30B-A3B-Instruct-2507-Q4_K_M.gguf",
        7_300_000_000,
        18_600_000_000,
        38_400_000.0,
        295.0,
        None,
    ),
    DownloadItem(
        "2",
        "maker/Medium-8B-GGUF:Q8_0",
        "paused",
        "",
        "",
        1_100_000_000,
        8_500_000_000,
        None,
        None,
        ErrorInfo("disk_full", "The disk is full.", "Make room, then let it go on with Space."),
    ),
    DownloadItem(
        "3", "maker/Small-1B-GGUF:Q4_K_M", "waiting", "", "", 0, 610_000_000, None, None, None
    ),
)


def fit_of(size_bytes: int, room: Room = _ROOM) -> Fit:
    """How a file of this size fits a machine of 32 GB, by a rule for snapshots."""
    needed = size_bytes + 1_300_000_000
    state: State = "fits" if needed < 18 * GB else "tight" if needed < 24 * GB else "cannot"
    left = (room.free_bytes - needed) / GB
    reasons = {
        "fits": f"It leaves {left:.1f} GB for everything else.",
        "tight": "While it loads, it takes more than is free.",
        "cannot": f"It needs {needed / GB:.1f} GB; 24.0 GB of 32.0 GB are free.",
    }
    use = MemoryUse(size_bytes, 0, 1_000_000_000, 0, 200_000_000, 0, 0, 100_000_000, 0, 0)
    speed = Speed(_SPEED.bytes_per_s / size_bytes, 1.0, _SPEED.source)
    largest = 131_072 if state == "fits" else 8_192
    return Fit(state, reasons[state], use, 8_192, largest, "f16", room, size_bytes, speed)


def a_menu() -> Menu:
    """A gated repository with more quants than fit into a small terminal, and a refused file."""
    quants = {
        "IQ2_M": 2.9, "Q2_K": 3.2, "IQ3_XS": 3.5, "Q3_K_S": 3.7, "Q3_K_M": 4.0, "IQ4_XS": 4.4,
        "Q4_K_S": 4.7, "Q4_K_M": 5.0, "Q5_K_S": 5.6, "Q5_K_M": 5.9, "Q6_K": 6.7, "Q8_0": 8.7,
        "BF16": 17.1, "F32": 32.1,
    }  # fmt: skip
    files = [
        RepositoryFile(f"model-{name}.gguf", round(size * GB), f"{at:064x}", f"{at:040x}")
        for at, (name, size) in enumerate(quants.items())
    ]
    files.append(RepositoryFile("pytorch_model.bin", 16 * GB, "e" * 64, "e" * 40))
    repository = Repository(
        "some-organisation/Medium-8B-Instruct-GGUF", "main", "a" * 40, True, "gemma",
        tuple(files), 8 * GB, 131_072,
    )  # fmt: skip
    offered = offer(repository)
    fits = {choice.name: fit_of(choice.size_bytes) for choice in offered.choices}
    return Menu(repository, offered, fits, "Q4_K_M")


FINDINGS: Final = (
    Finding("python", "ok", "CPython 3.12.4 on Linux-6.8.0-x86_64-with-glibc2.39"),
    Finding("packages", "ok", "textual 8.2.8, click 8.1.8, huggingface_hub 1.3.0"),
    Finding(
        "processor",
        "ok",
        "a processor with 8 cores and 16 threads, of which 8 may be used; avx2, fma, f16c; "
        "24.0 GB of 32.0 GB are free",
    ),
    Finding(
        "llama.cpp",
        "warning",
        "It is built for any processor, not for this one, which has AVX-512.",
        "Build it for this machine:\nhearth doctor --rebuild",
    ),
    Finding("disk", "fault", "1.2 GB free", "Make room, or set HEARTH_HOME to another folder."),
    Finding("settings", "ok", "settings.toml sets 3 of 60"),
    Finding("models", "ok", "6 models, of which 1 is damaged"),
    Finding("host", "ok", "runs with 3 models"),
)


@dataclass(frozen=True, slots=True)
class ScriptedPlan:
    """A `methods.Plan` for a type with that many bits per weight."""

    bits_per_weight: float
    source_bytes: int = 8_500_000
    source_bits_per_weight: float = 16.0

    @property
    def size_bytes(self) -> int:
        return round(self.source_bytes * self.bits_per_weight / self.source_bits_per_weight)

    def memory_bytes(self, context: int, kv_type: str = "f16") -> int:
        return self.size_bytes + context * 1_024

    def facts(self, *, tensors: bool = False) -> dict[str, Any]:
        return {"types": {"F32": 25, "Q6_K": 12, "Q4_K": 62}}


class ScriptedMethod:
    """A `methods.Method` with a few types, one of which it cannot make."""

    name = "gguf"
    title = "GGUF"
    about = "The types of llama.cpp."
    suffix = ".gguf"
    options: tuple[Option, ...] = (
        Option("imatrix", "file", "An importance matrix of the model: fewer bits hurt less."),
        Option("tensor", "texts", "PATTERN=TYPE: tensors whose name matches get that type."),
        Option("requantize", "flag", "Pack weights again that are quantized already."),
    )
    _TARGETS: Final = {
        "Q8_0": (8.5, "hardly a difference to be measured"),
        "Q6_K": (6.6, "a difference to be measured, not felt"),
        "Q5_K_M": (5.7, "very good"),
        "Q4_K_M": (4.9, "good: what most people take"),
        "Q3_K_M": (3.9, "loses visibly"),
        "IQ2_XS": (2.4, "loses very much; needs an importance matrix"),
    }

    def targets(self) -> list[Target]:
        return [Target(name, about) for name, (_, about) in self._TARGETS.items()]

    def target_named(self, name: str, source: Path) -> str:
        return name

    def takes(self, source: Path) -> bool:
        return True

    def plan(self, source: Path, target: str, options: Mapping[str, Any]) -> Plan:
        if target == "IQ2_XS":
            why = "IQ2_XS needs an importance matrix, or most of the model would be lost."
            raise HearthError(why, "Name one in the options.")
        return ScriptedPlan(self._TARGETS[target][0])

    def run(self, plan: Plan, path: Path, **_: Any) -> Any:
        raise NotImplementedError("A job does it in a process of its own.")


class ScriptedJob:
    """Replaces `Job`: reports that a third is done, and writes a file when it is released."""

    may_end: asyncio.Event

    def __init__(self, question: Mapping[str, Any]) -> None:
        self._question = question
        self._is_stopped = False

    @classmethod
    async def start(cls, _: object, question: Mapping[str, Any], *__: object) -> ScriptedJob:
        return cls(question)

    async def updates(self) -> AsyncIterator[dict[str, Any]]:
        yield {
            "done": 34,
            "total": 100,
            "tensor": "blk.5.ffn_gate.weight",
            "eta_s": 7.0,
            "note": "",
        }
        await self.may_end.wait()

    async def result(self) -> dict[str, Any]:
        if self._is_stopped:
            raise Stopped("The job was stopped.")
        size = ScriptedPlan(4.9).size_bytes
        a_file(Path(self._question["target"]), size)
        return {"wall_s": 11.0, "size_bytes": size}

    def stop(self) -> None:
        self._is_stopped = True
        self.may_end.set()

    async def close(self) -> None:
        pass


def a_file(path: Path, size_bytes: int) -> None:
    """Write a file of that size that begins as GGUF files do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(b"GGUF")
        file.truncate(size_bytes)


class Letters(ScriptedModel):
    """A model with one token per word, and a few special tokens."""

    _SPECIAL: Final = ("<|im_start|>", "<|im_end|>")
    _TEXT: Final = (
        *("<|im_start|>", "system", "\n", "You", " answer", " in", " one", " sentence"),
        *(".", "<|im_end|>", "\n", "<|im_start|>", "user", "\n", "What", " decides"),
        *(" whether", " a", " model", " fits", "?", "<|im_end|>", "\n"),
        *("<|im_start|>", "assistant", "\n"),
    )

    def __init__(self) -> None:
        super().__init__(ModelSpec("/x"), Script())
        self._vocabulary = list(dict.fromkeys(self._TEXT))

    async def render(self, request: Request) -> Prompt:
        ids = tuple(map(self._vocabulary.index, self._TEXT))
        return Prompt("".join(self._TEXT), ids, ("The template has no place for tools.",))

    async def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(self._vocabulary[one] for one in ids)

    async def tokenize(self, text: str, *, special: bool = False, **_: object) -> list[int]:
        is_one = special or text not in self._SPECIAL
        return [self._vocabulary.index(text)] if is_one else [0, 0]


def launched(*_: object, **__: object) -> Launch:
    """Replaces `launch`: reports that it serves, until it is told to end."""
    code = (
        "import signal, sys, threading\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('Serving guide and 5 more. Ctrl+C ends it.', file=sys.stderr, flush=True)\n"
        "print('http://127.0.0.1:4242/v1', flush=True)\n"
        "threading.Event().wait()\n"
    )
    return Launch((), {}, (sys.executable, "-c", code))


def write_requests(folder: Path) -> None:
    """Write the log of an endpoint that served a few requests into `folder`."""
    moments = iter(time.mktime((2026, 1, 1, 14, 5, at, 0, 0, -1)) for at in range(60))
    folder.mkdir(parents=True, exist_ok=True)
    with RequestLog(folder / REQUESTS_LOG, clock=lambda: next(moments)) as log:
        log.note("GET", "/v1/models", 200, 2.0)
        log.note("POST", "/v1/chat/completions", 200, 12_345.6, model="guide", prompt_tokens=812,
                 generated_tokens=1_204)  # fmt: skip
        log.note("POST", "/v1/embeddings", 422, 1.2, model="Qwen3-4B-Instruct-2507-Q4_K_M")
        log.note("GET", "/v1/a-path-that-nobody-has-and-that-is-long-for-a-narrow-terminal", 404,
                 0.4)  # fmt: skip
