"""Descriptions of a server's models, from the list that every OpenAI-style API has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.models import ModelSettings
from hearth.backends.remote.connection import Connection
from hearth.backends.remote.dialects import DIALECTS, Dialect, kind_of
from hearth.backends.remote.errors import RemoteMalformed, RemoteModelMissing
from hearth.backends.remote.refusals import model_missing, not_an_api
from hearth.backends.remote.server import RemoteServer


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """One model as the server describes it."""

    name: str
    dialect: Dialect
    entry: Mapping[str, Any] = field(default_factory=dict)
    """The model's object in the list; empty if the server has no list."""

    def count(self, *names: str) -> int:
        """The value of the first of `names` in the entry, or in its objects "meta" (llama-server)
        or "hearth"; 0 if the server reports none.
        """
        for place in (self.entry, self.entry.get("meta"), self.entry.get("hearth")):
            if not isinstance(place, Mapping):
                continue
            for name in names:
                value = place.get(name)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return 0


async def list_models(connection: Connection) -> list[dict[str, Any]]:
    """The objects of `GET /models`. Raises HearthError; `RemoteMalformed` if there is no list."""
    server = connection.server
    try:
        answer = await connection.fetch(f"{server.url}/models")
    except RemoteModelMissing as error:  # as a 404 is read everywhere else
        raise not_an_api(server, "answers 404 (nothing there)") from error
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        raise not_an_api(server, "has no list of models")
    return [
        entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]


class ModelFinder:
    """Finds the model of a connection. The server is asked once, or not at all if the settings
    describe the model.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: RemoteModel | None = None
        self._asking = asyncio.Lock()

    async def find(self, *, refresh: bool = False) -> RemoteModel:
        """The model that the settings describe; with `refresh`, the server is asked again.

        Raises:
            RemoteModelMissing: the server does not have it, or has several and none is named.
            RemoteError: the server cannot be reached or has no OpenAI-style API.
        """
        async with self._asking:
            if self._known is None or refresh:
                server = self._connection.server
                self._known = (
                    RemoteModel(server.model, DIALECTS[server.server])
                    if server.model and server.server and not refresh
                    else await self._ask(server)
                )
            return self._known

    def forget(self) -> None:
        """Ask the server again next time: it may be another server by then."""
        self._known = None

    async def _ask(self, server: RemoteServer) -> RemoteModel:
        try:
            entries = {entry["id"]: entry for entry in await list_models(self._connection)}
        except RemoteMalformed:
            if not server.model:
                raise
            return RemoteModel(server.model, DIALECTS[server.server or "other"])
        wanted = server.model or (next(iter(entries)) if len(entries) == 1 else "")
        # Aliases need not be in the server's list: the first request shows whether they work.
        if not wanted or not entries:
            raise model_missing(server, server.model, list(entries))
        kind = server.server or kind_of(list(entries.values()))
        return RemoteModel(wanted, DIALECTS[kind], entries.get(wanted, {}))


def describe(
    server: RemoteServer, model: RemoteModel, settings: ModelSettings, took_s: float
) -> ModelInfo:
    """The description of `model` for front ends."""
    return ModelInfo(
        name=server.name,
        path=server.url,
        backend="remote",
        backend_version=model.dialect.kind,
        architecture=model.name,
        context=model.count("max_model_len", "context", "n_ctx"),
        trained_context=model.count("n_ctx_train", "trained_context"),
        load_s=took_s,
        has_chat_template=True,
        notices=tuple(_notices(server, settings)),
        capabilities=("chat", "tools", "thinking", "infill", "embed", "rank"),
    )


def _notices(server: RemoteServer, settings: ModelSettings) -> Sequence[str]:
    notices = []
    usual = ModelSettings(keep_alive_s=settings.keep_alive_s)
    if settings != usual:
        notices.append(
            f"{server.name} is loaded by {server.host}: settings of loading do nothing for it."
        )
    if server.key_source and server.url.startswith("http:") and not server.is_loopback:
        notices.append(f"The key of {server.name} goes to {server.host} unencrypted: use https.")
    return notices
