"""The synchronous face of the host."""

from __future__ import annotations

import _thread
import threading
from pathlib import Path

import pytest

from fake_host import FakeHost
from hearth.app.cli.asking import ask
from hearth.app.host_link import HostLink
from hearth.backends.contract.events import Event, Failed, Finished, Token
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.errors import HostUnreachable, UnsupportedModel
from hearth.backends.host import client
from hearth.backends.machine.local_socket import HostPlace

SPEC = ModelSpec("/m.gguf", "m")
LOST = {"error": {"code": "host_unreachable", "message": "The connection was lost."}}


@pytest.fixture
def place(tmp_path: Path) -> HostPlace:
    return HostPlace(tmp_path / "run", tmp_path / "log", tmp_path / "cache")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeHost:
    fake = FakeHost(request.param)
    monkeypatch.setattr(client, "HostClient", fake)
    return fake


def script(*answers: list[dict[str, object]], **more: object) -> dict[str, object]:
    return {"answers": list(answers), **more}


def read(link: HostLink) -> list[Event]:
    with link.stream(SPEC, Request(text="hi")) as events:
        return list(events)


@pytest.mark.parametrize(
    "host", [script([{"text": "a"}, {"text": "b"}, {"finish": "stop"}])], indirect=True
)
def test_events_come_in_order_and_end_with_the_last(host: FakeHost, place: HostPlace) -> None:
    with HostLink(place, 1.0) as link:
        assert link.info(SPEC).name == "m"
        *tokens, last = read(link)
    assert [token.text for token in tokens if isinstance(token, Token)] == ["a", "b"]
    assert isinstance(last, Finished)
    assert host.attached == 1


@pytest.mark.parametrize("host", [script([{"text": "a"}, {"wait": True}])], indirect=True)
def test_an_interrupted_stream_ends_and_cancels_the_request(
    host: FakeHost, place: HostPlace
) -> None:
    seen = []
    with HostLink(place, 1.0) as link, link.stream(SPEC, Request(text="hi")) as events:
        for event in events:
            seen.append(event)
            events.interrupt()
    assert len(seen) == 1
    assert host.cancelled == 1


@pytest.mark.parametrize("host", [script([{"text": "a"}])], indirect=True)
def test_a_stream_without_an_end_is_a_failure(host: FakeHost, place: HostPlace) -> None:
    with HostLink(place, 1.0) as link:
        last = read(link)[-1]
    assert isinstance(last, Failed)
    assert last.error.code == "internal_error"


@pytest.mark.parametrize("host", [script([LOST], [{"finish": "stop"}])], indirect=True)
def test_after_a_lost_connection_the_next_request_attaches_again(
    host: FakeHost, place: HostPlace
) -> None:
    with HostLink(place, 1.0) as link:
        assert isinstance(read(link)[-1], Failed)
        assert isinstance(read(link)[-1], Finished)
    assert host.attached == 2


@pytest.mark.timeout(20)
@pytest.mark.parametrize("host", [script([{"text": "a"}, {"wait": True}])], indirect=True)
def test_a_signal_that_wakes_nobody_ends_the_wait_all_the_same(
    host: FakeHost, place: HostPlace
) -> None:
    """`interrupt_main` does what a Ctrl+C does that comes just before the main thread waits."""
    signal_after_a = threading.Timer(0.1, _thread.interrupt_main)
    with HostLink(place, 1.0) as link:
        answer = ask(link, SPEC, Request(text="hi"), lambda text: signal_after_a.start(), print)
    assert (answer.content, answer.reason) == ("a", "cancelled")


@pytest.mark.parametrize("host", [script(unreachable="no host")], indirect=True)
def test_no_host_is_said_when_one_is_needed(host: FakeHost, place: HostPlace) -> None:
    with HostLink(place, 1.0) as link:
        assert host.attached == 0
        with pytest.raises(HostUnreachable, match="no host"):
            link.stats()
        assert isinstance(read(link)[-1], Failed)


@pytest.mark.parametrize("host", [script(no_host=True)], indirect=True)
def test_a_question_about_the_host_starts_none(host: FakeHost, place: HostPlace) -> None:
    with HostLink(place, 1.0) as link:
        assert link.stats() is None and link.unload("m") == 0


def test_a_folder_that_cannot_be_made_is_named_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "run"
    place = HostPlace(below, below, below)
    with HostLink(place, 1.0) as link, pytest.raises(HostUnreachable, match="file") as caught:
        link.info(SPEC)
    assert "HEARTH_HOME" in caught.value.hint


@pytest.mark.parametrize(
    "host",
    [script(info={"error": {"code": "unsupported_model", "message": "too new"}})],
    indirect=True,
)
def test_errors_of_calls_keep_their_type(host: FakeHost, place: HostPlace) -> None:
    with HostLink(place, 1.0) as link, pytest.raises(UnsupportedModel, match="too new"):
        link.info(SPEC)
