"""The key in its file: made once, private, and refused if others may have read it."""

from __future__ import annotations

import os
import stat
import sys
import threading

import pytest

from hearth.app.server.api_key import KeyFileError, kept_key, read_key
from hearth.backends.errors import InvalidParameter

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes and links")


def written(path, content: bytes):
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_a_key_is_made_once_and_kept(tmp_path) -> None:
    path = tmp_path / "api-key"
    key = kept_key(path)
    assert len(key) == 43 and key == kept_key(path) == read_key(path)
    assert kept_key(tmp_path / "other") != key
    assert sorted(each.name for each in tmp_path.iterdir()) == ["api-key", "other"]


@posix
def test_only_its_owner_can_read_it(tmp_path) -> None:
    before = os.umask(0)
    try:
        kept_key(tmp_path / "api-key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "api-key").stat().st_mode) == 0o600


def test_who_makes_one_at_the_same_time_gets_the_same(tmp_path) -> None:
    found, start = [], threading.Barrier(8)

    def make() -> None:
        start.wait()
        found.append(kept_key(tmp_path / "api-key"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


@pytest.mark.parametrize("content", [b"sk-mine", b"sk-mine\n", b"sk-mine\r\n"])
def test_a_key_of_your_own_is_one_line(tmp_path, content) -> None:
    assert read_key(written(tmp_path / "key", content)) == "sk-mine"


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"two words\n", b"two\nlines\n", b"\xff\xfe", b"a\0"]
)
def test_what_fits_no_header_is_no_key(tmp_path, content) -> None:
    path = written(tmp_path / "key", content)
    for read in (read_key, kept_key):
        with pytest.raises(InvalidParameter):
            read(path)
    assert path.read_bytes() == content


@posix
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o620, 0o601])
def test_a_file_that_others_can_read_is_refused(tmp_path, mode) -> None:
    path = written(tmp_path / "key", b"sk-mine")
    path.chmod(mode)
    for read in (read_key, kept_key):
        with pytest.raises(KeyFileError) as refused:
            read(path)
        assert refused.value.exit_code == 2 and "chmod 600" in refused.value.hint
        assert "sk-mine" not in str(refused.value)


@posix
def test_a_link_is_followed_neither_to_read_nor_to_make(tmp_path) -> None:
    aim = tmp_path / "aim"
    link = tmp_path / "key"
    link.symlink_to(aim)
    with pytest.raises(KeyFileError):
        kept_key(link)
    assert not aim.exists()
    written(aim, b"sk-mine")
    with pytest.raises(KeyFileError):
        read_key(link)


@posix
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (pipe, tmp_path, tmp_path / "missing"):
        with pytest.raises(KeyFileError):
            read_key(path)


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path) -> None:
    with pytest.raises(KeyFileError) as refused:
        kept_key(tmp_path / "missing" / "key")
    assert "--api-key-file" in refused.value.hint
