"""Questions that a command puts to the person at the terminal."""

from __future__ import annotations

import sys

import click

from hearth.app.cli.prompt import clean
from hearth.app.cli.state import State
from hearth.app.cli.streams import is_terminal
from hearth.app.terminal import safe_text


def somebody_is_there(state: State) -> bool:
    """A person can read a question and answer it."""
    return is_terminal(sys.stdin) and state.output.narrates_to_terminal


def ask(question: str) -> str:
    """What the person types after `question`, without spaces around it.

    Raises:
        Abort: the end of input.
        KeyboardInterrupt: Ctrl+C.
    """
    print(safe_text(question), end=" ", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        print(file=sys.stderr)
        raise click.Abort
    return clean(line).strip()


def confirm(question: str, *, default: bool) -> bool:
    """The person says yes to `question`; Enter alone means `default`. Anything but yes and no is
    asked again. Raises as `ask`.
    """
    choices = "[Y/n]" if default else "[y/N]"
    while True:
        answer = ask(f"{question} {choices}").lower()
        if not answer:
            return default
        if answer in ("y", "yes", "n", "no"):
            return answer.startswith("y")
