"""Scripts in `benchmarks/` leave no server behind."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from source_tree import ROOT


def test_a_server_is_stopped_where_the_other_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("beside_llama_server")
    stopped: list[str] = []
    hearth = SimpleNamespace(stop=lambda: stopped.append("hearth"))
    monkeypatch.setattr(script, "start_hearth", lambda *_: hearth)
    monkeypatch.setattr(script, "unload", lambda _: stopped.append("its host"))
    missing = str(tmp_path / "llama-server")
    with pytest.raises(FileNotFoundError), script.servers(missing, tmp_path / "m.gguf"):
        pass
    assert stopped == ["hearth", "its host"]
