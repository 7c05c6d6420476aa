"""`hearth serve`: the API server."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hearth.app.cli.options import complete_model, loading_options, typed_settings
from hearth.app.cli.state import State
from hearth.app.exit_codes import ExitCode

if TYPE_CHECKING:
    import socket

    from hearth.app.chosen import Chosen
    from hearth.app.server.security import Policy
    from hearth.app.settings import Layer


@click.command("serve")
@click.argument("model", required=False, default="", shell_complete=complete_model)
@click.option(
    "--host", help="Address or name to listen on. Default: the setting serve_host, 127.0.0.1."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 picks a free one. Default: the setting serve_port, 4242.",
)
@click.option(
    "--uds",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also listen on this Unix socket, which only you can open.",
)
@click.option(
    "--generate-key",
    is_flag=True,
    help="Require an API key, which is created once and kept in a file that only you can read.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Require the API key in this file.",
)
@click.option(
    "--api-key",
    envvar="HEARTH_API_KEY",
    default="",
    metavar="KEY",
    help="Require this API key. Safer in HEARTH_API_KEY: other users can read command lines.",
)
@click.option(
    "--cors-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Allow requests from pages of this site, such as https://chat.example.org; repeatable.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Accept requests to this host name too, such as that of a proxy; repeatable."
    " Default: the setting serve_allow_hosts.",
)
@click.option(
    "--manage/--no-manage",
    default=None,
    help="Let clients download, delete and copy models. Default: the setting serve_manage: only"
    " where no other machine can reach the server.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Answer 400 to parameters that have no effect."
    " Default: the setting strict_requests, false.",
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
    manage: bool | None,
    strict: bool,
    allowed_hosts: tuple[str, ...],
    **_: Any,
) -> int:
    """Start a server with the APIs of OpenAI, Anthropic and Ollama. Ctrl+C stops it.

    Requests can name any model of `hearth list`, which is loaded on first use. MODEL is loaded at
    start, and can also be a path.
    """
    import asyncio

    from hearth.app.server.listening import listen, listen_at, roots_of
    from hearth.app.server.security import policy_for

    state: State = ctx.obj
    flags = typed_settings(ctx)
    chosen = state.choose(model, flags)
    host = state.settings.text("serve_host") if host is None else host
    port = int(state.settings.text("serve_port")) if port is None else port
    settings = state.settings.all()
    wants_key = settings["serve_key"].value is True
    generate_key = generate_key or (wants_key and not api_key and api_key_file is None)
    key = _key(state, api_key, api_key_file, generate_key)
    allowed_hosts = allowed_hosts or cast("tuple[str, ...]", settings["serve_allow_hosts"].value)
    with ExitStack() as open_sockets:
        listener = open_sockets.enter_context(listen(host, port))
        policy = policy_for(host, str(listener.getsockname()[0]), key, origins, allowed_hosts)
        listeners = [listener]
        if uds is not None:
            listeners.append(open_sockets.enter_context(listen_at(uds)))
        strict = strict or settings["strict_requests"].value is True
        if manage is None:
            manage = cast("bool | None", settings["serve_manage"].value)
        manage = not policy.addresses if manage is None else manage
        serving = _serve(
            state,
            chosen,
            flags,
            listeners,
            roots_of(listener, host),
            policy,
            load=bool(model),
            strict=strict,
            manage=manage,
        )
        asyncio.run(serving)
    return ExitCode.OK


def _key(state: State, given: str, file: Path | None, generate: bool) -> str:
    """The API key; empty if none is required.

    Raises:
        UsageError: two keys are given.
        KeyFileError, InvalidParameter: the key cannot be used.
    """
    from hearth.app.paths import private_folder
    from hearth.app.server.api_key import kept_key, read_key

    if given and (file is not None or generate):
        raise click.UsageError(
            "Two API keys: --api-key or HEARTH_API_KEY cannot be combined with --api-key-file or"
            " --generate-key."
        )
    if generate:
        file = file or state.paths.api_key_file
        given = kept_key(private_folder(file.absolute().parent) / file.name)
    elif file is not None:
        given = read_key(file)
    if given:
        source = "as set by --api-key or HEARTH_API_KEY" if file is None else f"in {file}"
        state.output.note(f"API key: {source}.")
    return given


async def _serve(
    state: State,
    chosen: Chosen,
    flags: Layer,
    listeners: list[socket.socket],
    roots: list[str],
    policy: Policy,
    *,
    load: bool,
    strict: bool,
    manage: bool,
) -> None:
    """Serve, while loading a model in the background.

    Args:
        chosen: the model for requests that name none.
        roots: the server's URLs without a path; the first one is printed to stdout.
        policy: which requests are accepted.
        load: load `chosen` at the start.
        strict: refuse parameters that have no effect.
        manage: clients may download, delete and copy models.
    """
    import asyncio

    from hearth.app.chosen import with_settings
    from hearth.app.host_connection import HostConnection
    from hearth.app.library.cache_layout import hub_cache
    from hearth.app.library.manager import ModelManager
    from hearth.app.paths import own_folder
    from hearth.app.server.application import build
    from hearth.app.server.catalog import Catalog
    from hearth.app.server.endpoint import base_urls
    from hearth.app.server.logs import REQUESTS_LOG, RequestLog, logging_to
    from hearth.app.server.running import DRAIN_S, Server, on_signals
    from hearth.app.server.services import Services

    settings = state.settings.with_flags(flags)
    catalog = Catalog(state.library, chosen.found, lambda found: with_settings(found, settings))
    catalog.index.refresh()  # Read now, so that the first request that needs it does not wait.
    logs = own_folder(state.paths.log)
    hosts = HostConnection(state.paths.host_place(), *settings.host_options)
    requests = RequestLog(logs / REQUESTS_LOG)
    manager = None
    if manage:
        manager = ModelManager(catalog.index, settings, hub_cache(), state.paths.cache, logs)
    services = Services(catalog, hosts, log=requests, strict=strict, manager=manager)
    serving = services.state
    server = Server(build(services, policy), serving)

    async def get_ready() -> None:
        if load:
            with serving.loading(), state.output.note_if_slow(f"Loading {chosen.found.name} …"):
                info = await (await hosts.backend(chosen.spec)).info()
            for notice in info.notices:
                state.output.note(notice)
        if serving.draining:
            return
        first, *others = map(base_urls, roots)
        state.output.data(first.openai)
        state.output.note(
            f"Base URL for OpenAI clients: {first.openai}; for Anthropic and Ollama clients:"
            f" {first.anthropic}."
        )
        if others:
            state.output.note(f"Also: {', '.join(urls.openai for urls in others)}.")
        state.output.note(
            f"Serving {chosen.found.name} and every model of hearth list. Press Ctrl+C to stop."
        )

    async def run() -> None:
        async with hosts:
            await server.serve_on(listeners, startup=get_ready())

    running = asyncio.create_task(run())

    def end() -> None:
        if not server.started:
            running.cancel()
        elif serving.busy and not serving.draining:
            state.output.note(
                f"Finishing {serving.busy} running requests, for at most {DRAIN_S} s."
                " Press Ctrl+C again to stop now."
            )
        server.end()

    with requests, logging_to(logs / "server.log"), on_signals(end):
        await asyncio.gather(running, return_exceptions=True)
    if not running.cancelled():
        running.result()
