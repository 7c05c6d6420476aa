"""Templates that attack: each ends as a typed error in time, and the next render is fine."""

import time

import pytest

from hearth.backends.errors import TemplateError
from hearth.backends.text.renderer import Renderer
from hostile_templates import HOSTILE

MESSAGES = [{"role": "user", "content": "hello"}]
GOOD = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
LIMIT_S = 1.5


@pytest.fixture(scope="module")
def renderer():
    renderer = Renderer()
    renderer.render(GOOD, MESSAGES)
    yield renderer
    renderer.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template(renderer, name):
    began = time.monotonic()
    with pytest.raises(TemplateError) as caught:
        renderer.render(HOSTILE[name], MESSAGES)
    assert time.monotonic() - began < LIMIT_S
    assert caught.value.data["reason"]
    assert len(caught.value.message) < 500
    assert renderer.render(GOOD, MESSAGES) == "<user>hello"


@pytest.mark.parametrize("name", ["class of a tuple", "walk by attr filter", "format attribute"])
def test_attacks_are_named_as_such(renderer, name):
    with pytest.raises(TemplateError, match="forbidden") as caught:
        renderer.render(HOSTILE[name], MESSAGES)
    assert caught.value.data["reason"] == "forbidden"
