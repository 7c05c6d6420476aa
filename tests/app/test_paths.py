"""Where Hearth's folders lie."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from hearth.app.paths import FolderUnusable, find_paths, own_folder, private_folder

FOLDERS = ("config", "data", "state", "cache", "log")
needs_xdg = pytest.mark.skipif(
    sys.platform == "win32", reason="XDG folders are not a thing of Windows"
)


def test_one_variable_moves_everything(tmp_path: Path) -> None:
    paths = find_paths({"HEARTH_HOME": str(tmp_path), "XDG_DATA_HOME": "/elsewhere"})
    found = [getattr(paths, name) for name in FOLDERS]
    assert all(folder.parent == tmp_path for folder in found)
    assert len(set(found)) == len(FOLDERS)
    assert paths.models == paths.data / "models"
    assert paths.settings_file == paths.config / "settings.toml"


def test_a_home_may_be_relative_to_the_user_or_the_working_folder() -> None:
    assert find_paths({"HEARTH_HOME": "~/h"}).data == Path.home() / "h" / "data"
    assert find_paths({"HEARTH_HOME": "h"}).data == Path.cwd() / "h" / "data"


def test_without_the_variable_each_folder_is_the_platform_s_own() -> None:
    paths = find_paths({})
    assert all(getattr(paths, name).is_absolute() for name in FOLDERS)
    assert "hearth" in str(paths.data)


@needs_xdg
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_xdg_variables_count_where_they_are_set(
    monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    paths = find_paths({"XDG_CONFIG_HOME": "/c", "XDG_DATA_HOME": "/d", "XDG_STATE_HOME": "/s"})
    assert (paths.config, paths.data, paths.state) == (
        Path("/c/hearth"),
        Path("/d/hearth"),
        Path("/s/hearth"),
    )
    assert paths.log == Path("/s/hearth/log")


@needs_xdg
def test_a_relative_xdg_path_is_ignored_as_its_specification_says() -> None:
    assert find_paths({"XDG_DATA_HOME": "here"}).data == find_paths({}).data


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_new_folders_are_private_and_old_ones_stay(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    made = private_folder(tmp_path / "a" / "b")
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (made, made.parent)] == [0o700, 0o700]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert private_folder(made) == made


def test_the_host_has_its_place_in_these_folders(tmp_path: Path) -> None:
    paths = find_paths({"HEARTH_HOME": str(tmp_path)})
    place = paths.host_place()
    assert place.runtime_dir.parent == paths.state
    assert (place.log_dir, place.cache_dir) == (paths.log, paths.cache)


def test_a_file_where_a_folder_should_be_is_told_with_what_to_do(tmp_path: Path) -> None:
    assert own_folder(tmp_path / "log") == tmp_path / "log"
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "log"):
        with pytest.raises(FolderUnusable, match=str(path)) as caught:
            own_folder(path)
        assert "HEARTH_HOME" in caught.value.hint


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="rights bind no root")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(FolderUnusable, match="cannot be written to"):
        own_folder(tmp_path)
