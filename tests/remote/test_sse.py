"""Server-sent events: the same from any pieces of the same bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hearth.backends.remote.sse import EventReader, ServerEvent

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n\0"), max_size=8)
LINE = st.one_of(
    st.just(""),
    TEXT,
    st.builds("data: {}".format, TEXT),
    st.builds(": {}".format, TEXT),
    st.builds("event: {}".format, TEXT),
)


def read(pieces):
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


@given(st.lists(LINE), st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_cuts_change_nothing(lines, end, draw) -> None:
    whole = "".join(line + end for line in lines).encode()
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    places = [0, *cuts, len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places)]
    assert read(pieces) == read([whole]) == read([bytes([byte]) for byte in whole])


@given(st.lists(TEXT, min_size=1), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_data_comes_back_as_it_was(texts, end) -> None:
    body = b"".join(b"data: " + text.encode() + end + end for text in texts)
    assert [event.data for event in read([body])] == texts


def test_fields_are_told_apart() -> None:
    body = b": hi\nevent: error\nid: 3\ndata: a\ndata:b\n\nevent: x\n\ndata\n\ndata: c\n\n"
    assert read([body]) == [
        ServerEvent("hi", ":"),
        ServerEvent("a\nb", "error"),
        ServerEvent(""),
        ServerEvent("c"),
    ]


def test_a_byte_order_mark_is_ignored_only_at_the_beginning() -> None:
    body = b"\xef\xbb\xbfdata: a\n\ndata: \xef\xbb\xbfb\n\n\xef\xbb\xbfdata: c\n\n"
    expected = [ServerEvent("a"), ServerEvent("\N{ZERO WIDTH NO-BREAK SPACE}b")]
    assert read([body]) == read([bytes([byte]) for byte in body]) == expected


def test_an_event_needs_its_last_line_to_be_whole() -> None:
    reader = EventReader()
    assert list(reader.feed(b"data: [DONE]\n")) == []
    assert list(reader.end()) == [ServerEvent("[DONE]")]
    cut = EventReader()
    assert [*cut.feed(b"data: [DO"), *cut.end()] == []
