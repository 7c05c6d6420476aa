"""Shows exactly what the model receives: the rendered prompt, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import Dialog
from hearth.backends.contract.backend import Backend
from hearth.backends.contract.events import Prompt
from hearth.backends.contract.requests import Request
from hearth.backends.errors import HearthError

WINDOW: Final = 500
"""Tokens shown at a time."""
_LONGEST_PIECE: Final = 60
BROKEN: Final = "\ufffd"
"""The replacement character: in the text of a token that holds part of a character."""
_LONGEST_CHARACTER: Final = 4
"""Most tokens that one character may need: each holds at least one of its bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens shown together: usually one, or several that form one character.

    Attributes:
        is_special: text that a user writes never gives this token.
    """

    ids: tuple[int, ...]
    text: str
    is_special: bool = False


class Pieces:
    """Gets the texts of tokens from a backend, and caches them.

    Args:
        backend: detokenizes the tokens.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[tuple[int, ...], Piece] = {}

    async def of(self, ids: Sequence[int]) -> list[Piece]:
        """The pieces of `ids`, in order. Raises what the backend raises."""
        pieces: list[Piece] = []
        at = 0
        while at < len(ids):
            piece = await self._piece(tuple(ids[at : at + 1]))
            for count in range(2, min(_LONGEST_CHARACTER, len(ids) - at) + 1):
                if BROKEN not in piece.text:
                    break
                together = await self._piece(tuple(ids[at : at + count]))
                if BROKEN not in together.text:
                    piece = together
            pieces.append(piece)
            at += len(piece.ids)
        return pieces

    async def _piece(self, ids: tuple[int, ...]) -> Piece:
        if ids not in self._known:
            text = await self._backend.detokenize(ids)
            is_special = len(ids) == 1 and await self._is_special(ids[0], text)
            self._known[ids] = Piece(ids, text, is_special)
        return self._known[ids]

    async def _is_special(self, token: int, text: str) -> bool:
        """Whether `text` gives this token only if special tokens are recognised."""
        if not text.startswith(("<", "[")) or len(text) < 3:  # All special tokens begin so.
            return False
        recognised = await self._backend.tokenize(text, special=True)
        return recognised == [token] and await self._backend.tokenize(text) != [token]


class PromptView(Dialog[None]):
    """The prompt of a request as text or as a list of tokens, one window at a time.

    Args:
        backend: renders the prompt.
        request: the request whose prompt is shown.
        context: context length in tokens; 0 if unknown.
    """

    DEFAULT_CSS = """
    PromptView > .dialog { width: 100%; max-width: 120; height: 100%; padding: 0 1; }
    PromptView .title { height: auto; }
    PromptView .title.-wrong { color: $text-error; }
    PromptView .notices { color: $text-warning; height: auto; }
    PromptView VerticalScroll { height: 1fr; }
    PromptView VerticalScroll > Static { width: 100%; height: auto; }
    """
    TITLE = "Rendering the prompt…"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "ids", "token ids", id="prompt_view.ids"),
        Binding("n,right", "window(1)", "next", id="prompt_view.next"),
        Binding("p,left", "window(-1)", "previous", id="prompt_view.previous"),
        Binding("y", "copy", "copy", id="prompt_view.copy"),
        Binding("escape,q", "dismiss(None)", "close", id="prompt_view.close"),
    ]

    def __init__(self, backend: Backend, request: Request, context: int = 0) -> None:
        super().__init__()
        self._backend = backend
        self._request = request
        self._limit = context
        self._pieces = Pieces(backend)
        self._prompt: Prompt | None = None
        self._window = 0
        self._has_ids = False

    def body(self) -> ComposeResult:
        yield Static("", classes="notices", markup=False)
        with VerticalScroll():
            yield Static("", id="tokens", markup=False)

    def on_mount(self) -> None:
        """Render and show the prompt."""
        self._show()

    @property
    def _windows(self) -> int:
        return 1 if self._prompt is None else max(1, -(-len(self._prompt.ids) // WINDOW))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey out the keys to missing windows, and those for ids and copying without a prompt."""
        if action == "window":
            wanted = self._window + (1 if parameters == (1,) else -1)
            return True if 0 <= wanted < self._windows else None
        if action in ("ids", "copy"):
            return True if self._prompt is not None else None
        return True

    def action_ids(self) -> None:
        """Switch between the list of tokens and the text."""
        self._has_ids = not self._has_ids
        self._show()

    def action_window(self, by: int) -> None:
        """Show the next or the previous window."""
        self._window = min(max(0, self._window + by), self._windows - 1)
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self._show()

    def action_copy(self) -> None:
        """Copy the whole prompt as text."""
        if self._prompt is not None:
            self.app.copy_to_clipboard(self._prompt.text)
            self.app.notify(f"Copied, {len(self._prompt.text):,} characters.", markup=False)

    @work(group="prompt", exclusive=True)
    async def _show(self) -> None:
        try:
            if self._prompt is None:
                self._prompt = await self._backend.render(self._request)
            first = self._window * WINDOW
            pieces = await self._pieces.of(self._prompt.ids[first : first + WINDOW])
        except HearthError as error:
            self._head(str(error), is_wrong=True)
            return
        self._headline(self._prompt)
        if self._has_ids:
            content = table(pieces, first)
        elif is_part(pieces, self._prompt.text):
            content = running_text(pieces)
        else:
            content = Content(safe_text(self._share(self._prompt.text)))
        self.query_one("#tokens", Static).update(content)
        self.refresh_bindings()

    def _share(self, text: str) -> str:
        """The part of `text` for this window, by proportion, if the tokens do not determine it."""
        begin, end = (len(text) * at // self._windows for at in (self._window, self._window + 1))
        return text[begin:end]

    def _headline(self, prompt: Prompt) -> None:
        count = len(prompt.ids)
        line = f"{count:,} tokens"
        if self._limit:
            line += f" of {self._limit:,} ({100 * count / self._limit:.0f} %)"
        is_over = bool(self._limit) and count >= self._limit
        if is_over:
            line += ": no room for an answer"
        if self._windows > 1:
            first = self._window * WINDOW
            line += f" · shown: {first:,} to {min(first + WINDOW, count) - 1:,}"
        self._head(line, is_wrong=is_over)
        notices = safe_text("\n".join(prompt.notices))
        self.query_one(".notices", Static).update(notices)

    def _head(self, text: str, *, is_wrong: bool) -> None:
        title = self.query_one(".title", Static)
        title.update(safe_text(text))
        title.set_class(is_wrong, "-wrong")


def is_part(pieces: list[Piece], text: str) -> bool:
    """Whether `text` contains the joined texts of the pieces.

    It does not if the tokenizer gives a token a different text alone than among others. Ignored are
    incomplete characters at the ends, because a window may begin and end within a character, and a
    special first token, because the token that begins every text is in no template.
    """
    whole = "".join(piece.text for piece in pieces).strip(BROKEN)
    after_first = "".join(piece.text for piece in pieces[1:]).strip(BROKEN)
    return whole in text or bool(pieces and pieces[0].is_special and after_first in text)


def running_text(pieces: list[Piece]) -> Content:
    """The text unchanged, with special tokens marked."""
    return Content.assemble(
        *(
            (safe_text(piece.text), "$text-accent on $accent-muted")
            if piece.is_special
            else safe_text(piece.text)
            for piece in pieces
        )
    )


def table(pieces: list[Piece], first: int) -> Content:
    """A line for each piece: position of its first token, ids, and the text on one line.

    Args:
        first: position of the first token of `pieces` in the prompt.
    """
    lines: list[Content] = []
    position = first
    for piece in pieces:
        shown = piece.text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
        if len(shown) > _LONGEST_PIECE:
            shown = shown[: _LONGEST_PIECE - 1] + "…"
        ids = " ".join(map(str, piece.ids))
        style = "$text-accent on $accent-muted" if piece.is_special else ""
        lines.append(
            Content.assemble(
                (f"{position:>7,}  ", "dim"), f"{ids:>7}  ", (f"{safe_text(shown)}", style)
            )
        )
        position += len(piece.ids)
    return Content("\n").join(lines)
