"""Importance matrices as a part of the job: stopped, and from which text."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from hearth.app.jobs.child import Stopped
from hearth.app.library.compare_quality import bundled_sample
from hearth.app.library.importance import calibration_text, matrix_for
from hearth.app.paths import find_paths
from hearth.backends.errors import UnsupportedModel
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.gguf.quantize_method import BUNDLED, GgufMethod
from quantizing import GUIDE
from tiny_folders import tiny_folder


def test_a_pass_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    paths = find_paths({"HEARTH_HOME": str(tmp_path)})
    others = set(psutil.Process().children())
    seen: list[set[psutil.Process]] = []

    def check() -> None:
        seen.append(set(psutil.Process().children()) - others)
        if len(seen) > 2:
            raise Stopped("It was stopped.")

    with pytest.raises(Stopped):
        matrix_for(
            GgufMethod().plan(GUIDE, "IQ2_XS", {}),
            {},
            paths,
            threads=1,
            on_window=lambda done, total: None,
            on_note=lambda note: None,
            check=check,
        )
    assert seen[-1] and not any(child.is_running() for child in seen[-1])
    assert not list(paths.cache.glob("imatrix/*/*"))


def test_a_folder_is_not_for_llama_cpp(tmp_path: Path) -> None:
    folder = tiny_folder("llama3", tmp_path / "model")
    plan = GgufMethod().plan(folder, "Q8_0", {"imatrix": "auto"})
    with pytest.raises(UnsupportedModel, match=r"llama\.cpp"):
        matrix_for(
            plan,
            {"backend": "llamacpp"},
            find_paths({"HEARTH_HOME": str(tmp_path)}),
            threads=1,
            on_window=lambda done, total: None,
            on_note=lambda note: None,
            check=lambda: None,
        )


@pytest.mark.parametrize("source", [GUIDE, Path("/models/other.gguf")])
def test_the_bundled_text_is_not_the_one_that_is_measured(source: Path) -> None:
    found = calibration_text({}, source)
    assert found.name == BUNDLED and len(found.text) > 10_000
    assert found.text != bundled_sample(for_guide=source == GUIDE).text


def test_a_text_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CannotQuantize, match="UTF-8"):
        calibration_text({"calibration": str(path)}, GUIDE)
    path.write_text("Mine.")
    found = calibration_text({"calibration": str(path)}, GUIDE)
    assert (found.name, found.text) == ("mine.txt", "Mine.")
