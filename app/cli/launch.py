"""`hearth launch`: starts a coding agent that uses a Hearth server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from hearth.app.cli.options import complete_model, loading_options, typed_settings
from hearth.app.cli.state import State
from hearth.app.cli.typed import on_interrupt
from hearth.app.clients import CLIENTS, Client, KeyPlace, Recipe, Target, key_place
from hearth.app.exit_codes import ExitCode
from hearth.backends.errors import HearthError

if TYPE_CHECKING:
    from hearth.app.settings import Settings

_ANSWER_S: Final = 10.0
_REST: Final = "hearth.launch.rest"
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class ClientNotInstalled(HearthError):
    """The program to start is not on the PATH."""

    code = "client_not_installed"


class ServerRefuses(HearthError):
    """The running server does not accept the key, or does not have the model."""

    code = "server_refuses"


class _PassesOn(click.Command):
    """A command that passes everything after `--` to the program it starts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_REST] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS...]"]


@click.command("launch", cls=_PassesOn)
@click.argument("client", type=click.Choice(list(CLIENTS)))
@click.argument("model", required=False, default="", shell_complete=complete_model)
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="Print the variables and the command instead of running it.",
)
@loading_options
@click.pass_context
def launch(ctx: click.Context, /, client: str, model: str, only_print: bool, **_: Any) -> int:
    """Start a coding agent that uses a Hearth server. ARGS are passed on to it.

    The server is the one that runs at serve_host and serve_port of the settings. If none runs
    there, one is started for MODEL, which ends with the agent; the options below apply to it.
    """
    import asyncio

    state: State = ctx.obj
    chosen = CLIENTS[client]
    rest: tuple[str, ...] = ctx.meta[_REST]
    program = chosen.program if only_print else shutil.which(chosen.program)
    if program is None:
        raise ClientNotInstalled(
            f"{chosen.title} is not installed: {chosen.program} is not on the PATH.",
            f"Install it with: {chosen.install}",
        )
    typed = typed_settings(ctx)
    settings = state.settings.with_flags(typed)
    root = _configured_root(settings)
    place = key_place(state.paths.api_key_file, asks=True)
    target = _target(root, model, place) if _is_hearth(root) else None
    if target is not None and typed:
        flags = ", ".join(setting.origin for setting in typed.values())
        state.output.note(f"{flags}: no effect, as a server is already running at {root}.")
    if only_print:
        if target is None:
            state.output.note(
                f"No Hearth server is running at {root}: start one with hearth serve."
            )
            name = state.choose(model, {}).found.name
            target = Target(root, name, place.read() if _wants_key(settings) else "")
        _print(state, chosen, target, rest, place)
        return ExitCode.OK
    run = partial(_run, state, chosen, program, rest)
    # Ctrl+C reaches the client, which handles it as it likes; this process waits for the client to
    # end. SIG_IGN would have the same effect here, but the client would inherit it.
    ctrl_c_is_for_the_client = on_interrupt(lambda: None)
    if target is not None:
        with ctrl_c_is_for_the_client:
            return asyncio.run(run(target))
    name = state.choose(model, {}).found.name
    state.output.note(f"Starting hearth serve with {name} …")

    async def serve_and_run() -> int:
        async with _own_server(settings, model or settings.text("model")) as own_root:
            return await run(await asyncio.to_thread(_target, own_root, name, place))

    with ctrl_c_is_for_the_client:
        return asyncio.run(serve_and_run())


def _configured_root(settings: Settings) -> str:
    host = settings.text("serve_host")
    host = _EVERYWHERE.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.text('serve_port')}"


def _wants_key(settings: Settings) -> bool:
    return settings.all()["serve_key"].value is True or bool(os.environ.get("HEARTH_API_KEY"))


def _ask(root: str, path: str, key: str = "") -> tuple[int, Any]:
    """Status and JSON of `GET path`. Raises `OSError` or `ValueError` without such an answer."""
    import http.client
    from urllib.parse import urlsplit

    address = urlsplit(root).netloc
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with closing(http.client.HTTPConnection(address, timeout=_ANSWER_S)) as connection:
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except http.client.HTTPException as error:
            raise ValueError("the answer is not HTTP") from error


def _is_hearth(root: str) -> bool:
    """Whether a Hearth server answers at `root`."""
    try:
        _, health = _ask(root, "/health")
    except (OSError, ValueError):
        return False
    if not isinstance(health, dict) or "version" not in health:
        return False  # Health checks of other servers have the status alone, or no JSON.
    status = health.get("status")
    return status == "loading" or (status == "ok" and "backends" in health)


def _target(root: str, model: str, place: KeyPlace) -> Target:
    """The model called `model` at `root` (if empty, the one that the server was started with).

    Raises:
        ServerRefuses: the key is wrong, or the server does not have the model.
        KeyFileError, InvalidParameter: the key file cannot be used.
    """
    from urllib.parse import quote

    path = f"/v1/model/info?model={quote(model)}" if model else "/v1/model/info"
    key = ""
    try:
        status, info = _ask(root, path)
        if status == 401:
            key = place.read()
            status, info = _ask(root, path, key)
    except (OSError, ValueError) as error:
        raise ServerRefuses(f"The server at {root} did not answer: {error}.") from error
    if status == 401:
        raise ServerRefuses(
            f"The server at {root} requires another API key.",
            f"Set HEARTH_API_KEY to its key, or put it into {place.file}.",
        )
    if status != 200:
        raise ServerRefuses(f"The server at {root}: {info['error']['message']}")
    context = info["max_sequence_length"] or info["trained_context"] or 0
    return Target(root, info["model_name"], key, context)


async def _run(
    state: State, client: Client, program: str, rest: tuple[str, ...], target: Target
) -> int:
    """Run `client` with `target`; returns its exit code."""
    import asyncio

    if 0 < target.context < client.least_context:
        state.output.note(
            f"{target.model} has a context of {target.context:,} tokens; {client.title} needs about"
            f" {client.least_context:,} for its own instructions and a task. --ctx sets it"
            " when the server is started."
        )
    recipe = client.recipe(target)
    process = await asyncio.create_subprocess_exec(
        program, *recipe.arguments, *rest, env=_environ(recipe)
    )
    return await process.wait()


@asynccontextmanager
async def _own_server(settings: Settings, model: str) -> AsyncIterator[str]:
    """Run a server for `model` on a free loopback port until the end of the block; yields its root
    URL. Raises `EndpointFailed`.
    """
    from hearth.app import endpoint_control

    started = endpoint_control.launch(settings, "127.0.0.1", 0, key=_wants_key(settings))
    server = endpoint_control.EndpointControl()
    await server.start(replace(started, arguments=(*started.arguments, "--", model)))
    try:
        yield server.url.removesuffix("/v1")
    finally:
        server.stop()
        await server.close()


def _environ(recipe: Recipe) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if name not in recipe.unset}
    return {**environ, **recipe.environ}


def _print(
    state: State, client: Client, target: Target, rest: tuple[str, ...], place: KeyPlace
) -> None:
    """Print the shell commands that start `client`, with a reference to the key instead of it."""
    recipe = client.recipe(target)
    for name in recipe.unset:
        state.output.data(f"unset {name}")
    for name, value in recipe.environ.items():
        state.output.data(f"export {name}={_shell_value(value, target.key, place)}")
    state.output.data(shlex.join([client.program, *recipe.arguments, *rest]))


def _shell_value(value: str, key: str, place: KeyPlace) -> str:
    return f'"{place.in_shell}"' if value and value == key else shlex.quote(value)
