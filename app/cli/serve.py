"""`hearth serve`: the OpenAI-style endpoint."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hearth.app.cli.options import complete_model, loading_options, typed_settings
from hearth.app.cli.state import State
from hearth.app.exit_codes import ExitCode

if TYPE_CHECKING:
    import socket

    from hearth.app.chosen import Chosen
    from hearth.app.server.security import Policy
    from hearth.app.settings import Layer


@dataclass(frozen=True, slots=True)
class _Door:
    """Where it is listened, what that is called, and who may come in."""

    listeners: list[socket.socket]
    url: str
    policy: Policy


@click.command("serve")
@click.argument("model", required=False, default="", shell_complete=complete_model)
@click.option(
    "--host", help="Address or name to listen on; else serve_host of the settings: 127.0.0.1."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 takes a free one. Else serve_port of the settings: 4242.",
)
@click.option(
    "--uds",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Listen on this Unix socket too, which only you can open.",
)
@click.option(
    "--generate-key",
    is_flag=True,
    help="Ask clients for a key, which is made once and kept in a file that only you can read.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Ask clients for the key in this file.",
)
@click.option(
    "--api-key",
    envvar="HEARTH_API_KEY",
    default="",
    metavar="KEY",
    help="Ask clients for this key. Safer in HEARTH_API_KEY: others can read command lines.",
)
@click.option(
    "--cors-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages of this site ask, such as https://chat.example.org; may be repeated.",
)
@loading_options
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    model: str,
    host: str | None,
    port: int | None,
    uds: Path | None,
    generate_key: bool,
    api_key_file: Path | None,
    api_key: str,
    origins: tuple[str, ...],
    **_: Any,
) -> int:
    """Serve models to programs that speak to OpenAI, until Ctrl+C.

    Requests name a model that `hearth list` shows; it is loaded when it is first asked for. MODEL
    is loaded at once, and may be a path as well.
    """
    import asyncio

    from hearth.app.server.listening import address_of, listen, listen_at, url_of
    from hearth.app.server.security import policy_for

    state: State = ctx.obj
    flags = typed_settings(ctx)
    chosen = state.choose(model, flags)
    host = state.settings.text("serve_host") if host is None else host
    port = int(state.settings.text("serve_port")) if port is None else port
    wants_key = state.settings.all()["serve_key"].value is True
    generate_key = generate_key or (wants_key and not api_key and api_key_file is None)
    key = _key(state, api_key, api_key_file, generate_key)
    with ExitStack() as open_sockets:
        listener = open_sockets.enter_context(listen(host, port))
        policy = policy_for(host, address_of(listener), key, origins)
        listeners = [listener]
        if uds is not None:
            listeners.append(open_sockets.enter_context(listen_at(uds)))
        door = _Door(listeners, url_of(listener, host), policy)
        asyncio.run(_serve(state, chosen, flags, door, load=bool(model)))
    return ExitCode.OK


def _key(state: State, given: str, file: Path | None, generate: bool) -> str:
    """The key that clients are asked for; empty if there is none.

    Raises:
        UsageError: two keys were given.
        KeyFileError, InvalidParameter: the key cannot be used.
    """
    from hearth.app.paths import private_folder
    from hearth.app.server.api_key import kept_key, read_key

    if given and (file is not None or generate):
        raise click.UsageError("There are two API keys: that of --api-key or HEARTH_API_KEY, too.")
    if generate:
        file = file or state.paths.api_key_file
        key = kept_key(private_folder(file.absolute().parent) / file.name)
        state.output.note(f"Clients need the key in {file}.")
        return key
    return given if file is None else read_key(file)


async def _serve(state: State, chosen: Chosen, flags: Layer, door: _Door, *, load: bool) -> None:
    """Serve behind `door`, and load the model `chosen` meanwhile if `load` is true."""
    import asyncio

    from hearth.app.chosen import with_settings
    from hearth.app.host_connection import HostConnection
    from hearth.app.paths import own_folder
    from hearth.app.server.application import build
    from hearth.app.server.catalog import Catalog
    from hearth.app.server.request_log import REQUESTS_LOG, RequestLog
    from hearth.app.server.running import DRAIN_S, Server, on_signals
    from hearth.app.server.server_log import logging_to
    from hearth.app.server.services import Services

    settings = state.settings.with_flags(flags)
    catalog = Catalog(state.library, chosen.found, lambda found: with_settings(found, settings))
    catalog.index.refresh()  # So that the first request that needs it finds it read.
    logs = own_folder(state.paths.log)
    hosts = HostConnection(
        state.paths.host_place(), settings.host_idle_s, settings.host_limits, settings.remotes
    )
    requests = RequestLog(logs / REQUESTS_LOG)
    services = Services(catalog, hosts, log=requests)
    life = services.life
    server = Server(build(services, door.policy), life)

    async def get_ready() -> None:
        if load:
            with life.loading(), state.output.note_if_slow(f"loading {chosen.found.name} …"):
                info = await (await hosts.backend(chosen.spec)).info()
            for notice in info.notices:
                state.output.note(notice)
        if life.draining:
            return
        state.output.data(door.url)
        state.output.note(
            f"Serving {chosen.found.name} and every model of hearth list. Ctrl+C ends it."
        )

    async def run() -> None:
        async with hosts:
            await server.serve_on(door.listeners, beside=get_ready())

    running = asyncio.create_task(run())

    def end() -> None:
        if not server.started:
            running.cancel()
        elif life.busy and not life.draining:
            state.output.note(
                f"Finishing {life.busy} running requests, {DRAIN_S} s at most."
                " Ctrl+C again ends them."
            )
        server.end()

    with requests, logging_to(logs / "server.log"), on_signals(end):
        await asyncio.gather(running, return_exceptions=True)
    if not running.cancelled():
        running.result()
