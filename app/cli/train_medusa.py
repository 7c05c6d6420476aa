"""`hearth train-medusa`: trains Medusa heads for a model on this machine."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from hearth.app import format as words
from hearth.app import settings_keys as keys
from hearth.app.cli.options import complete_model, json_option, setting_options, typed_settings
from hearth.app.cli.output import run_pausable
from hearth.app.cli.state import State


@click.command("train-medusa")
@click.argument("model", shell_complete=complete_model)
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Learn from this text; with --self, each line is a question to the model.",
)
@click.option(
    "--self",
    "is_self",
    is_flag=True,
    help="Learn from what the model answers; without --text, to requests about a bundled text.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The new file. Default: next to MODEL, where it is found when MODEL is loaded.",
)
@click.option("--heads", type=click.IntRange(1, 8), help="Tokens guessed ahead. Default: 4.")
@click.option("--blocks", type=click.IntRange(1, 4), help="Layers of each head. Default: 1.")
@click.option(
    "--tokens",
    type=click.IntRange(256),
    help="Tokens of the text or of the answers, at most. Default: 200,000.",
)
@click.option("--epochs", type=click.IntRange(1, 100), help="Passes over them. Default: 4.")
@click.option("--yes", "-y", is_flag=True, help="Replace a file that is there.")
@setting_options((keys.ALL["threads"],))
@json_option
@click.pass_context
def train_medusa(
    ctx: click.Context,
    /,
    model: str,
    text: Path | None,
    is_self: bool,
    output: Path | None,
    heads: int | None,
    blocks: int | None,
    tokens: int | None,
    epochs: int | None,
    yes: bool,
    as_json: bool,
    **_options: Any,
) -> int:
    """Train Medusa heads for MODEL, which stays as it is: small networks that guess its next tokens
    (`--speculate medusa`, or auto). Ctrl+C pauses; the same command resumes, also after a crash.

    It learns from --text FILE or, better, from what the model itself writes: --self.
    """
    from hearth.app.library.compare_quality import sample_of
    from hearth.app.library.heads_job import question, train
    from hearth.app.library.model_files import files_of
    from hearth.app.paths import own_folder
    from hearth.backends.contract.models import heads_path
    from hearth.backends.errors import UnsupportedModel

    state: State = ctx.obj
    if not is_self and text is None:
        raise click.UsageError("Say what to learn from: --self, or --text FILE.")
    resolved = state.library.resolve(model)
    if resolved.remote is not None:
        raise UnsupportedModel(
            f"{resolved.name} is on another machine; heads are trained next to a file on this one.",
            "Run the command there.",
        )
    source = text or Path(str(files("hearth.assets") / "texts" / "calibration.txt"))
    learned = sample_of(source).text
    target = (output or heads_path(resolved.path)).absolute()
    if not target.parent.is_dir():
        raise click.UsageError(f"--output: there is no folder {target.parent}.")
    if target.exists() and not yes:
        raise click.UsageError(f"{target} is there already; --yes replaces it.")
    given = {"heads": heads, "blocks": blocks, "tokens": tokens, "epochs": epochs}
    asked = question(
        state.choose(model, typed_settings(ctx)).spec,
        files_of(resolved.path),
        state.paths,
        text=learned,
        is_self=is_self,
        are_questions=text is not None,
        target=target,
        options={name: value for name, value in given.items() if value is not None},
    )
    result = run_pausable(state.output, train, asked, own_folder(state.paths.log), "{:,}".format)
    if as_json:
        state.output.json(result)
        return 0
    right = ", ".join(f"{one:.0%}" for one in result["accepted"])
    state.output.note(
        f"{result['path']} ({words.size(result['size_bytes'])}) was made in "
        f"{words.duration(result['wall_s'])} from {result['tokens']:,} tokens. Of places it did "
        f"not learn from, the first 1 to {result['heads']} guesses are right at {right}."
    )
    return 0
