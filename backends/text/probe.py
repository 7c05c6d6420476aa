"""Finds out what a chat template does to a conversation by rendering sentinels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

from hearth.backends.contract.messages import Message, Role, ToolCall
from hearth.backends.contract.requests import Tool
from hearth.backends.errors import TemplateError
from hearth.backends.text.chat_templates import HINT
from hearth.backends.text.conversation import OPENAI_CALLS, CallStyle, in_parts

_SYSTEM: Final = "systemsentinel7401"
_USER: Final = "usersentinel5288"
_SECOND: Final = "secondsentinel9136"
_TOOL: Final = "toolsentinel3350"
_KEY: Final = "keysentinel6104"
_ARGUMENT: Final = "argumentsentinel2549"
_VALUE: Final = "valuesentinel8827"
_RESULT: Final = "resultsentinel4095"
_SAID: Final = "saidsentinel1763"
NO_ANSWER: Final = ("timeout", "crashed")
"""Reasons of a `TemplateError` that do not depend on the conversation."""


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """How a chat template treats messages and tools."""

    system: Literal["kept", "dropped", "refused"] = "kept"
    late_system: bool = True
    """All system messages stay where they are, also several of them, or after other messages."""
    must_alternate: bool = False
    """Two messages of one role in a row are refused or lose text."""
    shows_tools: bool = True
    calls: CallStyle | None = OPENAI_CALLS
    """The form in which it keeps calls and their results; None: it loses one or the other."""
    results: bool = True
    """Results of tools are kept, even if the calls are not."""
    several_calls: bool = True
    """A message may have more than one call."""
    content_beside_calls: bool = True
    """Text that the model wrote before its calls is kept."""
    part_roles: frozenset[Role] = frozenset()
    """Roles whose content may be a list of text parts."""
    needs_parts: bool = False
    """Content must be a list of parts: the template loses plain strings."""


class Render(Protocol):
    """Renders a conversation with the template; raises `TemplateError`."""

    def __call__(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), calls: CallStyle = ...
    ) -> str: ...


def probe(render: Render) -> TemplateTraits:
    """The traits of a template, from rendering some short conversations.

    Raises:
        TemplateError: the template cannot render a single user message, or drops it; or a render
            took too long or crashed, so that nothing is known.
    """
    user = Message("user", _USER)
    if not _keeps(render([user]), _USER):
        if _takes_parts(render, [user]):

            def in_lists(messages: Sequence[Message], *rest: Any, **named: Any) -> str:
                return render(in_parts(messages), *rest, **named)

            return replace(_probe(in_lists), needs_parts=True)
        raise TemplateError("The chat template drops what the user wrote.", HINT, reason="dropped")
    return _probe(render)


def _probe(render: Render) -> TemplateTraits:
    user = Message("user", _USER)
    system: Literal["kept", "dropped", "refused"]
    try:
        kept = _keeps(render([Message("system", _SYSTEM), user]), _SYSTEM, _USER)
        system = "kept" if kept else "dropped"
    except TemplateError as error:
        _check_is_answer(error)
        system = "refused"
    tool = Tool(_TOOL, _SAID, {"type": "object", "properties": {_KEY: {"type": "string"}}})
    in_a_row = [user, Message("user", _SECOND)]
    calls = _call_style(render, tool)
    traits = TemplateTraits(
        system=system,
        late_system=system != "kept" or _keeps_late_system(render, tool),
        must_alternate=not _kept(render, in_a_row, (_USER, _SECOND)),
        shows_tools=_kept(render, [user], (_USER, _TOOL, _KEY), (tool,)),
        calls=calls,
        part_roles=_part_roles(render, calls),
    )
    if calls is None:
        told = [user, Message("assistant", _SAID), _result(0)]
        return replace(traits, results=_kept(render, told, (_SAID, f"{_RESULT}0"), (tool,)))
    twice = [user, Message("assistant", tool_calls=(_call(0), _call(1))), _result(0), _result(1)]
    beside = [user, Message("assistant", _SAID, tool_calls=(_call(0),)), _result(0)]
    several = (f"{_VALUE}0", f"{_VALUE}1", f"{_RESULT}1")
    return replace(
        traits,
        several_calls=_kept(render, twice, several, (), calls),
        content_beside_calls=_kept(render, beside, (_SAID, f"{_VALUE}0"), (), calls),
    )


def _keeps_late_system(render: Render, tool: Tool) -> bool:
    """Whether system messages are shown in their places, with and without tools."""
    roles: tuple[Role, ...] = ("system", "system", "user", "system", "assistant", "system", "user")
    messages = [Message(role, f"{_SAID}{place}") for place, role in enumerate(roles)]
    for tools in ((), (tool,)):
        prompt = _answer(render, messages, tools, OPENAI_CALLS).casefold()
        places = [prompt.find(message.content) for message in messages]
        if -1 in places or places != sorted(places):
            return False
    return True


def _part_roles(render: Render, calls: CallStyle | None) -> frozenset[Role]:
    """The roles whose messages may have a list of parts."""
    user, answer = Message("user", _USER), Message("assistant", _SAID)
    conversations: list[list[Message]] = [
        [user],
        [Message("system", _SYSTEM), user],
        [user, answer, user],
    ]
    if calls is not None:
        conversations.append([user, Message("assistant", tool_calls=(_call(0),)), _result(0)])
    places = (0, 0, 1, 2)
    return frozenset(
        messages[place].role
        for messages, place in zip(conversations, places, strict=False)
        if _takes_parts(render, messages, place, calls or OPENAI_CALLS)
    )


def _takes_parts(
    render: Render,
    messages: Sequence[Message],
    place: int = 0,
    calls: CallStyle = OPENAI_CALLS,
) -> bool:
    """Whether the message at `place` may have a list of parts."""
    parted = list(messages)
    parted[place] = replace(messages[place], parts=(f"{_SECOND}1", f"{_SECOND}2"))
    prompt = _answer(render, parted, (), calls)
    is_printed = any(mark in prompt.casefold() for mark in ("'type'", '"type"', '\\"type'))
    return _keeps(prompt, f"{_SECOND}1", f"{_SECOND}2") and not is_printed


def _call_style(render: Render, tool: Tool) -> CallStyle | None:
    """The first form of calls that the template renders correctly, if any."""
    conversation = [
        Message("user", _USER),
        Message("assistant", tool_calls=(_call(0),)),
        _result(0),
    ]
    ways = itertools.product((False, True), ("object", "text"), ("", "none"))
    for short_ids, arguments, absent in ways:
        style = CallStyle(arguments, absent, short_ids)  # type: ignore[arg-type]
        prompt = _answer(render, conversation, (tool,), style)
        wrong = (f"'{_ARGUMENT}'", f'\\"{_ARGUMENT}')  # Python's notation, or JSON in JSON
        if _keeps(prompt, _TOOL, f"{_VALUE}0", f"{_RESULT}0") and not any(
            one in prompt for one in wrong
        ):
            return style
    return None


def _call(number: int) -> ToolCall:
    return ToolCall(f"call_probe{number}", _TOOL, f'{{"{_ARGUMENT}": "{_VALUE}{number}"}}')


def _result(number: int) -> Message:
    return Message("tool", f"{_RESULT}{number}", tool_call_id=f"call_probe{number}", name=_TOOL)


def _kept(
    render: Render,
    messages: Sequence[Message],
    sentinels: Sequence[str],
    tools: Sequence[Tool] = (),
    calls: CallStyle = OPENAI_CALLS,
) -> bool:
    return _keeps(_answer(render, messages, tools, calls), *sentinels)


def _answer(
    render: Render, messages: Sequence[Message], tools: Sequence[Tool], calls: CallStyle
) -> str:
    """The rendered conversation; "" if the template refuses it."""
    try:
        return render(messages, tools, calls)
    except TemplateError as error:
        _check_is_answer(error)
        return ""


def _check_is_answer(error: TemplateError) -> None:
    """Raise `error` if its reason is in `NO_ANSWER`: it does not come from the template."""
    if error.data.get("reason") in NO_ANSWER:
        raise error


def _keeps(prompt: str, *sentinels: str) -> bool:
    folded = prompt.casefold()
    return all(sentinel in folded for sentinel in sentinels)
