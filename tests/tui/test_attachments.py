"""Files that a message names: which are read, which are refused, and which names stay text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hearth.app.tui.attachments import (
    LARGEST_BYTES,
    MOST_FILES,
    Attached,
    AttachmentRefused,
    expand,
    in_words,
    not_found,
    quoted,
    split,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("one\ntwo")
    (tmp_path / "my notes.md").write_text("text with @notes.txt\n```\ncode\n```\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_bytes(b"\xef\xbb\xbfprint(1)\r\n")
    return tmp_path


def test_a_file_follows_the_text_with_its_name(folder: Path) -> None:
    expanded = expand("Sum up @notes.txt, please", folder)
    assert expanded.text == "Sum up @notes.txt, please\n\nnotes.txt:\n```txt\none\ntwo\n```"
    assert expanded.files == (Attached(Path("notes.txt"), 7, "one\ntwo"),)


def test_text_without_names_stays_as_it_is(folder: Path) -> None:
    text = "mail me@notes.txt, @@notes.txt, `@notes.txt`\n"
    assert expand(text, folder).text == text


def test_quotes_are_for_spaces_and_fences_hold_fences(folder: Path) -> None:
    text = expand('("@x") [@"my notes.md"] (@src/main.py)', folder).text
    assert "\n\nmy notes.md:\n````md\ntext with @notes.txt\n```\ncode\n```\n````\n\n" in text
    assert text.endswith("src/main.py:\n```py\nprint(1)\r\n```")


def test_a_file_is_put_in_once_and_not_read_for_names(folder: Path) -> None:
    expanded = expand('@"my notes.md" and @"./my notes.md"', folder)
    assert [file.path.name for file in expanded.files] == ["my notes.md"]


@pytest.mark.parametrize(
    "name", ["@app.route", "@someone", "@types/node", "@a\0b", "@~nobody-x/y", "@docs/a.md"]
)
def test_what_names_no_file_is_text(folder: Path, name: str) -> None:
    expanded = expand(f"why {name} here?", folder)
    assert expanded.text == f"why {name} here?" and expanded.files == ()
    assert expanded.unmatched == (name[1:],)


def test_names_without_a_file_are_told_a_few_of_them_and_not_at_length() -> None:
    assert not_found(()) == ""
    assert not_found(["a.txt"]).startswith("No such file: @a.txt.")
    assert "@a, @b, @c, 2 more." in not_found(["a", "b", "c", "d", "e"])
    assert len(not_found(["x" * 5000])) < 200


@pytest.mark.parametrize("fence", ["```", "~~~~"])
def test_names_in_fenced_blocks_are_text(folder: Path, fence: str) -> None:
    text = f"{fence}python\n@notes.txt\n{fence}\n"
    assert expand(text, folder).files == ()
    assert len(expand(text + "@notes.txt", folder).files) == 1
    assert expand(f"{fence}\n@notes.txt", folder).files == ()


def test_a_home_and_an_absolute_path_can_be_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    elsewhere = folder / "src"
    assert expand("@~/notes.txt", elsewhere).files[0].bytes == 7
    assert expand(f"@{folder}/notes.txt", elsewhere).files[0].path == folder / "notes.txt"


def refusal(text: str, folder: Path) -> str:
    with pytest.raises(AttachmentRefused) as caught:
        expand(text, folder)
    assert caught.value.hint
    return caught.value.message


def test_what_cannot_be_put_in_is_refused(folder: Path) -> None:
    (folder / "image").write_bytes(b"\x89PNG\xff\xfe")
    (folder / "zeros").write_bytes(b"a\0b")
    (folder / "large").write_bytes(b"x" * (LARGEST_BYTES + 1))
    assert "folder" in refusal("@src", folder)
    assert "not text" in refusal("@image", folder)
    assert "not text" in refusal("@zeros", folder)
    assert "2.0 MiB" in refusal("@large", folder)


@pytest.mark.parametrize(
    "written", ['@"missing.txt"', "@./missing.txt", "@../x/y", "@/no/such", "@~/missing.txt,"]
)
def test_what_can_only_be_a_path_must_be_there(folder: Path, written: str) -> None:
    assert "There is no file" in refusal(f"read {written} please", folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_refused_without_waiting(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert "no file" in refusal("@pipe", folder)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all")
def test_a_file_that_may_not_be_read_is_refused(folder: Path) -> None:
    (folder / "notes.txt").chmod(0)
    assert "cannot be read" in refusal("@notes.txt", folder)


def test_the_number_of_files_is_bounded(folder: Path) -> None:
    for number in range(MOST_FILES + 1):
        (folder / f"f{number}").write_text("x")
    names = [f"@f{number}" for number in range(MOST_FILES + 1)]
    assert len(expand(" ".join(names[:-1]), folder).files) == MOST_FILES
    assert str(MOST_FILES) in refusal(" ".join(names), folder)


def test_a_hostile_name_is_one_safe_line(folder: Path) -> None:
    (folder / "a\x1b[31m").write_text("x")
    expanded = expand("@a\x1b[31m", folder)
    assert "\n\na␛[31m:\n" in expanded.text
    assert in_words(expanded.files) == "a␛[31m 1 B"
    assert "\x1b" not in in_words(expanded.files)


def test_what_was_written_and_the_files_are_split_again(folder: Path) -> None:
    for text in ("Sum up @notes.txt", '(@"my notes.md") and @src/main.py'):
        expanded = expand(text, folder)
        written, files = split(expanded.text)
        assert written == text
        assert [file.path for file in files] == [file.path for file in expanded.files]
    code = "Explain:\n\nmain.py:\n```py\nprint(1)\n```"
    assert split(code) == (code, ())
    assert in_words(expand("@notes.txt", folder).files) == "notes.txt 7 B"


@pytest.mark.parametrize("name", ["a.txt", "a b.txt", "dir/x@y"])
def test_a_quoted_name_is_found_again(folder: Path, name: str) -> None:
    (folder / "dir").mkdir()
    (folder / name).write_text("x")
    written = quoted(name)
    assert written is not None
    assert len(expand(f"see {written} now", folder).files) == 1


def test_a_name_that_cannot_be_written_is_told() -> None:
    assert quoted('a"b') is None and quoted("a\nb") is None
