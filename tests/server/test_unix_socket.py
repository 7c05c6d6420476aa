"""`--uds`: a socket that only its owner can connect to, and that is removed afterwards."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys

import pytest

from hearth.app.server.listening import CannotListen, listen_at
from hearth.app.server.security import policy_for
from live import GET, live, read_answer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no Unix sockets")


@pytest.fixture
def folder(tmp_path_factory):
    """A short path, because the path of a socket is limited."""
    return tmp_path_factory.mktemp("s")


def answers(app, path, request=GET):
    async def ask():
        with listen_at(path) as listener:
            async with live(app, [listener]) as server:
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(request)
                found = await read_answer(reader)
                writer.close()
                tcp, writer = await server.connect()
                writer.write(request)
                return found[0], (await read_answer(tcp))[0]

    return asyncio.run(ask())


def test_it_answers_beside_tcp_and_is_removed_at_the_end(endpoint, folder) -> None:
    path = folder / "hearth.sock"
    assert answers(endpoint().app, path) == (200, 200)
    assert not path.exists()


def test_the_same_rules_hold(endpoint, folder) -> None:
    path = folder / "hearth.sock"
    policy = policy_for("localhost", "127.0.0.1", "a-key")
    with_key = GET[:-2] + b"X-Api-Key: a-key\r\n\r\n"
    assert answers(endpoint(policy=policy).app, path) == (401, 401)
    assert answers(endpoint(policy=policy).app, path, with_key) == (200, 200)
    foreign = GET.replace(b"localhost", b"evil.example")
    assert answers(endpoint().app, path, foreign) == (403, 403)


def test_only_its_owner_can_connect(folder) -> None:
    before = os.umask(0)
    try:
        with listen_at(folder / "made" / "hearth.sock"):
            mode = (folder / "made" / "hearth.sock").stat().st_mode
            assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
            assert stat.S_IMODE((folder / "made").stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_what_a_dead_server_left_is_replaced(folder) -> None:
    path = folder / "hearth.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with listen_at(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert not path.exists()


def test_a_server_that_lives_is_left_alone(folder) -> None:
    path = folder / "hearth.sock"
    with listen_at(path):
        with pytest.raises(CannotListen, match="Another server"), listen_at(path):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_what_is_no_socket_is_left_alone(folder) -> None:
    path = folder / "notes"
    path.write_text("mine")
    link = folder / "link"
    link.symlink_to(path)
    for taken in (path, link, folder):
        with pytest.raises(CannotListen), listen_at(taken):
            pass
    assert path.read_text() == "mine" and link.is_symlink()


def test_a_folder_that_others_can_write_to_is_refused(folder) -> None:
    for mode in (0o777, 0o770, 0o702):
        folder.chmod(mode)
        with pytest.raises(CannotListen, match="Other users"), listen_at(folder / "hearth.sock"):
            pass
    folder.chmod(0o755)
    with listen_at(folder / "hearth.sock"):
        pass


def test_a_path_that_is_too_long_is_said_with_the_limit(folder) -> None:
    with pytest.raises(CannotListen, match="100 bytes"), listen_at(folder / ("a" * 120)):
        pass


def test_the_socket_of_another_is_not_removed(folder) -> None:
    path = folder / "hearth.sock"
    with listen_at(path):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()
