"""`hearth chat`: a conversation, line by line."""

from __future__ import annotations

from typing import Any

import click

from hearth.app.cli.lines import LineReader
from hearth.app.cli.options import complete_model, model_options, typed_settings
from hearth.app.cli.repl import Repl
from hearth.app.cli.state import State
from hearth.app.settings import Layer


@click.command("chat")
@click.argument("model", required=False, default="", shell_complete=complete_model)
@click.option(
    "--plain",
    is_flag=True,
    help="Line mode. This version has no other, so it is the same without this flag.",
)
@click.option(
    "--stats", is_flag=True, help="Print token counts and speeds to stderr after each answer."
)
@model_options
@click.pass_context
def chat(ctx: click.Context, /, model: str, plain: bool, stats: bool, **_: Any) -> int:
    """Chat with MODEL, by default the one in the settings (guide).

    Type /help for the commands. Ctrl+C stops an answer and keeps its text; Ctrl+D leaves. A line
    that ends in a backslash goes on in the next; triple quotes begin and end a longer text.
    """
    flags = typed_settings(ctx)
    if "logprobs" in flags:
        raise click.UsageError("A chat shows no log probabilities: hearth run --json prints them.")
    return open_chat(ctx.obj, model, flags, stats=stats)


def open_chat(state: State, model: str, flags: Layer, *, stats: bool = False) -> int:
    """Chat until the user leaves; returns the exit code."""
    with state.link() as link:
        return Repl(state, link, LineReader(), model, flags, stats=stats).run()
