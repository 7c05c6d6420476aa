"""Special tokens are found as llama.cpp finds them: the longest first, wherever it stands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearth.backends.text.vocab.partition import Partition


def longest_first(ids: dict[str, int], text: str) -> list[str | int]:
    """What llama.cpp does, said plainly."""
    parts: list[str | int] = [text] if text else []
    for token in sorted(ids, key=len, reverse=True):
        cut: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                cut.append(part)
                continue
            for index, piece in enumerate(part.split(token)):
                cut += [ids[token]] * bool(index) + [piece] * bool(piece)
        parts = cut
    return parts


@given(
    st.lists(st.text("ab<", min_size=1, max_size=5), unique_by=len, max_size=5),
    st.text("ab< ", max_size=40),
)
def test_overlapping_tokens_are_told_apart_as_there(tokens: list[str], text: str) -> None:
    ids = {token: ident for ident, token in enumerate(tokens)}
    partition = Partition(ids)
    assert partition.parts(text) == longest_first(ids, text)
    assert partition.parts(text) == longest_first(ids, text)


def test_text_beside_the_cut_out_tokens_stays_whole() -> None:
    assert Partition({"    ": 1, "<x>": 2}).parts("a     b<x>") == ["a", 1, " b", 2]


def test_white_space_after_some_tokens_is_swallowed() -> None:
    partition = Partition({"<a>": 1, "<b>": 2}, strips_after=[1])
    assert partition.parts(" x <a> \n y \t<b> z<b>") == [" x ", 1, "y \t", 2, " z", 2]
    assert partition.parts("<a>  <b>") == [1, 2]


def test_thousands_of_tokens_are_no_burden() -> None:
    ids = {f"<unused{number}>": number for number in range(5000)}
    text = "<unused" * 20_000 + "<unused77>"
    assert Partition(ids).parts(text) == ["<unused" * 20_000, 77]
