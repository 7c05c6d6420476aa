"""More than 300 texts that try to control a terminal, hide something, or be read as markup."""

from __future__ import annotations

from itertools import product

_SEQUENCES = (
    "\x1b]52;c;aGk=\x07",  # writes the clipboard
    "\x1b]52;c;?\x1b\\",  # reads it
    "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",  # a link with another name
    "\x1b]0;title\x07",
    "\x1b]1337;File=inline=1:AAAA\x07",
    "\x1b]9;notify\x07",
    "\x1b]777;notify;a;b\x1b\\",
    "\x1b[2J\x1b[H",
    "\x1b[31mred\x1b[0m",
    "\x1b[?1049l",
    "\x1b[?25l",
    "\x1b[6n",
    "\x1b[c",
    "\x1b[>q",
    "\x1b[21t",
    "\x1bc",
    "\x1bP+q544e\x1b\\",
    "\x1b_Gf=24;AAAA\x1b\\",
    "\x1bX string\x1b\\",
    "\x1b^ private\x1b\\",
    "\x1b[?2004l",
    "\x1b[200~pasted\x1b[201~",
    "\x9b31m",
    "\x9d52;c;aGk=\x9c",
    "\x90q\x9c",
    "\x07",
    "\x08\x08\x08",
    "\x0e\x0f",
    "\r overwritten",
    "\x0b\x0c",
    "\x7f",
    "\x00",
    "\x85",
    "\u202e reversed",
    "\u2066 isolated \u2069",
    "\u200f\u200e",
    "\u061c",
    "\u2028 line \u2029 paragraph",
    "\U000e0041\U000e0042",
    "\u200b\u200b",
    "\ufeff",
    "\u00ad",
    "\ufff9a\ufffab\ufffb",
    "[red]markup[/red]",
    "[@click=app.bell]press[/]",
    "[link=https://evil.example]x[/link]",
    "[/]",
    "[bold",
    "\\[x]",
    "[$primary]x[/]",
)
_FRAMES = (
    "{}",
    "before {} after",
    "{0}{0}{0}",
    "# {}",
    "- {}",
    "`{}`",
)

PAYLOADS: tuple[str, ...] = tuple(
    frame.format(sequence) for sequence, frame in product(_SEQUENCES, _FRAMES)
)
MARKDOWN_PAYLOADS: tuple[str, ...] = (
    "[good](javascript:alert(1))",
    "[good](https://evil.example/\x1b[31m)",
    "![x](file:///etc/passwd)",
    "<script>alert(1)</script>",
    "<https://evil.example>",
    "| a | \x1b[2J |\n|---|---|\n| \u202e | [red]x[/] |",
    "```\x1b]0;x\x07\n\x1b[2J\n```",
)
