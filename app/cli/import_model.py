"""`hearth import`: take a model file into the library folder."""

from __future__ import annotations

from pathlib import Path

import click

from hearth.app.cli import words
from hearth.app.cli.options import json_option
from hearth.app.cli.progress import ProgressLine
from hearth.app.cli.state import State, pass_state
from hearth.app.library.adopt import Way, adopt, plan_adoption
from hearth.app.shell import argument


@click.command("import")
@click.argument("source", metavar="FILE_OR_FOLDER", type=click.Path(path_type=Path))
@click.option("--copy", "way", flag_value="copy", default="copy", help="Copy it. The default.")
@click.option("--move", "way", flag_value="move", help="Move it: nothing stays where it was.")
@click.option("--link", "way", flag_value="link", help="Leave it where it is, and link to it.")
@click.option("--name", default="", metavar="NAME", help="Call it so; by default as its file.")
@json_option
@pass_state
def import_model(state: State, source: Path, way: Way, name: str, as_json: bool) -> None:
    """Take a GGUF file, or the one model in a folder, into the library; a model in safetensors is
    a folder.

    It is checked first, all parts of a split model are taken, and it is there whole or not at all.
    """
    adoption = plan_adoption(source, state.library, way, name)
    with ProgressLine(state, adoption.name) as line:
        path = adopt(adoption, lambda done_bytes: line.show(done_bytes, adoption.size_bytes))
    if as_json:
        state.output.json(
            {
                "name": adoption.name,
                "path": str(path),
                "files": [str(target) for _, target in adoption.files],
                "size_bytes": adoption.size_bytes,
                "way": adoption.way,
            }
        )
        return
    done = {"copy": "copied", "move": "moved", "link": "linked"}[adoption.way]
    state.output.data(f"{done} {adoption.name}, {words.size(adoption.size_bytes)}")
    state.output.note(f"Try it: hearth run {argument(adoption.name)} PROMPT")
