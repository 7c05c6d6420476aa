"""Hosts and supervisors, each in its own folder, and replacements of their workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth.backends.host.supervisor import Supervisor
from hearth.backends.host.worker_process import WorkerProcess
from hearth.backends.machine.local_socket import HostPlace
from hosts import place_in
from stand_ins import StandIns


@pytest.fixture
def place(tmp_path: Path) -> HostPlace:
    place = place_in(tmp_path)
    place.prepare()
    return place


@pytest.fixture
def supervisor(place: HostPlace) -> Supervisor:
    return Supervisor(place)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> StandIns:
    made = StandIns()
    monkeypatch.setattr(WorkerProcess, "_spawn", lambda worker: made.spawn(worker))
    return made
