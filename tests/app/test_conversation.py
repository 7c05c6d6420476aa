"""The turns of a chat."""

from __future__ import annotations

from hearth.app.conversation import Conversation
from hearth.backends.contract import Message


def chat(*turns: str) -> Conversation:
    conversation = Conversation("Be kind.")
    for number, text in enumerate(turns):
        (conversation.answer if number % 2 else conversation.ask)(text)
    return conversation


def test_messages_are_the_system_prompt_and_the_turns() -> None:
    assert chat("a", "b", "c").messages() == (
        Message("system", "Be kind."),
        Message("user", "a"),
        Message("assistant", "b"),
        Message("user", "c"),
    )


def test_an_empty_system_prompt_is_no_message() -> None:
    conversation = chat("a")
    conversation.system = ""
    assert conversation.messages() == (Message("user", "a"),)


def test_the_oldest_question_goes_with_its_answer() -> None:
    conversation = chat("a", "b", "c", "d", "e")
    assert conversation.forget_oldest() == Message("user", "a")
    assert [turn.content for turn in conversation.turns] == ["c", "d", "e"]


def test_the_last_question_is_never_forgotten() -> None:
    conversation = chat("a")
    assert conversation.forget_oldest() is None
    assert len(conversation.turns) == 1


def test_a_question_without_an_answer_can_be_taken_back() -> None:
    conversation = chat("a", "b", "c")
    conversation.take_back()
    conversation.take_back()
    assert [turn.content for turn in conversation.turns] == ["a", "b"]
