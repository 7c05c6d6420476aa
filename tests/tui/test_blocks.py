"""Markdown that is still being written, split into pieces that do not change any more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.app.terminal import safe_text
from hearth.app.tui.widgets.blocks import MAX_OPEN_CHARS, BlockSplitter, Piece

ALL_KINDS = """# Title
one line
another

1. first
   - inner **bold**
   - inner
     goes on

   ```python
   x = 1
     y
   ```
   after the code
2. second

| a | b |
|---|---|
| 1 | 2 |
| 3 | 4 |

> quoted
> - item

```js
let a

b
```
end
- last
- very last"""


def pieces_of(text: str, size: int) -> list[Piece]:
    """The pieces of a text that comes `size` characters at a time."""
    splitter = BlockSplitter()
    found: list[Piece] = []
    for start in range(0, len(text), size):
        splitter.feed(text[start : start + size])
        found += splitter.advance()
        assert splitter.open is None or splitter.open.text
    return found + splitter.close()


def joined(pieces: list[Piece]) -> list[tuple[str, str, int]]:
    """Kind, text and indent, with the lines of one fence joined."""
    found: list[tuple[str, str, int]] = []
    for piece in pieces:
        if piece.kind == "code" and not piece.first:
            kind, text, indent = found[-1]
            found[-1] = (kind, text + piece.text, indent)
        else:
            found.append((piece.kind, piece.text, piece.indent))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_the_pieces_do_not_depend_on_how_the_text_comes(size: int) -> None:
    assert joined(pieces_of(ALL_KINDS, size)) == [
        ("prose", "# Title\n", 0),
        ("prose", "one line\nanother\n\n", 0),
        ("prose", "1. first\n", 0),
        ("prose", "- inner **bold**\n", 3),
        ("prose", "- inner\n  goes on\n\n", 3),
        ("code", "x = 1\n  y\n", 3),
        ("prose", "after the code\n", 3),
        ("prose", "2. second\n\n", 0),
        ("table", "", 0),
        ("table", "| 1 | 2 |\n", 0),
        ("table", "| 3 | 4 |\n", 0),
        ("prose", "> quoted\n> - item\n\n", 0),
        ("code", "let a\n\nb\n", 0),
        ("prose", "end\n", 0),
        ("prose", "- last\n", 0),
        ("prose", "- very last\n", 0),
    ]


MARKS = ["- a", "  - b", "    - c", "1. x", "text", "   text", "", "# H", "```py", "```", "> q"]
MARKS += ["| a | b |", "|---|---|", "---", "\t- t", "* **b", "~~~", "    code", "[a]: http://b"]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(MARKS) | st.text(alphabet=st.characters(codec="utf-8"), max_size=12),
        max_size=14,
    ),
    st.integers(1, 9),
)
def test_nothing_is_lost_or_added(lines: list[str], size: int) -> None:
    text = safe_text("\n".join(lines))
    pieces = pieces_of(text, size)
    shown = "".join((piece.info if piece.first else "") + piece.text for piece in pieces)
    # Only white space and the marks of fences are missing in the pieces.
    assert written(shown) == written(text)


def written(text: str) -> list[str]:
    """The characters of a text in sorted order, without white space and the marks of fences."""
    return sorted(mark for mark in text if not mark.isspace() and mark not in "`~")


def test_a_long_list_stays_cheap() -> None:
    splitter = BlockSplitter()
    closed = 0
    for number in range(1000):
        splitter.feed(f"- item {number}\n")
        closed += len(splitter.advance())
        assert splitter.open is not None and len(splitter.open.text) < 100
    assert closed == 999


def test_a_paragraph_without_end_is_cut() -> None:
    splitter = BlockSplitter()
    splitter.feed("word " * MAX_OPEN_CHARS)
    closed = splitter.advance() + splitter.close()
    assert len(closed) > 1
    assert "".join(piece.text for piece in closed).split() == ["word"] * MAX_OPEN_CHARS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("some **bol", "some **bol**"),
        ("some **", "some "),
        ("say `co", "say `co`"),
        ("para\n-", "para"),
        ("para\n```pyth", "para"),
        ("- one\n- ", None),
        ("a\n12.", "a"),
    ],
)
def test_half_typed_marks_are_not_shown(text: str, shown: str | None) -> None:
    splitter = BlockSplitter()
    splitter.feed(text)
    splitter.advance()
    assert (splitter.open.text if splitter.open else None) == (shown or "- one")


def test_a_half_typed_fence_end_is_not_code() -> None:
    splitter = BlockSplitter()
    splitter.feed("```\ncode\n``")
    assert [piece.text for piece in splitter.advance()] == ["code\n"]
    assert splitter.open is None


def test_html_and_link_definitions_are_text() -> None:
    text = "<div>x</div>\n\n[a]: http://b.example\n"
    assert "".join(piece.text for piece in pieces_of(text, 5)).split() == text.split()
