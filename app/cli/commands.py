"""The commands of `hearth`, each imported when it runs."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import click

from hearth.app.exit_codes import ExitCode
from hearth.app.terminal import is_terminal

if TYPE_CHECKING:
    from hearth.app.cli.state import State
    from hearth.backends.errors import HearthError

PROGRAM = "hearth"

# name: (module in hearth.app.cli, name in it, help), so that listing them imports no command.
COMMANDS = {
    "run": ("run", "run", "Ask a model once; the answer goes to stdout."),
    "chat": ("chat", "chat", "Open the chat app, or chat line by line."),
    "list": ("models", "list_models", "List the models on this machine."),
    "show": ("show", "show", "Show what is known about a model."),
    "pull": ("pull", "pull", "Download a model from the Hugging Face Hub."),
    "import": ("models", "import_model", "Add a model file to the library."),
    "rm": ("models", "rm", "Delete models, after showing what that frees."),
    "fit": ("fit", "fit", "Show whether a model fits this machine, and how fast it will be."),
    "quantize": ("quantize", "quantize", "Quantize a model into a smaller file."),
    "convert": ("quantize", "convert", "Write packed weights in another format, unchanged."),
    "train-medusa": (
        "train_medusa",
        "train_medusa",
        "Train heads that guess the next tokens of a model.",
    ),
    "eval": ("evaluate", "evaluate", "Measure the quality of models, or of ways to quantize one."),
    "bench": ("bench", "bench", "Measure the speed of a model, or of a server."),
    "serve": ("serve", "serve", "Start a server compatible with OpenAI, Anthropic and Ollama."),
    "launch": ("launch", "launch", "Start a coding agent that uses a Hearth server."),
    "ps": ("loaded", "ps", "List the loaded models and what they do."),
    "stop": ("loaded", "stop", "Unload a model, or all of them."),
    "cache": ("cache", "cache", "Show or clear the keys and values on disk."),
    "doctor": ("installation", "doctor", "Check the installation and show where its files are."),
    "settings": (
        "installation",
        "settings",
        "Print the settings in force, and where each comes from.",
    ),
    "completion": ("installation", "completion", "Print the completion script of a shell."),
}
ALIASES = {"ls": "list"}


class Commands(click.Group):
    """A group that imports a command when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands of this version."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command called `cmd_name`."""
        entry = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        if entry is None:
            return None
        module = importlib.import_module(f"hearth.app.cli.{entry[0]}")
        command: click.Command = getattr(module, entry[1])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with. Raises `UsageError` with the nearest name."""
        name = args[0]
        if name not in COMMANDS and name not in ALIASES and not name.startswith("-"):
            from hearth.app.nearest import did_you_mean

            guess = did_you_mean(name, [*COMMANDS, *ALIASES])
            raise click.UsageError(
                f'There is no command "{name}".{guess} To ask a model: hearth run MODEL PROMPT.'
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands and the meaning of the exit codes."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in COMMANDS.items()])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), code.meaning) for code in ExitCode])


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--offline", is_flag=True, help="Open no network connection.")
@click.version_option(
    package_name="hearth-llm",
    prog_name=PROGRAM,
    message="%(prog)s %(version)s",
    help="Print the version.",
)
@click.pass_context
def cli(ctx: click.Context, offline: bool) -> int:
    """Run LLMs locally: terminal chat, model manager and an OpenAI-, Anthropic- and
    Ollama-compatible server.

    With no arguments, opens the chat app. Piped input is answered once.
    """
    from hearth.app.cli.state import State

    ctx.obj = state = State(offline=offline, offer=_offer_to_pull)
    if ctx.invoked_subcommand is not None:
        return ExitCode.OK
    if sys.stdin is not None and not is_terminal(sys.stdin):
        from hearth.app.cli.run import run_once
        from hearth.app.cli.typed import read_prompt

        text = read_prompt(())
        if not text:
            raise click.UsageError("Nothing was piped in. Try hearth --help.")
        return run_once(state, "", text, {})
    from hearth.app.cli.chat import open_chat

    return open_chat(state, "", {})


def _offer_to_pull(state: State, name: str, error: HearthError) -> bool:
    from hearth.app.cli.pull import offer_to_pull

    return offer_to_pull(state, name, error)
