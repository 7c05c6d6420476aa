"""A real `hearth serve` gets damaged requests: none may fail on the server's side.

`benchmarks/mutated_requests.py` sends 20,000 of them, and one by its number.
"""

from __future__ import annotations

import asyncio

from guide_forms import guide_path
from hostile_client import bombard
from mutated import MANAGED, SETTINGS
from served import served


def test_each_route_gets_damaged_requests() -> None:
    models = {"second": guide_path().with_name("guide-draft.f16.gguf")}
    with served(SETTINGS, models, MANAGED) as server:
        outcome = asyncio.run(bombard(server.port, 1, range(150)))
    assert [(one.index, one.asked, one.wrong) for one in outcome.violations] == []
    assert sum(outcome.statuses.values()) == 150
    assert {200, 400, 404, 405} <= {status for _, status in outcome.statuses}
