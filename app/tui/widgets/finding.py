"""One finding of the doctor."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from hearth.app.doctor import Finding
from hearth.app.terminal import safe_text

_MARKS = {
    "ok": ("✓", "$text-success"),
    "warning": ("!", "bold $text-warning"),
    "fault": ("✗", "bold $text-error"),
}
_SUBJECT_CELLS = 17


class FindingLine(Static):
    """A mark, the subject, the finding, and below it the remedy if one is needed."""

    DEFAULT_CSS = """
    FindingLine { height: auto; padding: 0 1; }
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(markup=False)
        self.finding = finding

    def on_resize(self) -> None:
        self.update(laid_out(self.finding, self.content_size.width))


def laid_out(finding: Finding, width: int) -> Content:
    """`finding` in lines of `width` cells, with its text and remedy in a column of their own."""
    mark, color = _MARKS[finding.state]
    indent = _SUBJECT_CELLS + 3 if width >= 72 else 4
    room = max(10, width - indent)
    lines = Content(safe_text(finding.text)).wrap(room)
    if finding.state != "ok" and finding.cure:
        for line in safe_text(finding.cure).split("\n"):
            lines += Content.styled(line, "$text-warning").wrap(room)
    subject = Content.assemble((mark, color), " ", (safe_text(finding.subject), "dim"))
    if indent == 4:
        shown = [subject, *(line.pad_left(indent) for line in lines)]
    else:
        first = subject.pad_right(indent - subject.cell_length)
        shown = [first + lines[0], *(line.pad_left(indent) for line in lines[1:])]
    return Content("\n").join(shown)
