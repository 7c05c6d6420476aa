"""Tokens, prompts and scores: what servers tell beside OpenAI's API, each in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from hearth.backends.contract.events import Prompt, Scores
from hearth.backends.contract.requests import Request
from hearth.backends.errors import UnsupportedParameter
from hearth.backends.remote.body import write_body
from hearth.backends.remote.chunks import text_logprobs
from hearth.backends.remote.connection import Connection
from hearth.backends.remote.errors import RemoteMalformed
from hearth.backends.remote.models import RemoteModel

_LIKE_VLLM: Final = ("vllm", "sglang")
_LIKE_LLAMA_SERVER: Final = ("llama-server", "hearth")
_TEMPLATE_FIELDS: Final = (
    *("model", "messages", "tools", "chat_template_kwargs"),
    *("add_generation_prompt", "continue_final_message"),
)


async def tokenize(
    connection: Connection, model: RemoteModel, text: str, *, special: bool, begin: bool = False
) -> list[int]:
    """Token ids of `text`; with `begin`, after those that begin every prompt.

    Raises:
        UnsupportedParameter: such a server does not tell.
    """
    if model.dialect.kind in _LIKE_VLLM:
        body: dict[str, Any] = {"prompt": text, "add_special_tokens": begin}
    elif model.dialect.kind in _LIKE_LLAMA_SERVER:
        body = {"content": text, "parse_special": special}
        if begin or model.dialect.kind == "llama-server":
            body["add_special"] = begin
    else:
        raise _untold(connection, "text")
    answer = await connection.post(
        f"{connection.server.root}/tokenize", {"model": model.name, **body}
    )
    return _ids(connection, answer)


async def detokenize(connection: Connection, model: RemoteModel, ids: Sequence[int]) -> str:
    """The text of `ids`. Raises as `tokenize` does."""
    if model.dialect.kind not in (*_LIKE_VLLM, *_LIKE_LLAMA_SERVER):
        raise _untold(connection, "token_ids")
    body: dict[str, Any] = {"model": model.name, "tokens": list(ids)}
    if model.dialect.kind == "sglang":
        body["skip_special_tokens"] = False
    answer = await connection.post(f"{connection.server.root}/detokenize", body)
    return _text(connection, answer, ("prompt", "content", "text"))


async def render(connection: Connection, model: RemoteModel, request: Request) -> Prompt:
    """What the model would get for `request`. Raises as `tokenize` does."""
    if request.token_ids is not None:
        ids = request.token_ids
        return Prompt(await detokenize(connection, model, ids), tuple(ids))
    if request.text is not None:
        found = await tokenize(connection, model, request.text, special=True, begin=True)
        return Prompt(request.text, tuple(found))
    # A limit says nothing of the prompt, and not every chat may go without one.
    body = write_body(
        replace(request, max_tokens=None), model.dialect, connection.server.name, model.name
    )
    asked: dict[str, Any] = {name: body[name] for name in _TEMPLATE_FIELDS if name in body}
    if model.dialect.kind in _LIKE_VLLM:
        ids = tuple(
            _ids(connection, await connection.post(f"{connection.server.root}/tokenize", asked))
        )
        return Prompt(await detokenize(connection, model, ids), ids)
    if model.dialect.kind not in _LIKE_LLAMA_SERVER:
        raise _untold(connection, "messages")
    answer = await connection.post(f"{connection.server.root}/apply-template", asked)
    text = _text(connection, answer, ("prompt",))
    return Prompt(text, tuple(await tokenize(connection, model, text, special=True)))


async def score(connection: Connection, model: RemoteModel, ids: Sequence[int], top: int) -> Scores:
    """Log probability of each of `ids` after those before it: a completion's echo, of which the
    one token that it adds is left out.

    Raises:
        UnsupportedParameter: such a server gives none for a prompt.
    """
    name = connection.server.name
    if not model.dialect.echoes:
        raise UnsupportedParameter(
            "token_ids",
            f"{name} is a remote model ({model.dialect.kind}): it scores no text of others.",
            "Score with a model that runs here, or one that vLLM serves.",
            remote=name,
        )
    body = {
        "model": model.name,
        "prompt": list(ids),
        "max_tokens": 1,
        "echo": True,
        "logprobs": top,
        "temperature": 0,
    }
    answer = await connection.post(f"{connection.server.url}/completions", body)
    try:
        found = text_logprobs(answer["choices"][0]["logprobs"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _malformed(connection, "log probabilities") from error
    wanted = len(ids) - 1
    if not wanted <= len(found) <= wanted + 1:
        raise _malformed(connection, "log probabilities")
    tokens = tuple(replace(token, top=token.top[:top]) for token in found[:wanted])
    return Scores(tuple(token.logprob for token in tokens), tokens if top else ())


def _ids(connection: Connection, answer: Any) -> list[int]:
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or not all(type(item) is int and item >= 0 for item in ids):
        raise _malformed(connection, "tokens")
    return ids


def _text(connection: Connection, answer: Any, names: Sequence[str]) -> str:
    for name in names:
        found = answer.get(name) if isinstance(answer, dict) else None
        if isinstance(found, str):
            return found
    raise _malformed(connection, "text")


def _untold(connection: Connection, param: str) -> UnsupportedParameter:
    name = connection.server.name
    return UnsupportedParameter(
        param,
        f"{name} is a remote model whose server does not say how it makes tokens of a text.",
        "Hearth, vLLM, SGLang and llama-server do.",
        remote=name,
    )


def _malformed(connection: Connection, what: str) -> RemoteMalformed:
    name = connection.server.name
    return RemoteMalformed(
        f"{name} answers without {what}, or in a form of its own.",
        "Look into the log of that server.",
        remote=name,
    )
