"""What a template would lose is given in another way, and said."""

import json
from dataclasses import replace

import pytest

from chat_templates import CHATML, DEEPSEEK, GEMMA, GRANITE, HERMES, LLAMA3, MISTRAL, PlainRenderer
from hearth.backends.contract.events import Token, ToolCallPart
from hearth.backends.contract.messages import Message, ToolCall
from hearth.backends.contract.requests import Tool
from hearth.backends.text.adapt import adapt
from hearth.backends.text.conversation import OPENAI_CALLS, message_values, tool_values
from hearth.backends.text.output.families import described_format_of
from hearth.backends.text.probe import TemplateTraits, probe

RENDERER = PlainRenderer()
SYSTEM, USER, ANSWER = Message("system", "Rule."), Message("user", "Hi"), Message("assistant", "Yo")
LOOK = Tool("look", "Looks it up.", {"type": "object", "properties": {"what": {"type": "string"}}})
FIND = Tool("find")
CALLS = (
    ToolCall("call_one_long_id", "look", '{"what": "sea"}'),
    ToolCall("call_two_long_id", "find", "{}"),
)
CALLED = Message("assistant", "Wait.", tool_calls=CALLS)
RESULTS = (
    Message("tool", "blue", tool_call_id="call_one_long_id"),
    Message("tool", "lost", tool_call_id="call_two_long_id"),
)
CHAT = (SYSTEM, USER, CALLED, *RESULTS, ANSWER, Message("user", "Bye"))
ALL_TEXTS = ("Rule.", "Hi", "Wait.", "look", "sea", "find", "blue", "lost", "Yo", "Bye")


def renderer(source):
    def render_one(messages, tools=(), calls=OPENAI_CALLS):
        values = message_values(messages, calls)
        return RENDERER.render(source, values, tools=tool_values(tools) or None)

    return render_one


def adapted(source, messages, tools=(), **options):
    """The prompt and the notices."""
    render_one = renderer(source)
    made = adapt(messages, probe(render_one), tools, **options)
    return render_one(made.messages, made.tools, made.calls), made.notices


def test_a_lost_system_prompt_goes_into_the_first_message():
    for system, verb in (("dropped", "drops"), ("refused", "refuses")):
        made = adapt([SYSTEM, USER, ANSWER, USER], TemplateTraits(system))
        assert made.messages == (Message("user", "Rule.\n\nHi"), ANSWER, USER)
        assert len(made.notices) == 1 and verb in made.notices[0]


def test_a_system_prompt_alone_becomes_the_first_message():
    assert adapt([SYSTEM], TemplateTraits("dropped")).messages == (Message("user", "Rule."),)


def test_system_messages_are_joined_before_all_others_where_the_template_takes_one():
    late = Message("system", "Later.")
    traits = TemplateTraits(late_system=False)
    made = adapt([USER, late, ANSWER, USER], traits)
    assert made.messages == (late, USER, ANSWER, USER) and len(made.notices) == 1
    made = adapt([SYSTEM, USER, late], traits)
    assert made.messages == (Message("system", "Rule.\n\nLater."), USER)
    assert "system messages (2)" in made.notices[0]
    for chat in ((SYSTEM, USER), (USER, ANSWER)):
        assert (adapt(chat, traits).messages, adapt(chat, traits).notices) == (chat, ())
    assert adapt([SYSTEM, USER, late], TemplateTraits()).messages == (SYSTEM, USER, late)


def test_what_is_joined_by_moving_system_messages_alternates():
    traits = TemplateTraits(late_system=False, must_alternate=True)
    made = adapt([USER, SYSTEM, USER, ANSWER], traits)
    assert made.messages == (SYSTEM, Message("user", "Hi\n\nHi"), ANSWER)
    assert len(made.notices) == 2


def test_parts_are_given_to_templates_that_take_them():
    both = [Message.of_parts(role, ["a", "", "b"]) for role in ("system", "user")]
    assert [message.content for message in both] == ["a\nb"] * 2
    joined = tuple(Message(message.role, "a\nb") for message in both)
    assert adapt(both, TemplateTraits()).messages == joined
    made = adapt(both, TemplateTraits(part_roles=frozenset({"user"})))
    assert made.messages == (joined[0], both[1])
    values = message_values(made.messages, OPENAI_CALLS)
    assert [value["content"] for value in values] == [
        "a\nb",
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    ]
    made = adapt([USER, ANSWER], TemplateTraits(needs_parts=True))
    assert [message.parts for message in made.messages] == [("Hi",), ("Yo",)]


def test_text_that_is_moved_takes_its_parts_along():
    parted = Message.of_parts("user", ["a", "b"])
    traits = TemplateTraits("dropped", must_alternate=True, part_roles=frozenset({"user"}))
    assert adapt([SYSTEM, parted], traits).messages == (Message("user", "Rule.\n\na\nb"),)
    assert adapt([parted, USER], traits).messages == (Message("user", "a\nb\n\nHi"),)


def test_turns_of_one_side_are_joined_where_they_must_alternate():
    made = adapt([USER, USER, ANSWER], TemplateTraits(must_alternate=True))
    assert made.messages == (Message("user", "Hi\n\nHi"), ANSWER)
    assert "joined" in made.notices[0]
    thoughts = [Message("assistant", text, reasoning=f"Why {text}?") for text in ("A", "B")]
    (_, both) = adapt([USER, *thoughts], TemplateTraits(must_alternate=True)).messages
    assert both == Message("assistant", "A\n\nB", reasoning="Why A?\n\nWhy B?")


def test_calls_and_results_in_a_row_are_no_turns_to_join():
    chat = (USER, CALLED, *RESULTS, ANSWER)
    assert adapt(chat, TemplateTraits(must_alternate=True)).messages == chat


def test_what_the_template_keeps_is_left_alone():
    made = adapt(CHAT, TemplateTraits(), (LOOK,))
    assert (made.messages, made.tools, made.notices) == (CHAT, (LOOK,), ())
    made = adapt((USER, ANSWER), TemplateTraits("refused", must_alternate=True))
    assert (made.messages, made.notices) == ((USER, ANSWER), ())


@pytest.mark.parametrize(
    "source",
    [HERMES, LLAMA3, DEEPSEEK, CHATML, GEMMA, GRANITE],
    ids=["hermes", "llama 3", "deepseek", "chatml", "gemma", "granite"],
)
def test_no_text_is_lost(source):
    prompt, notices = adapted(source, CHAT, (LOOK, FIND))
    assert [text for text in (*ALL_TEXTS, "Looks it up.") if text not in prompt] == []
    assert bool(notices) == (source != HERMES)


def test_what_cannot_be_kept_is_said():
    prompt, notices = adapted(MISTRAL, CHAT)
    assert [text for text in ALL_TEXTS if text not in prompt] == ["Wait."]
    assert len(notices) == 1 and "does not see" in notices[0]


def test_ids_are_shortened_alike_for_calls_and_results():
    made = adapt(CHAT, probe(renderer(MISTRAL)))
    values = message_values(made.messages, made.calls)
    calls = [call["id"] for value in values for call in value.get("tool_calls", ())]
    results = [value["tool_call_id"] for value in values if value["role"] == "tool"]
    assert calls == results and len(set(calls)) == 2
    assert all(len(ident) == 9 and ident.isalnum() for ident in calls)


def test_calls_that_were_made_together_are_shown_one_after_the_other():
    prompt, notices = adapted(LLAMA3, (USER, replace(CALLED, content=""), *reversed(RESULTS)))
    assert len(notices) == 1 and "one after the other" in notices[0]
    places = [prompt.index(text) for text in ("sea", "blue", "find", "lost")]
    assert places == sorted(places)


def test_text_beside_calls_becomes_a_turn_of_its_own():
    one_call = replace(CALLED, tool_calls=CALLS[:1])
    prompt, notices = adapted(LLAMA3, (USER, one_call, RESULTS[0]))
    assert len(notices) == 1 and "turn of its own" in notices[0]
    assert prompt.index("Wait.") < prompt.index("sea") < prompt.index("blue")


def test_tools_that_a_template_does_not_know_are_described_in_the_system_prompt():
    prompt, notices = adapted(CHATML, (SYSTEM, USER), (LOOK,))
    assert prompt.startswith("<|im_start|>system\nRule.\n\nYou can call tools.")
    assert '"description": "Looks it up."' in prompt and '"what"' in prompt
    assert len(notices) == 1 and "described" in notices[0]
    assert "several" in prompt
    assert "several" not in adapted(CHATML, (USER,), (LOOK,), parallel=False)[0]


@pytest.mark.parametrize("calls", [CALLS[:1], CALLS])
def test_calls_are_told_as_the_model_is_asked_to_write_them(calls):
    said = Message("assistant", tool_calls=calls)
    made = adapt((USER, said, *RESULTS), TemplateTraits(shows_tools=False, calls=None), (LOOK,))
    [told] = [message for message in made.messages if message.role == "assistant"]
    parser = described_format_of(CHATML).parser((LOOK, FIND), "")
    parts = [*parser.push(told.content), *parser.finish()]
    assert not [part for part in parts if isinstance(part, Token)]
    read = {}
    for part in parts:
        assert isinstance(part, ToolCallPart)
        name, arguments = read.get(part.position, ("", ""))
        read[part.position] = (name + part.name, arguments + part.arguments)
    assert [(name, json.loads(text)) for name, text in read.values()] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]
    assert made.messages[-1].role == "user"
    assert "Result of call_one_long_id:\nblue" in made.messages[-1].content


def test_results_stay_where_only_the_calls_are_lost():
    prompt, notices = adapted(GRANITE, (USER, CALLED, *RESULTS), (LOOK,))
    assert "<|tool|>blue<|end|><|tool|>lost<|end|>" in prompt
    assert len(notices) == 1
