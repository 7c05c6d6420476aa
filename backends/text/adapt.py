"""Changes a conversation so that a chat template loses nothing of it, and describes each change.

Some templates silently drop the system prompt, some refuse it, some refuse roles that do not
alternate, some do not support tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import Tool
from hearth.backends.text.conversation import OPENAI_CALLS, CallStyle, in_parts
from hearth.backends.text.described import describe, with_description, without_calls
from hearth.backends.text.probe import TemplateTraits


@dataclass(frozen=True, slots=True)
class Adapted:
    """A conversation in a form that the template accepts."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    """The tools that the template shows."""
    calls: CallStyle = OPENAI_CALLS
    notices: tuple[str, ...] = ()
    """One sentence for each change."""


def adapt(
    messages: Sequence[Message],
    traits: TemplateTraits,
    tools: Sequence[Tool] = (),
    *,
    parallel: bool = True,
) -> Adapted:
    """`messages` and `tools`, changed so that a template with `traits` loses nothing of them.

    Args:
        parallel: the model may call several tools at once.
    """
    notices: list[str] = []
    adapted = list(messages)
    systems = [index for index, message in enumerate(adapted) if message.role == "system"]
    if not traits.late_system and systems not in ([], [0]):
        adapted = _system_first(adapted)
        notices.append(
            "This model's chat template takes one system message, before all others, so the"
            f" system messages ({len(systems)}) were joined there in their order."
        )
    if tools and not traits.shows_tools:
        told = without_calls(adapted, keep_results=False)  # In the form that is described.
        adapted = with_description(told, describe(tools, parallel=parallel))
        tools = ()
        notices.append(
            "This model's chat template knows no tools, so they were described in the system"
            " prompt; whether the model can use them is not certain."
        )
    if any(message.tool_calls or message.role == "tool" for message in adapted):
        adapted, said = _fitting_calls(adapted, traits)
        notices += said
    if traits.system != "kept" and any(message.role == "system" for message in adapted):
        adapted = _fold_system(adapted)
        verb = "drops" if traits.system == "dropped" else "refuses"
        notices.append(
            f"This model's chat template {verb} the system prompt, "
            "so it was put at the start of the first message."
        )
    if traits.must_alternate:
        merged = _merge_turns(adapted)
        if len(merged) < len(adapted):
            adapted = merged
            notices.append(
                "This model's chat template wants turns that alternate, "
                "so messages in a row from the same side were joined."
            )
    if traits.needs_parts:
        adapted = in_parts(adapted)
    else:
        adapted = [
            message.with_content(message.content)
            if message.parts and message.role not in traits.part_roles
            else message
            for message in adapted
        ]
    return Adapted(tuple(adapted), tuple(tools), traits.calls or OPENAI_CALLS, tuple(notices))


def _fitting_calls(
    messages: list[Message], traits: TemplateTraits
) -> tuple[list[Message], list[str]]:
    """Calls and results in a form that the template keeps, and the notices of what was changed."""
    if traits.calls is None:
        return _told_calls(messages, keep_results=traits.results and traits.shows_tools)
    notices: list[str] = []
    if not traits.several_calls and any(len(message.tool_calls) > 1 for message in messages):
        messages = _one_call_a_turn(messages)
        notices.append(
            "This model's chat template takes one tool call a turn, so calls that were made"
            " together are shown one after the other."
        )
    has_both = any(message.content and message.tool_calls for message in messages)
    if has_both and not traits.content_beside_calls:
        lost = "This model's chat template loses text next to tool calls"
        if traits.must_alternate:
            notices.append(f"{lost}: the model does not see what it said there.")
        else:
            messages = _content_before_calls(messages)
            notices.append(f"{lost}, so the text is shown as a turn of its own.")
    return messages, notices


def _told_calls(messages: list[Message], *, keep_results: bool) -> tuple[list[Message], list[str]]:
    """Calls as text, and results too unless `keep_results`; and the notice, if anything changed."""
    lost = "tool calls" if keep_results else "tool calls or their results"
    notice = (
        f"This model's chat template loses {lost}, so they were written into the text of the"
        " conversation."
    )
    told = without_calls(messages, keep_results=keep_results)
    return told, [notice] if told != messages else []


def _one_call_a_turn(messages: list[Message]) -> list[Message]:
    turns: list[Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        if len(message.tool_calls) < 2:
            turns.append(message)
            continue
        results: list[Message] = []
        while index < len(messages) and messages[index].role == "tool":
            results.append(messages[index])
            index += 1
        turns += _taken_apart(message, results)
    return turns


def _taken_apart(message: Message, results: list[Message]) -> list[Message]:
    """One message for each call of `message`, each followed by its result."""
    turns: list[Message] = []
    for position, call in enumerate(message.tool_calls):
        alone = replace(message, tool_calls=(call,))
        turns.append(alone if position == 0 else replace(alone.with_content(""), reasoning=""))
        answer = next((one for one in results if one.tool_call_id in ("", call.id)), None)
        if answer is not None:
            results.remove(answer)
            turns.append(replace(answer, tool_call_id=call.id))
    return turns + results


def _content_before_calls(messages: list[Message]) -> list[Message]:
    turns: list[Message] = []
    for message in messages:
        if message.content and message.tool_calls:
            turns.append(replace(message, tool_calls=()))
            message = replace(message.with_content(""), reasoning="")
        turns.append(message)
    return turns


def _system_first(messages: Sequence[Message]) -> list[Message]:
    """The system messages joined into one, followed by the other messages."""
    system = [one.content for one in messages if one.role == "system"]
    others = [one for one in messages if one.role != "system"]
    return [Message("system", "\n\n".join(system)), *others]


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    """The system messages joined and put at the beginning of the first user message."""
    system, *others = _system_first(messages)
    for index, message in enumerate(others):
        if message.role == "user":
            others[index] = message.with_content(f"{system.content}\n\n{message.content}")
            return others
    return [Message("user", system.content), *others]


def _merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Consecutive messages of one role joined, except tool calls and results."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.role == message.role != "tool"
            and not (last.tool_calls or message.tool_calls)
        ):
            content, reasoning = (
                "\n\n".join(filter(None, pair))
                for pair in ((last.content, message.content), (last.reasoning, message.reasoning))
            )
            merged[-1] = replace(message.with_content(content), reasoning=reasoning)
        else:
            merged.append(message)
    return merged
