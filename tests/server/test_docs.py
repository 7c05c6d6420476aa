"""The page about the API agrees with the tables, and names every endpoint and parameter."""

from __future__ import annotations

import pytest

import api_docs
from hearth.app.server.openapi import BEYOND_SCHEMAS, CODES
from hearth.app.server.routes import ENDPOINTS

PAGE = api_docs.PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_the_tool_writes() -> None:
    assert api_docs.page() == PAGE, "run python tools/api_docs.py"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.path}")
def test_every_url_and_its_parameters_are_documented(endpoint) -> None:
    title = f"{endpoint.method} {endpoint.path.replace(':path', '')}"
    assert f"`{title}`" in PAGE
    part = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    for parameter in (*(endpoint.table or ()), *endpoint.query):
        assert f"`{parameter.name}`" in part


def test_every_code_is_documented() -> None:
    assert all(f"| `{code}` |" in PAGE for code in {**CODES, **BEYOND_SCHEMAS})
