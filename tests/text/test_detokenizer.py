"""Streaming gives the text that decoding everything at once gives."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.backends.text.detokenizer import StreamDetokenizer

mixed_bytes = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=30).map(lambda text: text.encode("utf-8", "ignore")),
    st.lists(
        st.sampled_from([b"\xf0\x9f", b"\x99\x82", b"\xe2\x82", b"\xac", b"\xed\xa0\x80", b"a"]),
        max_size=20,
    ).map(b"".join),
)


@settings(deadline=None)
@given(data=mixed_bytes, cuts=st.lists(st.integers(0, 60), max_size=12))
def test_streamed_equals_whole(data, cuts):
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    stream = StreamDetokenizer()
    text = "".join(stream.push(data[start:end]) for start, end in itertools.pairwise(edges))
    assert text + stream.finish() == data.decode("utf-8", "replace")


@pytest.mark.parametrize("text", ["é", "€", "🙂", "👩‍👩‍👧"])
def test_a_character_comes_with_its_last_byte(text):
    stream = StreamDetokenizer()
    shown = [stream.push(bytes([byte])) for byte in text.encode()]
    assert "".join(shown) == text
    assert shown[0] == ""
    assert stream.finish() == ""


def test_a_cut_character_ends_as_a_replacement():
    stream = StreamDetokenizer()
    assert stream.push("🙂".encode()[:3]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""
