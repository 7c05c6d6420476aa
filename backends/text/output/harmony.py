"""gpt-oss: messages in channels, `<|channel|>analysis<|message|>...<|end|><|start|>assistant...`;
a message to a function is a call (the harmony format in OpenAI's cookbook).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from hearth.backends.contract.events import Channel
from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.collector import Unreadable
from hearth.backends.text.output.json_scanner import SPACE
from hearth.backends.text.output.lark import Lark
from hearth.backends.text.output.parser import OutputParser
from hearth.backends.text.output.reading import LONGEST_NAME, arguments
from hearth.backends.text.output.tagged_format import OutputFormat
from hearth.backends.text.stops import MarkerSearch

_START: Final = "<|start|>"
_CHANNEL: Final = "<|channel|>"
_CONSTRAIN: Final = "<|constrain|>"
_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>")
_ALL: Final = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)
_CHANNELS: Final[Mapping[str, Channel]] = {
    "": "content",
    "analysis": "reasoning",
    "commentary": "content",
    "final": "content",
}
_RECIPIENT: Final = "to="
_FUNCTIONS: Final = "functions."
_PLAIN_HEADERS: Final = tuple(
    f"{before}{_CHANNEL}{channel}{_MESSAGE}"
    for before in ("", f"{_START}assistant")
    for channel in ("analysis", "commentary", "final")
)
"""Headers that determine only whether text is reasoning or content."""


class HarmonyFormat(OutputFormat):
    """How gpt-oss writes."""

    markers = _ALL

    def parser(self, tools: Sequence[Tool], prompt: str, *, required: bool = False) -> OutputParser:
        return HarmonyParser(tools, prompt, self.make_id)

    def grammar(
        self,
        prompt: str,
        *,
        content: str | None,
        tools: Sequence[Tool],
        required: bool,
        parallel: bool,
    ) -> str | None:
        is_strict = any(tool.strict for tool in tools)
        if content is None and not required and not is_strict:
            return None
        lark = Lark(self.control_tokens, tools, required=required, parallel=parallel)
        answer = lark.text if content is None else lark.rule(content)
        if prompt.rstrip().endswith(_MESSAGE):  # The prompt chose the channel: this is the answer.
            return None if content is None else lark.source(answer)
        ends = [_call(lark, tool) for tool in tools]
        befores = [_message_rule(lark, "analysis", _rest_of_message(lark))]
        if not required:
            ends.append(_message_rule(lark, "final", answer))
            if content is None:
                befores.append(_message_rule(lark, "commentary", _rest_of_message(lark)))
        return lark.source(f"({' | '.join(befores)})* {lark.one_of(ends)}")


def _message_rule(lark: Lark, channel: str, body: str) -> str:
    return lark.rule(f"{lark.written(_CHANNEL + channel + _MESSAGE, _ALL)} {body}")


def _rest_of_message(lark: Lark) -> str:
    """A rule for a message's text, its end, and the beginning of the next message."""
    return f"{lark.until(_ENDS[0])} {lark.written(_START + 'assistant', _ALL)}"


def _call(lark: Lark, tool: Tool) -> str:
    """A rule for a call; the token that ends it also ends the answer."""
    head = f"{_CHANNEL}commentary to={_FUNCTIONS}{tool.name} {_CONSTRAIN}json{_MESSAGE}"
    return lark.rule(f"{lark.written(head, _ALL)} {lark.arguments(tool)}")


class HarmonyParser(OutputParser):
    """Reads one answer of gpt-oss.

    The analysis channel is reasoning; messages without a recipient in the other channels are
    content; messages to a function in `tools` are calls. Any other header becomes content, and so
    does its message.

    Args:
        prompt: ends at the beginning of a message or inside one.
    """

    def __init__(self, tools: Collection[Tool], prompt: str, make_id: Callable[[], str]) -> None:
        super().__init__(tools, make_id)
        self._takes_calls = bool(tools)
        self._search = MarkerSearch(_ALL)
        self._channel: Channel = "content"
        self._header = ""
        self._skips_space = False
        """White space that follows is dropped."""
        prompt = prompt.rstrip()
        if prompt.endswith(_MESSAGE):
            header = _read_header(prompt[prompt.rfind(_CHANNEL) : -len(_MESSAGE)])
            self._channel = header[0] if header else "content"
        else:
            self._step = self._in_header

    @property
    def channel(self) -> Channel:
        return self._channel if self._step == self._in_text else "content"

    def _end_text(self, *, cut: bool) -> None:
        header = self._header + self._search.held
        if self._step == self._in_text:
            self._collector.add_text(self._search.finish(), self._channel)
        elif cut and header.startswith("<|"):
            recipient = header.partition(_RECIPIENT)[2].partition("<|")[0].strip()
            if self._takes_calls and recipient:
                self._collector.begin_call("", is_suspect=True)
                self._collector.cut_off(recipient.removeprefix(_FUNCTIONS))
        else:
            self._break_off(self._header + self._search.finish())

    def _in_text(self, text: str, at: int) -> int:
        shown, marker, at = self._search.find(text, at)
        if self._skips_space:
            shown = shown.lstrip(SPACE)
        if shown:
            self._skips_space = False
            self._collector.add_text(shown, self._channel)
        if marker in _ENDS:
            self._after_call()
        elif marker in (_START, _CHANNEL):
            self._header = marker
            self._step = self._in_header
        return at

    def _in_header(self, text: str, at: int) -> int:
        """Read one character of a header. A new message or an end mark breaks off the header."""
        shown, marker, _ = self._search.find(text[at])
        at += 1
        if marker is not None and (marker in _ENDS or (marker == _START and self._header)):
            self._break_off(self._header + shown)
            if marker == _START:
                self._header = marker
                self._step = self._in_header
            return at
        if not shown and marker is None:
            return at
        self._header += shown + (marker or "")
        if marker == _MESSAGE:
            self._take_header(self._header)
        elif len(self._header) > LONGEST_NAME or not _may_be_header(self._header):
            self._break_off(self._header)
        return at

    def _take_header(self, header: str) -> None:
        """The header is complete: the message begins."""
        self._header = ""
        self._step = self._in_text
        self._skips_space = False
        known = _read_header(header.removesuffix(_MESSAGE))
        if known is not None and not known[1]:
            self._channel = known[0]
            return
        self._channel = "content"
        self._collector.begin_call(header, is_suspect=self._takes_calls and _RECIPIENT in header)
        if known is None or not self._takes_calls:
            self._collector.give_up(at_end=False)
            return
        try:
            self._collector.open_call(known[1].removeprefix(_FUNCTIONS))
        except Unreadable:
            self._collector.give_up(at_end=False)
            return
        self._read_call(arguments(self._collector))

    def _break_off(self, header: str) -> None:
        """The header ends before its message begins: content, unless it begins a plain header."""
        self._header = ""
        self._after_call()
        if any(plain.startswith(header) for plain in _PLAIN_HEADERS):
            return
        self._skips_space = False
        self._collector.begin_call(header, is_suspect=self._takes_calls and _RECIPIENT in header)
        self._collector.give_up(at_end=False)

    def _after_call(self) -> None:
        self._channel = "content"
        self._skips_space = True
        self._step = self._in_text


def _may_be_header(text: str) -> bool:
    """Whether a header can begin with `text`. Without a mark, it can only name its recipient."""
    bare = text.lstrip(" ")
    return "<|" in text or _RECIPIENT.startswith(bare) or bare.startswith(_RECIPIENT)


def _read_header(header: str) -> tuple[Channel, str] | None:
    """Channel and recipient; None if `header` contains anything else."""
    for mark in (_START, _CHANNEL, _CONSTRAIN):
        header = header.replace(mark, f" {mark} ")
    channel = recipient = ""
    before = ""
    for part in header.split():
        if before == _CHANNEL and not channel:
            channel = part
        elif part.startswith(_RECIPIENT) and not recipient:
            recipient = part.removeprefix(_RECIPIENT)
        elif part not in (_START, _CHANNEL, _CONSTRAIN, "assistant", "json"):
            return None
        before = part
    if channel not in _CHANNELS:
        return None
    return _CHANNELS[channel], recipient
