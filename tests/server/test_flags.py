"""Parameters with the same name in bodies, flags and settings have one range, because all are made
from the same fields.
"""

from __future__ import annotations

import click
import pytest

from hearth.app.cli.options import KeyType, flag_of
from hearth.app.cli.run import run
from hearth.app.server.routes import ENDPOINTS
from hearth.app.server.schema import Number
from hearth.app.settings_keys import ALL, Key

DIFFERENT = {
    "seed": "bodies take signed seeds as well, as OpenAI's clients send them",
    "logprobs": "chats have a flag of this name",
}
NOTHING_NEW = ("/v1/completions", "max_tokens")
"""0 computes the prompt alone. Bodies may also have a `top_p` of 0, as in OpenAI's API."""
NUMBERS = sorted(
    {
        (endpoint.path, parameter.name, parameter.schema)
        for endpoint in ENDPOINTS
        for parameter in endpoint.table or ()
        if isinstance(parameter.schema, Number)
        and parameter.name in ALL
        and parameter.name not in DIFFERENT
    },
    key=lambda found: found[:2],
)


def takes(key: Key, value: float) -> bool:
    try:
        KeyType(key).convert(str(value), None, None)
    except click.BadParameter:
        return False
    return True


@pytest.mark.parametrize(("path", "name", "number"), NUMBERS)
def test_bodies_and_flags_have_one_range(path, name, number) -> None:
    key = ALL[name]
    step = 1 if number.whole else 0.001
    low = number.low + step * ((path, name) == NOTHING_NEW or name == "top_p")
    assert takes(key, low) is not number.above_low
    assert not takes(key, low - step)
    assert takes(key, low + step)
    assert takes(key, number.high)
    assert not takes(key, number.high + step)
    assert takes(key, 1.5) is not number.whole or number.high < 1.5


def test_every_such_number_is_a_flag_of_run() -> None:
    shown = {
        name
        for option in run.params
        if isinstance(option, click.Option) and not option.hidden
        for name in option.opts
    }
    names = {name for _, name, _ in NUMBERS}
    assert {"temperature", "top_p", "max_tokens"} <= names
    assert {flag_of(ALL[name]) for name in names} <= shown
