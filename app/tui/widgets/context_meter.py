"""How full the context is, and what is left out of it."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from hearth.app.terminal import safe_text

_CELLS = 10


class ContextMeter(Static):
    """One line: the model, what it does, and how much of its context the chat takes."""

    DEFAULT_CSS = """
    ContextMeter {
        height: 1;
        padding: 0 1;
        color: $text-muted;
        &:ansi { text-style: dim; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__("", id=id, markup=False)

    def show(
        self,
        model: str,
        state: str,
        *,
        used: int,
        context: int,
        draft: int = 0,
        left_out: int = 0,
        would_leave_out: int = 0,
    ) -> None:
        """Show how it stands.

        Args:
            state: what goes on, in words; empty between turns.
            used: tokens of the last prompt and its answer.
            context: how many tokens there may be; 0 while that is unknown.
            draft: tokens of what is being written.
            left_out: messages that are not sent any more.
            would_leave_out: messages that would not be sent with the draft.
        """
        parts = [Content.styled(safe_text(model), "$text")]
        if state:
            parts.append(Content.styled(safe_text(state), "$accent"))
        if context:
            parts.append(_bar(used, draft, context))
        elif used:
            parts.append(Content(f"{used:,} tokens"))
        if left_out:
            parts.append(Content.styled(f"{left_out} oldest messages not sent", "$warning"))
        if would_leave_out:
            parts.append(
                Content.styled(f"{would_leave_out} oldest messages would be cut", "$warning")
            )
        self.update(Content(" · ").join(parts))


def _bar(used: int, draft: int, context: int) -> Content:
    share = min(1.0, (used + draft) / context)
    filled = round(share * _CELLS)
    style = "$error" if share > 0.95 else "$warning" if share > 0.8 else "$success"
    more = f" + {draft:,}" if draft else ""
    return Content.assemble(
        ("━" * filled, style),
        ("━" * (_CELLS - filled), "$surface-lighten-2"),
        f" {used:,}{more} of {context:,} tokens ({share:.0%})",
    )
