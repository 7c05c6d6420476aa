"""Commands that messages suggest can be pasted, whatever a model is called."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from hearth.app.cli.output import Output
from hearth.app.cli.run import require_template
from hearth.app.format import argument
from hearth.app.library.catalogue import pull_command
from hearth.app.library.local import FoundModel
from hearth.app.library.removal import refusal
from hearth.backends.errors import NoChatTemplate

NAMES = ("a b", "$(touch x)", "`x`", "a;b", "a'b", 'a"b', "a\nb", "~", "*", "", "plain-1.2")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_word_of_the_shell(name: str) -> None:
    assert shlex.split(f"hearth run {argument(name)} PROMPT") == ["hearth", "run", name, "PROMPT"]


def test_a_name_is_no_option() -> None:
    assert shlex.split(argument("-rf x")) == ["--", "-rf x"]
    assert pull_command("-x/y") == "hearth pull -- -x/y"


@pytest.mark.parametrize("name", NAMES)
def test_messages_quote_names(name: str) -> None:
    _, hint = refusal(FoundModel(name, Path("blob"), "ollama"))
    assert hint.endswith(f"ollama rm {shlex.quote(name)}")

    class Info:
        has_chat_template = False
        architecture = "llama"

    Info.name = name  # type: ignore[attr-defined]
    with pytest.raises(NoChatTemplate) as caught:
        require_template(Info)  # type: ignore[arg-type]
    assert f"--raw {shlex.quote(name)} TEXT" in caught.value.hint


def test_narration_is_safe_also_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stderr.isatty()
    output = Output({})
    output.note("a\x1b]0;title\x07b")
    output.problem("c\u202ed")
    thoughts = output.thoughts()
    thoughts.write("e\x1b[2Jf")
    thoughts.end()
    err = capsys.readouterr().err
    assert not set("\x1b\x07\u202e") & set(err)
    assert [line[0] + line[-1] for line in err.splitlines()] == ["ab", "cd", "ef"]
