"""The page about the endpoint names everything that there is."""

from __future__ import annotations

import pytest

from hearth.app.server import parameters
from hearth.app.server.application import ENDPOINTS
from source_tree import ROOT

PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted({*parameters.CHAT, *parameters.COMPLETIONS}))
def test_every_parameter_is_documented(name) -> None:
    assert f"`{name}`" in PAGE


def test_every_url_is_documented() -> None:
    for method, path, _ in ENDPOINTS:
        assert f"{method} {path.replace('{name:path}', '{id}')}`" in PAGE
