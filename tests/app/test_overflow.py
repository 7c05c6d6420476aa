"""A conversation that exceeds the context loses whole turns, oldest first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.app.overflow import newest_turns
from hearth.backends.contract.messages import Message, Role, ToolCall
from hearth.backends.errors import PromptTooLong, prompt_too_long

UNKNOWN = PromptTooLong("messages", "Too long.")
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")


def conversation(roles: str) -> list[Message]:
    """Of the first letters of roles; each message says which it is."""
    names = {role[0]: role for role in ROLES}
    return [Message(names[letter], f"{at}") for at, letter in enumerate(roles)]


def kept(roles: str, error: PromptTooLong = UNKNOWN) -> list[int] | None:
    found = newest_turns(conversation(roles), error)
    return None if found is None else [int(message.content) for message in found]


@pytest.mark.parametrize(
    ("roles", "wanted"),
    [
        ("", None),
        ("s", None),
        ("su", None),
        ("suat", None),
        ("suaua", [0, 3, 4]),
        ("uataauatau", [5, 6, 7, 8, 9]),
        ("sauau", [0, 2, 3, 4]),
        ("usuu", [1, 2, 3]),
        ("ssuasu", [0, 1, 4, 5]),
    ],
)
def test_the_oldest_turn_goes_with_its_calls_and_results(
    roles: str, wanted: list[int] | None
) -> None:
    assert kept(roles) == wanted


@given(st.text("suat", max_size=12))
def test_system_messages_and_the_last_turn_stay_and_calls_keep_their_results(roles: str) -> None:
    found = newest_turns(conversation(roles), UNKNOWN)
    if found is None:
        assert roles.strip("s").count("u") <= 1
        return
    places = [int(message.content) for message in found]
    assert places == sorted(places) and len(places) < len(roles)
    last = roles.rindex("u")
    assert set(range(last, len(roles))) <= set(places)
    assert {at for at, role in enumerate(roles) if role == "s"} <= set(places)
    others = [at for at in places if roles[at] != "s"]
    assert roles[others[0]] == "u"
    assert others == [at for at in range(others[0], len(roles)) if roles[at] != "s"]


def test_as_many_go_as_leave_room_for_an_answer() -> None:
    turn = [
        Message("user", "x" * 60),
        Message("assistant", "", tool_calls=(ToolCall("1", "look", "y" * 36),)),
        Message("tool", "z" * 100, tool_call_id="1"),
    ]
    messages = [Message("system", "s" * 200), *(10 * turn), Message("user", "and now?")]
    found = newest_turns(messages, prompt_too_long("messages", 1200, 1000))
    assert found is not None
    assert found[0].role == "system" and found[-1].content == "and now?"
    # 2,208 characters are 1,200 tokens, of which 750 may stay: 828 go, in turns of 200.
    assert len(found) == len(messages) - 5 * 3
    assert newest_turns(messages[-1:], prompt_too_long("messages", 1200, 1000)) is None
    far = newest_turns(messages, prompt_too_long("messages", 10**6, 10))
    assert far is not None and [message.role for message in far] == ["system", "user"]
