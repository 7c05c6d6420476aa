"""Makes the prompt for a request: token ids and text as they are, messages by a chat template.

No part of a message is dropped silently: if the template would drop a part, it is passed in another
way and a notice is given; a parameter that cannot be honoured is refused by name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import Request, Tool
from hearth.backends.engine.kv.tree import common_prefix
from hearth.backends.errors import NoChatTemplate, TemplateError, UnsupportedParameter
from hearth.backends.text.adapt import Adapted, adapt
from hearth.backends.text.chat_templates import ChatTemplates, template_for
from hearth.backends.text.conversation import OPENAI_CALLS, CallStyle, message_values, tool_values
from hearth.backends.text.output.families import described_format_of, format_of, thinks
from hearth.backends.text.output.tagged_format import OutputFormat
from hearth.backends.text.probe import NO_ANSWER, TemplateTraits, probe
from hearth.backends.text.prompt import Guard
from hearth.backends.text.renderer import Renderer
from hearth.backends.text.template_values import honoured_values
from hearth.backends.text.tokenizer import Tokenizer
from hearth.backends.text.vocab.special_ids import written_marks

Pins = tuple[tuple[int, float], ...]
_NO_VALUES: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """The prompt that a model gets for a request."""

    ids: list[int]
    text: str | None
    """The prompt as readable text; None: decode `ids`."""
    notices: tuple[str, ...] = ()
    pins: Pins = ()
    """(N, seconds): keep the first N tokens for that many seconds; the longest prefix comes last.
    """
    format: OutputFormat | None = None
    """How the model writes its answer; None: all of the output is the answer."""
    before_answer: str = ""
    """`text` up to the point where the answer as a whole begins: without the content of the last
    message, if the answer continues it."""

    def last(self, most: int) -> PreparedPrompt:
        """The same prompt cut to its last `most` tokens; pins are removed if tokens are cut."""
        if len(self.ids) <= most:
            return self
        notice = f"The prompt was cut from {len(self.ids)} to its last {most} tokens."
        return replace(
            self, ids=self.ids[-most:], text=None, notices=(*self.notices, notice), pins=()
        )


class Prompts:
    """Makes the prompts of one loaded model. Thread-safe.

    Args:
        templates: the model's chat templates; empty if it has none.
        renderer: renders templates in a process that can be killed.
    """

    def __init__(
        self, name: str, tokenizer: Tokenizer, templates: ChatTemplates, renderer: Renderer
    ) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._templates = templates
        self._chats = {
            source: ChatPrompts(name, tokenizer, source, renderer) for source in templates.values()
        }

    def prepare(
        self, request: Request, check: Callable[[str], None] | None = None
    ) -> PreparedPrompt:
        """The prompt of `request`, which has passed `validate`.

        Args:
            check: called with the text of the prompt before it is tokenized; may raise to refuse
                the text.

        Raises:
            NoChatTemplate, TemplateError: messages cannot be rendered.
            UnsupportedParameter: `suffix`, `continue_last` or one of `template_values` cannot be
                honoured by this model.
        """
        if request.token_ids is not None:
            return PreparedPrompt(list(request.token_ids), None)
        if request.text is not None:
            if check is not None:
                check(request.text)
                check(request.suffix or "")
            if request.suffix is not None:
                ids = _infill_ids(request.text, request.suffix, self._tokenizer)
                return PreparedPrompt(ids, None)
            ids = self._tokenizer.encode(request.text, special=False, add_bos=True)
            return PreparedPrompt(ids, request.text)
        template = template_for(self._templates, tools=bool(shown_tools(request)))
        if template is None:
            raise NoChatTemplate(
                f"{self._name} has no chat template: it completes text and does not chat.",
                "Complete text with `hearth run MODEL --raw`, or set chat_template for this model"
                " in the settings.",
            )
        return self._chats[template].prepare(request, check)


class ChatPrompts:
    """Makes the prompts of one chat template, and finds out what the template supports.
    Thread-safe.

    Args:
        name: the model's name.
        template: Jinja source.
        renderer: renders the template in a process that can be killed.
    """

    def __init__(self, name: str, tokenizer: Tokenizer, template: str, renderer: Renderer) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._template = template
        self._renderer = renderer
        self._learning = threading.RLock()
        self._guard: Guard | None = None
        self._traits: TemplateTraits | None = None
        self._variables: frozenset[str] | None = None
        self._formats: dict[bool, OutputFormat] = {}

    def prepare(
        self, request: Request, check: Callable[[str], None] | None = None
    ) -> PreparedPrompt:
        """The prompt of `request`, which has messages.

        Args:
            check: called with the rendered text before it is tokenized; may raise to refuse the
                text.

        Raises:
            TemplateError: the messages cannot be rendered.
            UnsupportedParameter: `continue_last` or one of `template_values` cannot be honoured.
        """
        messages = request.messages or ()
        if request.continue_last:  # In one part, so that the answer continues all of it.
            messages = (*messages[:-1], messages[-1].with_content(messages[-1].content))
            request = replace(request, messages=messages)
        values, unread = self._values(request)
        adapted = self._adapted(request, messages)
        if request.continue_last:
            rendered = self._continued(request, adapted, values)
        else:
            rendered = self._render(
                adapted.messages,
                adapted.tools,
                adapted.calls,
                values=values,
                begin_answer=request.add_generation_prompt,
            )
        text = self._guarding.plain(rendered)
        if check is not None:
            check(text)
        ids = self._guarding.encode(rendered, self._tokenizer)
        pins, notices = self._pins(request, values, ids)
        is_described = len(adapted.tools) < len(shown_tools(request))
        output = self._format(described=is_described)
        begun = messages[-1].content or messages[-1].reasoning if request.continue_last else ""
        before = text.removesuffix(begun)
        return PreparedPrompt(
            ids, text, (*unread, *adapted.notices, *notices), pins, output, before
        )

    def _format(self, *, described: bool) -> OutputFormat:
        """The format in which the model writes reasoning and tool calls.

        Args:
            described: tools are described in the system prompt, which asks for calls in generic
                JSON.
        """
        with self._learning:
            if described not in self._formats:
                make = described_format_of if described else format_of
                self._formats[described] = make(self._template, self._tokenizer.control_tokens)
            return self._formats[described]

    def _adapted(self, request: Request, messages: Sequence[Message]) -> Adapted:
        return adapt(
            messages,
            self._template_traits(),
            shown_tools(request),
            parallel=not request.one_call,
        )

    def _continued(self, request: Request, adapted: Adapted, values: Mapping[str, Any]) -> str:
        """The prompt up to the end of the last message, which the model continues."""
        *earlier, last = adapted.messages
        rendered = self._up_to(request, len(request.messages or ()) - 1, values)
        if rendered is not None:
            return rendered
        if last.reasoning:
            raise UnsupportedParameter(
                "continue_last",
                f"The chat template of {self._name} does not show what the last message says, so"
                " it cannot be continued.",
                "Leave the reasoning out, or leave continue_last out.",
            )
        # The template refuses conversations that end with an answer, or hides the answer: render
        # the beginning of an answer and append the text.
        begun = self._render(earlier, adapted.tools, adapted.calls, values=values)
        return begun + str(self._guarding.protect(last.content))

    def _up_to(self, request: Request, index: int, values: Mapping[str, Any]) -> str | None:
        """The rendered text up to the end of message `index`; None if the template does not show
        the message, or refuses to render the conversation without the beginning of an answer.
        """
        messages = list(request.messages or ())
        message, end = messages[index], self._guarding.end
        if message.parts:
            *parts, last = message.parts
            # Where the template takes no parts, only the content reaches it.
            parted = (*parts, last + end)
            messages[index] = replace(message, content=message.content + end, parts=parted)
        elif message.content or not message.reasoning:
            messages[index] = replace(message, content=message.content + end)
        else:
            messages[index] = replace(message, reasoning=message.reasoning + end)
        rendered = self._ended(request, messages, values)
        position = -1 if rendered is None else rendered.rfind(end)
        return None if rendered is None or position < 0 else rendered[:position]

    def _pins(
        self, request: Request, values: Mapping[str, Any], ids: list[int]
    ) -> tuple[Pins, list[str]]:
        """The pins, and notices about messages that cannot be kept. The pin of a message with
        `keep_s` covers the tokens that the prompt shares with the text rendered up to the end of
        that message.
        """
        messages = request.messages or ()
        pins: dict[int, float] = {}
        notices: list[str] = []
        for index, message in enumerate(messages):
            if message.keep_s <= 0:
                continue
            part = self._ended(request, messages[: index + 1], values)
            if part is None:
                part = self._up_to(request, index, values)
            if part is None:
                notices.append(
                    "This model's chat template does not show where message"
                    f" {index + 1} ends, so what is computed for it is not kept specially."
                )
                continue
            tokens = common_prefix(ids, self._guarding.encode(part, self._tokenizer))
            if tokens:
                pins[tokens] = max(message.keep_s, pins.get(tokens, 0.0))
        return tuple(sorted(pins.items())), notices

    def _ended(
        self, request: Request, messages: Sequence[Message], values: Mapping[str, Any]
    ) -> str | None:
        """`messages` rendered without the beginning of an answer; None if the template refuses."""
        adapted = self._adapted(request, messages)
        try:
            return self._render(
                adapted.messages, adapted.tools, adapted.calls, values=values, begin_answer=False
            )
        except TemplateError as error:
            if error.data.get("reason") in NO_ANSWER:
                raise
            return None

    def _values(self, request: Request) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """The variables to render with, and notices about variables without effect."""
        if not request.template_values:
            return _NO_VALUES, ()
        with self._learning:
            if self._variables is None:
                self._variables = self._renderer.variables(self._template)
        is_thinking = thinks(self._template)
        return honoured_values(request.template_values, self._variables, thinks=is_thinking)

    def _template_traits(self) -> TemplateTraits:
        with self._learning:
            if self._traits is None:
                self._traits = probe(self._render)
            return self._traits

    @property
    def _guarding(self) -> Guard:
        with self._learning:
            if self._guard is None:
                known = self._tokenizer.control_tokens
                self._guard = Guard((*known, *written_marks(self._tokenizer)))
            return self._guard

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        calls: CallStyle = OPENAI_CALLS,
        *,
        values: Mapping[str, Any] = _NO_VALUES,
        begin_answer: bool = True,
    ) -> str:
        """The text rendered by the template, in which text from the request is still marked."""
        protect = self._guarding.protect
        return self._renderer.render(
            self._template,
            [
                {**protect(value), "role": value["role"]}
                for value in message_values(messages, calls)
            ],
            tools=[protect(value) for value in tool_values(tools)] or None,
            add_generation_prompt=begin_answer,
            bos_token=self._tokenizer.bos_text,
            eos_token=self._tokenizer.eos_text,
            extra={**self._tokenizer.named_tokens, **protect(dict(values))},
        )


def _infill_ids(before: str, after: str, tokenizer: Tokenizer) -> list[int]:
    """Token ids in the order prefix, suffix, middle (arXiv 2207.14255), which most models are
    trained on and llama.cpp's server uses too. Special tokens in the texts are plain text.

    Raises:
        UnsupportedParameter: the vocabulary has no infill tokens.
    """
    marks = tokenizer.infill_ids
    if marks is None:
        raise UnsupportedParameter(
            "suffix",
            "This model has no tokens for filling in text before a suffix.",
            "Use a model for code that was trained to fill in the middle, or leave suffix out.",
        )
    prefix, suffix, middle = marks
    return [
        *tokenizer.encode("", special=False, add_bos=True),
        prefix,
        *tokenizer.encode(before, special=False, add_bos=False),
        suffix,
        *tokenizer.encode(after, special=False, add_bos=False),
        middle,
    ]


def shown_tools(request: Request) -> tuple[Tool, ...]:
    """The tools that are shown to the model."""
    return () if request.tool_choice == "none" else tuple(request.tools)
