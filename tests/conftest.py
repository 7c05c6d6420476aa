"""For every test: its own folders, no network, a skip reason where a device is missing, and a tiny
model.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth.backends.machine.gpus import has_cuda

if not has_cuda():
    # Triton kernels are interpreted. Triton reads this when it is imported, by any test.
    os.environ["TRITON_INTERPRET"] = "1"

DEVICE_MARKERS = ("cuda", "mps")


def others_homes(home: Path) -> dict[str, str]:
    """Variables that move other programs' model folders, so that the user's own are not seen."""
    return {
        "HOME": str(home / "user"),
        "USERPROFILE": str(home / "user"),
        "LOCALAPPDATA": str(home / "user" / "local"),
        "XDG_CACHE_HOME": str(home / "user" / ".cache"),
        "HF_HUB_CACHE": str(home / "user" / "hub"),
        "OLLAMA_MODELS": str(home / "user" / "ollama"),
        "LLAMA_CACHE": str(home / "user" / "llama.cpp"),
    }


@pytest.fixture(scope="session", autouse=True)
def hearth_home() -> Iterator[Path]:
    """Yield the folder for settings, models, sockets and logs of the whole run, so that nothing is
    written to the user's own folders.

    The path is short, because that of a Unix socket must be (about 100 bytes).
    """
    home = Path(tempfile.mkdtemp(prefix="hearth-"))
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("HEARTH_")]:
            patch.delenv(name)
        patch.setenv("HEARTH_HOME", str(home))
        for name, value in others_homes(home).items():
            patch.setenv(name, value)
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF of two layers in float32, with a trained context of 512."""
    from gguf_builder import tiny_llama

    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `cuda` or `mps` where there is no such device; torch is imported only if
    such a test is selected.
    """
    for marker in DEVICE_MARKERS:
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not _device_works(marker):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=f"no {marker} device here"))


def _device_works(marker: str) -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(
        torch.cuda.is_available() if marker == "cuda" else torch.backends.mps.is_available()
    )
