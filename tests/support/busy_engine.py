"""A busy host for the engine screen: a scripted minute of several models and requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fake_host import ENGINE, INFO
from hearth.app.tui.screens.engine import EngineScreen
from hearth.backends.contract.loaded import (
    EngineStats,
    HostStats,
    ModelInfo,
    RequestStats,
    WorkerStats,
)
from scripted import ScriptedHost

MINUTE_S: Final = 60
_DAY_S: Final = 1_767_225_600.0
"""Unix time of the start."""
_UP_S: Final = 7_980.0
_CODER: Final = "/models/Qwen3-4B-Instruct-2507-Q4_K_M.gguf"
_LOG: Final = """\
09:14:02,118 INFO hearth.backends.worker Qwen3-4B-Instruct-2507-Q4_K_M: loaded in 2.41 s
09:14:02,121 INFO hearth.backends.llamacpp.runner context 32,768, f16 keys and values, 8 threads
09:58:40,507 INFO hearth.backends.engine.engine 5,120 prompt tokens were found and not computed
10:26:13,940 WARNING hearth.backends.engine.engine the memory is full: review-bot is put aside
10:26:15,002 INFO hearth.backends.engine.engine review-bot goes on
"""


@dataclass
class BusyHost(ScriptedHost):
    """A host whose clock advances by a second with each call of `stats`, until the minute is over;
    then its state stays constant.

    It also replaces the module `time` for the engine screen.

    Attributes:
        chat: id of a chat that is first in the queue for tokens; if empty, a client's name is
            first.
    """

    chat: str = ""
    second: int = field(default=-1, init=False)

    def time(self) -> float:
        """Unix time, in seconds."""
        return _DAY_S + _UP_S + max(0, self.second)

    def monotonic(self) -> float:
        """Seconds."""
        return float(self.second)

    async def stats(self) -> HostStats:
        self.second = min(self.second + 1, MINUTE_S)
        workers = (self._coder(), _idle(), _loading())
        return HostStats(4_700, "0.5.0", _DAY_S, 3, workers)

    def _coder(self) -> WorkerStats:
        generated = 9_000 + sum(_tokens(second) for second in range(self.second))
        engine = EngineStats(
            **{
                **ENGINE,
                "running": 4,
                "waiting": 2,
                "pool_tokens": 65_536,
                "allocated_tokens": 49_152,
                "live_tokens": 21_130,
                "kept_tokens": 14_920,
                "kept_prefixes": 7,
                "kv_bytes_per_token": 147_456,
                "generated_tokens": generated,
                "requests": self._requests(),
            }
        )
        info = _info(_CODER, "Q4_K_M", 2_497_281_120, 32_768)
        return WorkerStats(info.name, _CODER, 4_712, 4, 2, 1, 0.0, info, engine, 300.0)

    def _requests(self) -> tuple[RequestStats, ...]:
        return (
            RequestStats(31, self.chat or "notes", "decoding", 1_204, 1_618, 1_152, 415, 21.37),
            RequestStats(32, "editor", "decoding", 6_310, 6_402, 5_120, 93, 20.84),
            RequestStats(33, "review-bot", "decoding", 2_977, 3_871, 0, 895, 21.02),
            RequestStats(34, "summary-of-the-minutes", "prefill", 14_336, 9_216, 512),
            RequestStats(35, "", "queued", 804),
            RequestStats(36, "review-bot", "queued"),
        )


async def watch_a_minute(screen: EngineScreen, host: BusyHost) -> None:
    """Refresh `screen` until the minute is over."""
    while host.second < MINUTE_S:
        await screen.look().wait()
    await screen.look().wait()


def write_logs(folder: Path) -> None:
    """Write the workers' log into `folder`, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "worker.log").write_text(_LOG, encoding="utf-8")


def _tokens(second: int) -> int:
    """Tokens generated in this second for the requests that ran then: none, one, two, three."""
    if second < 6:
        return 0
    streams = 1 if second < 19 else 2 if second < 37 else 3
    waits_for_prefill = second in (19, 20, 37, 38, 39)
    return (4 if waits_for_prefill else 21) * streams + second * 5 % 4


def _idle() -> WorkerStats:
    info = _info("/models/guide.f16.gguf", "F16", 8_527_648, 2_048, name="guide")
    engine = EngineStats(**{**ENGINE, "generated_tokens": 118})
    return WorkerStats(info.name, info.path, 4_790, 0, 0, 0, 73.0, info, engine, 300.0)


def _loading() -> WorkerStats:
    return WorkerStats("gemma-3-12b-it-Q4_K_M", "/models/gemma.gguf", 4_801, 0, 1, 0, 0.0)


def _info(path: str, quant: str, size_bytes: int, context: int, name: str = "") -> ModelInfo:
    told: dict[str, Any] = {
        "name": name or Path(path).stem,
        "path": path,
        "quantization": quant,
        "size_bytes": size_bytes,
        "context": context,
    }
    return ModelInfo(**{**INFO, **told})
