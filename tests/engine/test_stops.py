"""What ends an answer, and whether the stop text is part of the answer."""

import pytest

from byte_tokenizer import ByteTokenizer
from hearth.backends.contract.events import Finished, Token
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.sampler import Drawn, Sampler

BYTES = ByteTokenizer()
END, _ = sorted(BYTES.end_ids)
STOP = ord(".")


def answer(tokens, stops=(), *, most=100, ignore_eos=False, **limits):
    """(text, ids, last event) of an answer that draws `tokens`, each allowed, until it ends."""
    events = []
    made = Generation(
        1,
        [0],
        Sampler(SamplingParams()),
        Limits(most, 0, ignore_eos, BYTES.end_ids, **limits),
        stops,
        BYTES.piece,
        events.append,
    )
    for token in tokens:
        assert token not in made.limits.banned(made.new_tokens)
        if (reason := made.accept(Drawn(token))) is not None:
            made.finish(reason)
            break
    *said, last = events
    assert isinstance(last, Finished) and all(isinstance(event, Token) for event in said)
    return "".join(e.text for e in said), [i for e in said for i in e.ids], last


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_ends_the_answer_and_is_part_of_it_on_request(include):
    text, ids, last = answer(b"One. Two.", stop_ids=frozenset({STOP}), include_stop=include)
    assert text == ("One." if include else "One")
    assert bytes(ids) == text.encode() and last.usage.completion_tokens == len(ids)
    assert (last.reason, last.stop) == ("stop", None)


def test_a_stop_token_that_is_the_models_end_ends_the_answer_even_if_that_is_ignored():
    text, _, last = answer([*b"One", END], ignore_eos=True, stop_ids=frozenset({END}))
    assert (text, last.reason) == ("One", "stop")


def test_min_tokens_bans_stop_tokens_and_ends():
    limits = Limits(9, 2, False, BYTES.end_ids, stop_ids=frozenset({STOP}))
    assert limits.banned(1) == {*BYTES.end_ids, STOP} and not limits.banned(2)


@pytest.mark.parametrize("tail", [b"!!", b""])
def test_a_stop_string_is_part_of_the_text_on_request(tail):
    tokens = b"One END" + tail
    assert answer(tokens, ("END",), most=7)[0] == "One "
    text, _, last = answer(tokens, ("END",), most=7, include_stop=True)
    assert (text, last.reason, last.stop) == ("One END", "stop", "END")


def test_special_tokens_are_text_on_request_but_the_models_end_is_not():
    tokens = [*b"a", BYTES.call_id, *b"b", END]
    assert answer(tokens)[0] == "ab"
    assert answer(tokens, show_special=True)[0] == "a<|call|>b"


@pytest.mark.parametrize(
    ("data", "text"),
    [("a🙂é".encode(), "a🙂é"), ("a🙂".encode()[:-1], "a\ufffd"), (b"\xff.", "\ufffd.")],
)
def test_characters_are_text_once_they_are_complete(data, text):
    assert answer(data, most=len(data))[0] == text
