"""`hearth serve`: the OpenAI-style endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hearth.app.cli.options import complete_model, loading_options, typed_settings
from hearth.app.cli.state import State
from hearth.app.exit_codes import ExitCode

if TYPE_CHECKING:
    import socket

    from hearth.app.server.security import Policy
    from hearth.app.settings import Layer

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 4242


@click.command("serve")
@click.argument("model", required=False, default="", shell_complete=complete_model)
@click.option(
    "--host", default=DEFAULT_HOST, show_default=True, help="Address or name to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--api-key",
    envvar="HEARTH_API_KEY",
    default="",
    metavar="KEY",
    help="Ask clients for this key. Safer in HEARTH_API_KEY: others can read command lines.",
)
@loading_options
@click.pass_context
def serve(ctx: click.Context, /, model: str, host: str, port: int, api_key: str, **_: Any) -> int:
    """Serve models to programs that speak to OpenAI, until Ctrl+C.

    Requests name a model that `hearth list` shows; it is loaded when it is first asked for. MODEL
    is loaded at once, and may be a path to a GGUF file as well.
    """
    import asyncio

    from hearth.app.server.listening import address_of, listen
    from hearth.app.server.security import policy_for

    state: State = ctx.obj
    flags = typed_settings(ctx)
    with listen(host, port) as listener:
        policy = policy_for(host, address_of(listener), api_key)
        asyncio.run(_serve(state, model, flags, listener, policy, host))
    return ExitCode.OK


async def _serve(
    state: State, model: str, flags: Layer, listener: socket.socket, policy: Policy, host: str
) -> None:
    """Serve on `listener`, after loading the model called `model` if one is named."""
    import asyncio

    from hearth.app.chosen import with_settings
    from hearth.app.paths import private_folder
    from hearth.app.server.application import build
    from hearth.app.server.catalog import Catalog
    from hearth.app.server.connection import HostConnection
    from hearth.app.server.listening import url_of
    from hearth.app.server.running import DRAIN_S, Server, logging_to, on_signals
    from hearth.app.server.services import Services

    chosen = state.choose(model, flags)
    settings = state.settings.with_flags(flags)
    catalog = Catalog(state.library, chosen.found, lambda found: with_settings(found, settings))
    log = private_folder(state.paths.log) / "server.log"
    hosts = HostConnection(state.paths.host_place(), state.settings.host_idle_s)
    server = Server(build(Services(catalog, hosts), policy))

    async def run() -> None:
        async with hosts:
            if model:
                with state.output.note_if_slow(f"loading {chosen.found.name} …"):
                    info = await (await hosts.backend(chosen.spec)).info()
                for notice in info.notices:
                    state.output.note(notice)
            state.output.data(url_of(listener, host))
            state.output.note(
                f"Serving {chosen.found.name} and every model of hearth list. Ctrl+C ends it."
            )
            await server.serve_on(listener)

    running = asyncio.create_task(run())

    def end() -> None:
        if not server.started:
            running.cancel()
        elif server.busy and not server.should_exit:
            state.output.note(
                f"Finishing {server.busy} running requests, {DRAIN_S} s at most."
                " Ctrl+C again ends them."
            )
        server.end()

    with logging_to(log), on_signals(end):
        await asyncio.gather(running, return_exceptions=True)
    if not running.cancelled():
        running.result()
