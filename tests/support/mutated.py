"""Requests to every route of the server: made valid by its tables, then damaged at random.

`request(seed, index)` gives the same request as long as the tables are the same, so that these two
numbers identify it.
"""

from __future__ import annotations

import copy
import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from hearth.app.server.endpoint import PREFIX, UNPREFIXED, Endpoint
from hearth.app.server.routes import ENDPOINTS

MODELS: Final = ("guide", "second", "ranker")
"""Models that the server must have: the bundled model, and two of its library folder."""
_COPIES: Final = ("copy-1", "copy-2")
"""Names that requests copy to and delete all the time."""
SETTINGS: Final = {"HEARTH_CONTEXT": "1024"}
MANAGED: Final = ("--offline", "--manage")
"""Options of that server: clients may copy and delete models, and nothing is downloaded."""
MOST_TOKENS: Final = 16
JSON_TYPE: Final = "application/json"
_LIMITS: Final = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
    "/v1/generate": "max_tokens",
    "/v1/generate/batch": "max_tokens",
    "/api/chat": "num_predict",
    "/api/generate": "num_predict",
}
"""The field that limits the answer of each route that generates."""
_ALIASES: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
_ROUTES: Final = tuple(
    endpoint
    for endpoint in ENDPOINTS
    for _ in range(1 if endpoint.table is None else 8 if endpoint.path in _LIMITS else 3)
)
"""Every route; those that generate occur most often."""
_TEXTS: Final = (
    *(
        "",
        " ",
        "a",
        "What is a token?",
        "\x00",
        "\x1b[2J",
        "\ud800",
        "\u202eabc",
        "é" * 40,
        "👩‍👩‍👧",
    ),
    *(
        "<|im_end|>",
        "</s>",
        "{{ 7*7 }}",
        "{% raw %}",
        "../../etc/passwd",
        "null",
        "\r\n\r\n",
        "\ufffe",
    ),
)
_NUMBERS: Final = (
    *(0, -1, 1, 2, 16, 17, 255, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63, 2**64, -(2**63), 10**40),
    *(0.0, -0.0, 0.5, 1.5, -0.5, 1e-300, 1e300, 3.0),
)
_REGEXES: Final = (
    *(
        "a+",
        "[0-9]{4}",
        "(yes|no)",
        "é.",
        "",
        "(",
        "[z-a]",
        "(a*)*b",
        r"\p{L}+",
        "(?=a)b",
        r"(a)\1",
    ),
    *("[a-z]{1,5000}", "((a{1,100}){1,100}){1,100}", "^$", "(?i)yes", ".{16}", "\\", "(?P<n>x)"),
)
_GRAMMARS: Final = (
    'root ::= "yes" | "no"',
    'root ::= item+\nitem ::= "- " [a-z]+ "\\n"',
    "root ::= root",
    'root ::= "a" root | "b"',
    "root ::= missing",
    "root ::=",
    "",
    "root ::= [^\\x00-\\x7F]{1,8}",
    'root ::= ("a" | "b"){2000}',
    'start: "a" start | "b"',
    'start: /[0-9]+/ | "(" start ")"',
    "%llguidance {}\nstart: x",
    'root ::= "unterminated',
    'root ::= a b c\na ::= "x"*\nb ::= a a\nc ::= b? b?',
)


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        target: path and query.
        content_type: None: the header is left out.
        leaves: the client closes the connection after the first bytes of the answer.
    """

    method: str
    target: str
    body: bytes
    content_type: str | None
    leaves: bool

    def head(self, port: int) -> bytes:
        """Request line and headers."""
        lines = [f"{self.method} {self.target} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
        if self.content_type is not None:
            lines.append(f"Content-Type: {self.content_type}")
        if self.body or self.method not in ("GET", "HEAD"):
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode()


def request(seed: int, index: int) -> Asked:
    """The request with number `index`; the routes alternate."""
    rng = random.Random(f"{seed}:{index}")
    endpoint = _ROUTES[index % len(_ROUTES)]
    method, target = endpoint.method, _target(rng, endpoint)
    content_type: str | None = JSON_TYPE
    body = _body(rng, endpoint)
    if rng.random() < 0.04:
        method = rng.choice(("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"))
    if rng.random() < 0.04:
        content_type = rng.choice(
            (
                None,
                "text/plain",
                "application/x-www-form-urlencoded",
                "multipart/form-data",
                "a" * 300,
            )
        )
    return Asked(method, target, body, content_type, rng.random() < 0.05)


def _target(rng: random.Random, endpoint: Endpoint) -> str:
    path = endpoint.path
    if path in UNPREFIXED and rng.random() < 0.3:
        path = path.removeprefix(PREFIX)
    name = rng.choice((*MODELS, "absent", "a/b", "..", _text(rng)))
    path = path.replace("{name:path}", quote(name.encode(errors="replace")))
    path = path.replace("{digest}", "sha256:0")
    if rng.random() < 0.02:
        path += rng.choice(("/", "//", "%00", "/../..", "%ff", "?" + "a" * 9000))
    if endpoint.query and rng.random() < 0.7:
        key = rng.choice((*(parameter.name for parameter in endpoint.query), "other"))
        path += f"?{key}={quote(name.encode(errors='replace'))}"
    return path


# ---- bodies


def _body(rng: random.Random, endpoint: Endpoint) -> bytes:
    if endpoint.table is None:
        return b"{}" if endpoint.method == "POST" else b""
    described = endpoint.table.json()
    body = _object(rng, described, rng.choice((0.0, 0.02, 0.05, 0.1)))
    if endpoint.path == "/api/delete":
        body["model"] = rng.choice((*_COPIES * 2, "guide", "absent", "../x", _text(rng)))
    if "documents" in body:
        body["model"] = "ranker"
    if endpoint.path in ("/v1/generate", "/api/generate", "/api/embeddings"):
        body["prompt"] = rng.choice(("Once upon a time", "What is a token?", _text(rng)))
    if endpoint.path == "/tokenize":
        kept = rng.choice(("content", "prompt", "messages"))
        described = {**described, "required": [kept]}
        body = {kept: _object(rng, described, 0.0)[kept], "model": _model(rng)}
    body = _conversation(rng, body)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        body = _mutate(rng, body)
    if isinstance(body, dict):
        _cap(body, endpoint.path)
    written = json.dumps(body, ensure_ascii=rng.random() < 0.5)
    return _garble(rng, written.encode(errors="surrogatepass"))


def _object(rng: random.Random, described: dict[str, Any], chance: float) -> dict[str, Any]:
    """An object with the fields that are required, and each of the others with `chance`."""
    required = described.get("required", ())
    return {
        name: _value(rng, name, schema)
        for name, schema in described.get("properties", {}).items()
        if name in required or rng.random() < chance
    }


def _value(rng: random.Random, name: str, schema: dict[str, Any]) -> Any:
    """A value that `schema` usually accepts."""
    if name in _NAMED and rng.random() < 0.9:
        return _NAMED[name](rng)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return _value(rng, name, rng.choice(schema[several]))
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if kind == "object":
        found = _object(rng, schema, 0.3)
        inner = schema.get("additionalProperties")
        if isinstance(inner, dict):
            found[str(rng.randrange(70_000))] = _value(rng, "", inner)
        return found
    if kind == "array":
        count = rng.choice((0, 1, 1, 2, 3))
        items = schema.get("items", {})
        return [_value(rng, "", items) for _ in range(max(count, schema.get("minItems", 0)))]
    if kind == "boolean":
        return rng.random() < 0.5
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high = schema["maximum"]
        border = rng.choice((low, high, low + 1, min(low + 2, high), rng.uniform(low, high)))
        return int(border) if kind == "integer" else border
    if kind == "string":
        if schema.get("format") == "json-object":
            return rng.choice(("{}", '{"a": 1}', '{"a": "un', "", "[]", '{"a":{"b":[1,2'))
        return rng.choice(("a", "What is a token?", "x1", "5m"))
    return None


def _text(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return "".join(chr(rng.randrange(0x20, 0x3000)) for _ in range(rng.randrange(200)))
    return rng.choice(_TEXTS)


def _number(rng: random.Random) -> Any:
    return rng.choice(_NUMBERS)


def _scalar(rng: random.Random) -> Any:
    return rng.choice((None, True, False, _text(rng), _number(rng), [], {}))


def _ids(rng: random.Random) -> list[int]:
    most = rng.choice((256, 256, 4096, 10**6))
    return [rng.randrange(most) for _ in range(rng.randrange(1, 40))]


def _schema(rng: random.Random, levels: int = 3) -> Any:
    """A JSON schema, not always a valid or satisfiable one."""
    kind = rng.choice(
        ("string", "integer", "number", "boolean", "null", "array", "object", "object", "other")
    )
    if kind == "object" and levels:
        names = rng.sample(("a", "b", "name", "é", "", "x y", "$ref"), rng.randrange(4))
        found: dict[str, Any] = {"type": "object"}
        found["properties"] = {name: _schema(rng, levels - 1) for name in names}
        if rng.random() < 0.5:
            found["required"] = names + (["missing"] if rng.random() < 0.1 else [])
        if rng.random() < 0.5:
            found["additionalProperties"] = rng.choice((True, False, {"type": "integer"}))
        return found
    if kind == "array" and levels:
        bounds = {"minItems": rng.choice((0, 1, 5, -1)), "maxItems": rng.choice((0, 3, 10**9))}
        return {"type": "array", "items": _schema(rng, levels - 1), **bounds}
    if kind == "other":
        inner = _schema(rng, levels - 1) if levels else {}
        return rng.choice(
            (
                {"enum": [_scalar(rng), _scalar(rng)]},
                {"const": _scalar(rng)},
                {"anyOf": [inner, {"type": "null"}]},
                {"oneOf": [inner, inner]},
                {"allOf": [inner, {"type": "object"}]},
                {"not": inner},
                {"$ref": "#"},
                {"$ref": "#/$defs/x", "$defs": {"x": inner}},
                {"$ref": "http://127.0.0.1:1/s.json"},
                {"if": inner, "then": inner},
                {"type": ["string", "integer"]},
                {"patternProperties": {"^a": inner}},
                True,
                False,
                {},
                _scalar(rng),
            )
        )
    if kind == "string":
        return {
            "type": "string",
            **rng.choice(
                (
                    {},
                    {"pattern": rng.choice(_REGEXES)},
                    {"format": rng.choice(("date-time", "uuid", "email", "nonsense"))},
                    {
                        "minLength": rng.choice((0, 5, 10**6, -1)),
                        "maxLength": rng.choice((0, 9, 10**9)),
                    },
                )
            ),
        }
    if kind in ("integer", "number"):
        return {"type": kind, "minimum": _number(rng), "maximum": _number(rng)}
    return {"type": kind}


def _response_format(rng: random.Random) -> Any:
    return rng.choice(
        (
            {"type": "json_object"},
            {"type": "json_object", "schema": _schema(rng)},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": _schema(rng)}},
            {"type": "text"},
            {"type": "regex", "regex": rng.choice(_REGEXES)},
            {"type": "grammar", "grammar": rng.choice(_GRAMMARS)},
        )
    )


def _structured(rng: random.Random) -> Any:
    return rng.choice(
        (
            {"json": _schema(rng)},
            {"regex": rng.choice(_REGEXES)},
            {"choice": [_text(rng), "yes"]},
            {"grammar": rng.choice(_GRAMMARS)},
            {"json_object": True},
        )
    )


def _model(rng: random.Random) -> Any:
    return rng.choice((*MODELS * 10, *_COPIES, "absent", "", "../x", "GUIDE", _text(rng)))


_NAMED: Final[dict[str, Callable[[random.Random], Any]]] = {
    "model": _model,
    "name": lambda rng: rng.choice(("lookup", "get_weather", "a" * 128)),
    "source": _model,
    "destination": lambda rng: rng.choice((*_COPIES * 2, "guide", "../x", "a/b", "", "a" * 400)),
    "prompt": lambda rng: rng.choice(
        ("Once upon a time", _text(rng), _ids(rng), ["a", "b"], [[1], [2]])
    ),
    "suffix": lambda rng: rng.choice(("the end", "")),
    "input": lambda rng: rng.choice(("What is a token?", _text(rng), ["a", "b"], _ids(rng), [])),
    "content": lambda rng: rng.choice(("What is a token?", _text(rng), "")),
    "tokens": _ids,
    "documents": lambda rng: [_text(rng) for _ in range(rng.randrange(5))],
    "n": lambda rng: rng.choice((0, 1, 2, 3, 4)),
    "best_of": lambda rng: rng.choice((0, 1, 2, 4)),
    "beam_width": lambda rng: rng.choice((0, 1, 2, 4)),
    "early_stopping": lambda rng: rng.choice((True, False, "never", "soon")),
    "stop_token_ids": _ids,
    "response_format": _response_format,
    "structured_outputs": _structured,
    "format": lambda rng: rng.choice(("json", _schema(rng))),
    "schema": _schema,
    "json_schema": _schema,
    "guided_json": _schema,
    "parameters": _schema,
    "input_schema": _schema,
    "guided_regex": lambda rng: rng.choice(_REGEXES),
    "guided_grammar": lambda rng: rng.choice(_GRAMMARS),
    "grammar": lambda rng: rng.choice(_GRAMMARS),
    "guided_choice": lambda rng: [_text(rng), "yes", "no"],
    "chat_template_kwargs": lambda rng: rng.choice(({}, {"a": _scalar(rng)}, {"messages": []})),
}
"""Interesting values of fields, which their types do not imply."""


def _conversation(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """Half of the conversations get an ordinary question, a few a prompt beyond the context."""
    if "messages" in body and rng.random() < 0.5:
        body["messages"] = [{"role": "user", "content": "What is a token?"}]
    if rng.random() < 0.02:
        long = "the fox and the river " * rng.choice((500, 5000, 50_000))
        for name in ("prompt", "input", "content", "query"):
            if name in body:
                body[name] = long
        if "messages" in body:
            body["messages"] = [{"role": "user", "content": long}]
    return body


# ---- mutations


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything in `value`."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        each = pending.pop()
        keys = list(each) if isinstance(each, dict) else list(range(len(each)))
        for key in keys:
            found.append((each, key))
            if isinstance(each[key], dict | list):
                pending.append(each[key])
    return found


def _mutate(rng: random.Random, body: Any) -> Any:
    body = copy.deepcopy(body)
    places = _places(body) if isinstance(body, dict | list) else []
    if rng.random() < 0.01:
        return _scalar(rng)
    if not places:
        return {"unknown": body}
    # The top level has most of the fields, and gets half of the damage.
    top = [place for place in places if place[0] is body]
    container, key = rng.choice(top if rng.random() < 0.5 else places)
    old = container[key]
    choice = rng.randrange(10)
    if choice == 0:
        del container[key]
    elif choice == 1:
        container[key] = _scalar(rng)
    elif choice == 2:
        container[key] = _number(rng)
    elif choice == 3:
        container[key] = _text(rng)
    elif choice == 4 and isinstance(container, dict):
        container[_misspelt(rng, str(key))] = container.pop(key)
    elif choice == 5 and isinstance(container, dict):
        container[rng.choice(("unknown", "x" * 300, "thinking", "é", "")) or "n"] = _scalar(rng)
    elif choice == 6 and isinstance(old, list) and old:
        rng.shuffle(old)
        container[key] = old * rng.choice((2, 3, 50))
    elif choice == 7 and rng.random() < 0.3:
        container[key] = [old]
    elif choice == 8 and rng.random() < 0.3:
        container[key] = _deep(rng.choice((10, 31, 33, 200)), rng.random() < 0.5)
    elif choice == 9 and rng.random() < 0.2:
        container[key] = "x" * rng.choice((129, 257, 70_000, 1 << 20))
    elif isinstance(old, str):
        container[key] = old + _text(rng)
    return body


def _misspelt(rng: random.Random, name: str) -> str:
    at = rng.randrange(len(name) + 1)
    letter = rng.choice(string.ascii_lowercase)
    return rng.choice((name[:at] + letter + name[at:], name[:at] + name[at + 1 :], name.upper()))


def _deep(levels: int, lists: bool) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


def _cap(body: dict[str, Any], path: str) -> None:
    """Ensure that there is a limit and that no valid limit is above `MOST_TOKENS`."""
    name = _LIMITS.get(path)
    if name is None:
        return
    limits: Any = body
    if path.startswith("/api/"):
        limits = body.setdefault("options", {})
        if limits is None:
            limits = body["options"] = {}
    if not isinstance(limits, dict):
        return
    for alias in (*_ALIASES, "num_predict"):
        value = limits.get(alias)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if alias in limits and (value is None or (is_number and not 0 <= value <= MOST_TOKENS)):
            limits[alias] = MOST_TOKENS
    if path != "/v1/messages" and not any(alias in limits for alias in (name, *_ALIASES)):
        limits[name] = MOST_TOKENS


def _garble(rng: random.Random, body: bytes) -> bytes:
    """Damage the text itself, in one body of ten."""
    chance = rng.random()
    if chance < 0.03:
        return body[: rng.randrange(len(body) + 1)]
    if chance < 0.05:
        changed = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if chance < 0.06:
        return body[:-1] + b', "stream": true, "stream": false}'
    if chance < 0.07:
        number = rng.choice((b"NaN", b"-Infinity", b"1e999", b"0x10", b"01", b"1" * 5000))
        return body[:-1] + b', "temperature": ' + number + b"}"
    if chance < 0.08:
        return body[:-1] + b', "a": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    if chance < 0.09:
        return rng.choice((b"", b"\xef\xbb\xbf" + body, body + body, b"\xff\xfe", b" " * 100_000))
    return body
