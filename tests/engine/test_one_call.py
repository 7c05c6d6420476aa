"""An answer that may make one tool call ends with it, whatever else the model would generate."""

import pytest

from hearth.backends.contract.events import Finished, ToolCallPart
from hearth.backends.contract.requests import Tool
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.sampler import Drawn, Sampler
from hearth.backends.text.output.families import format_of

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "sea"}}'
TEXT = f"Well. {CALL}\n</tool_call>\n{CALL}\n</tool_call>"
HERMES = format_of("{{ tools }}<tool_call>\n{{ call }}")


def said(size, *, one_call, most=1_000):
    """The events of an answer that is `TEXT`, in tokens of `size` characters."""
    pieces = [TEXT[at : at + size].encode() for at in range(0, len(TEXT), size)]
    events = []
    made = Generation(
        1,
        [0],
        Sampler(SamplingParams()),
        Limits(most, 0, False, frozenset((len(pieces),)), one_call=one_call),
        (),
        lambda token, *, special=False: pieces[token],
        events.append,
        parser=HERMES.parser((Tool("look"),), ""),
    )
    for token in range(len(pieces) + 1):
        if (reason := made.accept(Drawn(token))) is not None:
            made.finish(reason)
            return events
    raise AssertionError("it never ended")


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("one_call", [False, True])
def test_there_is_one_call_where_there_may_be_one(size, one_call):
    *events, last = said(size, one_call=one_call)
    assert isinstance(last, Finished) and last.reason == "tool_calls" and not last.notices
    calls = [event for event in events if isinstance(event, ToolCallPart) and event.name]
    assert len(calls) == (1 if one_call else 2)
    assert sum(len(event.ids) for event in events) == last.usage.completion_tokens


@pytest.mark.parametrize(("spare", "reason"), [(0, "tool_calls"), (-2, "length")])
def test_a_call_that_is_whole_with_the_last_token_was_not_cut(spare, reason):
    most = len(f"Well. {CALL}") + spare
    assert said(1, one_call=True, most=most)[-1].reason == reason
