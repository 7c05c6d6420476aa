"""The terminal app with unmodified Textual: none of the patches that make the other tests fast."""

from __future__ import annotations

import pytest
from textual.drivers.headless_driver import HeadlessDriver

from drawn import Drawn


@pytest.fixture(autouse=True, scope="module")
def styles_read_once() -> None:
    """Each app parses its style sheets."""


@pytest.fixture(autouse=True, scope="module")
def short_looks() -> None:
    """Textual's own waiting times."""


@pytest.fixture(autouse=True, scope="module")
def drawn_when_waited_for() -> None:
    """Each change is drawn when Textual draws it."""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """A terminal of 80 by 24 characters that gets all output of an app."""
    drawn = Drawn((80, 24))
    monkeypatch.setattr(HeadlessDriver, "is_headless", False)
    monkeypatch.setattr(HeadlessDriver, "write", lambda _, data: drawn.feed(data.encode()))
    return drawn
