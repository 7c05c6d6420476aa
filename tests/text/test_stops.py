"""The first stop string to be completed ends the text, however it is split."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.backends.text.stops import StopMatcher

letters = st.text(alphabet="ab", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)


def naive(text, stops):
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def stream(matcher, pieces):
    shown = ""
    for piece in pieces:
        text, found = matcher.push(piece)
        shown += text
        if found is not None:
            return shown, found
    return shown + matcher.finish(), None


@settings(deadline=None)
@given(text=letters, stops=stop_lists, cuts=st.lists(st.integers(0, 30), max_size=10))
def test_streamed_equals_a_search_in_the_whole(text, stops, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    assert stream(StopMatcher(stops), pieces) == naive(text, stops)


@settings(deadline=None)
@given(text=letters, stops=stop_lists)
def test_text_is_held_back_only_while_it_may_become_a_stop(text, stops):
    matcher = StopMatcher(stops)
    shown = ""
    for end, char in enumerate(text, 1):
        new, found = matcher.push(char)
        shown += new
        if found is not None:
            return
        held = text[len(shown) : end]
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        ((), ["a", "b"], ("ab", None)),
        (("</s>",), ["hi <", "/", "s", "> more"], ("hi ", "</s>")),
        (("</s>",), ["hi <", "/", "x"], ("hi </x", None)),
        (("\n\n",), ["a\n", "b\n\nc"], ("a\nb", "\n\n")),
        (("bc", "abcd"), ["ab", "cd"], ("a", "bc")),
        (("c", "abc"), ["abc"], ("", "abc")),
        (("🙂",), ["x🙂y"], ("x", "🙂")),
        (("User:", "User"), ["Use", "r: hi"], ("", "User")),
    ],
)
def test_cases(stops, pieces, expected):
    assert stream(StopMatcher(stops), pieces) == expected


def test_after_a_match_everything_is_dropped():
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == ("a", "x")
    assert matcher.push("more") == ("", "x")
    assert matcher.finish() == ""


@settings(deadline=None)
@given(before=letters, after=letters, stops=stop_lists)
def test_what_may_not_match_is_text_and_no_text_is_lost(before, after, stops):
    matcher = StopMatcher(stops)
    shown, found = matcher.push(before, may_match=False)
    assert found is None
    more, found = stream(matcher, [after])
    assert shown + more + (found or "") == (before + after)[: len(shown + more + (found or ""))]
    ends = [n for n in range(1, len(after) + 1) if (before + after[:n]).endswith(tuple(stops))]
    assert (found is None) == (not ends)
    if ends:
        assert len(shown + more + (found or "")) == len(before) + ends[0]
    else:
        assert shown + more == before + after
