"""`hearth completion`: shell completion of commands, options and model names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from hearth.app.cli.main import PROGRAM
from hearth.app.cli.state import State, pass_state
from hearth.backends.errors import InternalError

_INSTALL = {
    "bash": 'eval "$(hearth completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(hearth completion zsh)"   in ~/.zshrc',
    "fish": "hearth completion fish > ~/.config/fish/completions/hearth.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_INSTALL)))
@click.pass_context
@pass_state
def completion(state: State, ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash: eval "$(hearth completion bash)"   in ~/.bashrc
    zsh:  eval "$(hearth completion zsh)"    in ~/.zshrc
    fish: hearth completion fish > ~/.config/fish/completions/hearth.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise InternalError(f"click knows no completion for {shell}.")
    script = kind(ctx.find_root().command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()
    state.output.data(script)
    if state.output.to_terminal:
        state.output.note(f"To install: {_INSTALL[shell]}")
