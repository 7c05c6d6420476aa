"""`hearth chat`: the terminal app, or a line-by-line conversation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hearth.app.cli.options import complete_model, model_options, typed_settings
from hearth.app.cli.state import State
from hearth.app.settings import Layer
from hearth.app.terminal import can_draw

if TYPE_CHECKING:
    from hearth.app.chats.store import ChatStore


@click.command("chat")
@click.argument("model", required=False, default="", shell_complete=complete_model)
@click.option(
    "--plain",
    is_flag=True,
    help="Line by line, for screen readers and pipes; without a terminal it is always so.",
)
@click.option(
    "--stats", is_flag=True, help="Print token counts and speeds to stderr after each answer."
)
@click.option("--continue", "resume", is_flag=True, help="Continue the chat that changed last.")
@model_options
@click.pass_context
def chat(
    ctx: click.Context, /, model: str, plain: bool, stats: bool, resume: bool, **_: Any
) -> int:
    """Chat with MODEL, by default the one of the setting `model`.

    At a terminal the app opens; F1 shows its keys. Line by line, /help shows the commands, Ctrl+C
    stops an answer and keeps its text, Ctrl+D leaves. A line that ends in a backslash continues in
    the next; triple quotes begin and end a longer text. Both save their chats in one history.
    """
    flags = typed_settings(ctx)
    if "logprobs" in flags:
        raise click.UsageError("A chat shows no log probabilities: hearth run --json prints them.")
    return open_chat(ctx.obj, model, flags, plain=plain, stats=stats, resume=resume)


def open_chat(
    state: State,
    model: str,
    flags: Layer,
    *,
    plain: bool = False,
    stats: bool = False,
    resume: bool = False,
) -> int:
    """Chat until the user leaves: in the terminal app, or line by line if there is no terminal or
    `plain` is set. Returns the exit code.
    """
    if not (plain or stats) and can_draw():
        from hearth.app.tui.pace import quick_start

        with quick_start():
            from hearth.app.tui.open import open_app

            settings = state.settings.with_flags(flags)
            if model:
                state.find(model)
            return open_app(state.paths, settings, state.library, model, resume=resume)
    # Imported here because the terminal app does not need them: they would cost it 50 ms.
    from hearth.app.cli.repl import Repl
    from hearth.app.cli.typed import LineReader

    settings = state.settings.with_flags(flags)
    with state.link() as link, _history(state) as chats:
        repl = Repl(state, settings, link, chats, LineReader(), model, stats=stats, resume=resume)
        return repl.run()


@contextmanager
def _history(state: State) -> Iterator[ChatStore]:
    """The history; if it cannot be used, an empty one that is not saved."""
    from tempfile import TemporaryDirectory

    from hearth.app.chats.store import ChatStore
    from hearth.app.paths import own_folder
    from hearth.backends.errors import HearthError

    with ExitStack() as leaving:
        try:
            own_folder(state.paths.data)
            chats = ChatStore(state.paths.chats_file)
        except HearthError as error:
            state.output.problem(f"This chat will not be saved: {error.message}")
            folder = leaving.enter_context(TemporaryDirectory())
            chats = ChatStore(Path(folder) / "chats.db")
        yield leaving.enter_context(closing(chats))
