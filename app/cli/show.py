"""`hearth show`: what the headers of a model contain, and whether its weights are intact."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, get_args

import click

from hearth.app import format as words
from hearth.app.cli.options import complete_model, json_option
from hearth.app.cli.output import run_shown
from hearth.app.cli.state import State
from hearth.app.exit_codes import ExitCode
from hearth.app.format import argument
from hearth.app.library import evaluation
from hearth.app.library.drafts import fitting_drafts
from hearth.app.library.local import FoundModel
from hearth.backends.contract.models import KvType, ModelSettings
from hearth.backends.errors import HearthError, InvalidParameter, NoChatTemplate
from hearth.backends.remote.server import RemoteServer
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.values import StringArray

_TOKENS = "tokenizer.ggml.tokens"
_TOKENIZER = "tokenizer.json"
_RANK_POOLING = 4
"""LLAMA_POOLING_TYPE_RANK of llama.h."""
_SHOWN: Final = 5
"""Number of tensors named in a line about verified weights; the JSON lists all of them."""


@click.command("show")
@click.argument("model", shell_complete=complete_model)
@click.option("--template", is_flag=True, help="Print the chat template alone.")
@click.option("--tensors", is_flag=True, help="List the tensors too.")
@click.option(
    "--verify", is_flag=True, help="Read all weights, and look for NaN and infinite numbers."
)
@json_option
@click.pass_obj
def show(
    state: State, model: str, template: bool, tensors: bool, verify: bool, as_json: bool
) -> int:
    """Show what is known about MODEL: a name that `hearth list` shows, or a path to a GGUF file or
    a folder of safetensors.

    With --verify the exit code is 1 if something is wrong with its weights.
    """
    if template and not as_json and (tensors or verify):
        other = "--tensors" if tensors else "--verify"
        raise click.UsageError(f"--template and {other}: leave out one of them, or add --json.")
    resolved = state.library.resolve(model)
    if resolved.remote is not None:
        given = {"--template": template, "--tensors": tensors, "--verify": verify}
        if flags := [flag for flag, is_given in given.items() if is_given]:
            raise click.UsageError(
                f"{', '.join(flags)}: {resolved.name} runs elsewhere, so its files are not here."
            )
        _show_remote(state, resolved.remote, as_json=as_json)
        return ExitCode.OK
    facts = describe(resolved, tensors=tensors)
    facts["backend"] = _backend(state, resolved)
    facts["evaluation"] = evaluation.stored(resolved.path)
    facts["drafts"] = fitting_drafts(resolved, state.library)
    chat_template = facts.pop("template")
    if template and not as_json:
        if chat_template is None:
            raise NoChatTemplate(f"{resolved.name} has no chat template.")
        state.output.data(chat_template)
        return ExitCode.OK
    if template:
        facts["template"] = chat_template
    if verify:
        facts["verified"] = _verify(state, resolved)
    _print(state, facts, as_json=as_json)
    return ExitCode.FAILED if verify and not facts["verified"]["sound"] else ExitCode.OK


def _print(state: State, facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        state.output.json(facts)
        return
    width = max(len(title) for title, _ in _LINES)
    for title, text in ((title, line(facts)) for title, line in _LINES):
        if text:
            state.output.data(f"{title:{width}}  {text}")
    if "verified" in facts:
        for line in _verdict(facts["verified"]):
            state.output.data(f"{'weights':{width}}  {line}")
    if "tensors" in facts:
        state.output.data("")
        rows = [("TENSOR", "TYPE", "SHAPE", "SIZE")]
        rows += [
            (t["name"], t["type"], " × ".join(map(str, t["shape"])), words.size(t["size_bytes"]))
            for t in facts["tensors"]
        ]
        state.output.table(rows, right=(3,))


def _show_remote(state: State, remote: RemoteServer, *, as_json: bool) -> None:
    """Print where a remote model is, and what its server reports about it."""
    with state.link() as link:
        info = link.info(state.choose(remote.name, {}).spec)
    facts = {
        "name": remote.name,
        "url": remote.url,
        "model": info.architecture,
        "server": info.backend_version,
        "context": info.context or None,
        "key": remote.key_source or None,
    }
    if as_json:
        state.output.json(facts)
        return
    for title, value in facts.items():
        if value is not None:
            state.output.data(f"{title:7}  {value}")


def _backend(state: State, found: FoundModel) -> dict[str, str | None]:
    """The runner that the settings select, and why; the runner is None if there is none."""
    from hearth.app.chosen import with_settings
    from hearth.backends.worker.choice import choose

    try:
        choice = choose(with_settings(found, state.settings).spec, state.paths.cache)
    except HearthError as error:
        return {"runner": None, "reason": f"{error.message} {error.hint}".strip()}
    return {"runner": choice.runner, "reason": choice.reason}


def describe(found: FoundModel, *, tensors: bool) -> dict[str, Any]:
    """The object of `hearth show --json`, with the template and, if `tensors`, the list of tensors.

    Raises:
        CorruptFile, UnsupportedModel, OSError: the headers are invalid or cannot be read.
    """
    facts = _folder_facts(found.path) if found.path.is_dir() else _gguf_facts(found.path)
    weights_bytes = sum(tensor["size_bytes"] for tensor in facts["tensors"])
    if not tensors:
        del facts["tensors"]
    template, defaults = facts["template"], facts.pop("defaults")
    return {
        "name": found.name,
        "path": str(found.path),
        "origin": found.origin,
        "repo": found.repo or None,
        **facts,
        "bits_per_weight": round(8 * weights_bytes / max(1, facts["parameters"]), 2),
        "template_sha256": template and hashlib.sha256(template.encode()).hexdigest(),
        "templates": sorted(facts["templates"]),
        "sampling_defaults": dict(defaults.named),
        "end_tokens": [{"id": number, "text": t} for number, t in facts["end_tokens"].items()],
    }


def _gguf_facts(path: Path) -> dict[str, Any]:
    from hearth.backends.text.vocab.gguf_vocabulary import end_tokens
    from hearth.quant.generation_defaults import gguf_generation_defaults

    header = preflight.check(path)
    tokens = header.value(_TOKENS)
    kv_bytes: dict[str, int | None] = dict.fromkeys(get_args(KvType))
    for kv_type in kv_bytes:
        with suppress(HearthError):  # The heads of this model cannot be stored in that type.
            kv_bytes[kv_type] = header.kv_bytes_per_token(kv_type, kv_type)
    return {
        "title": _text(header, "general.name"),
        "size_bytes": sum(part.size_bytes for part in (header, *header.shards)),
        "files": 1 + len(header.shards),
        "architecture": header.architecture,
        "parameters": header.parameter_count,
        "quantization": header.file_type_name,
        "context": header.context_length,
        "purpose": _purpose(header),
        "kv_bytes_per_token": kv_bytes,
        # llama.cpp keeps every token also in layers with a window, because of `swa_full`.
        "kv_window_bytes": {kv_type: size and 0 for kv_type, size in kv_bytes.items()},
        "tokenizer": _text(header, "tokenizer.ggml.model"),
        "pre_tokenizer": _text(header, "tokenizer.ggml.pre"),
        "vocabulary": len(tokens) if isinstance(tokens, StringArray) else None,
        "template": header.chat_template,
        "templates": header.chat_templates,
        "defaults": gguf_generation_defaults(header),
        "end_tokens": end_tokens(header),
        "licence": _text(header, "general.license"),
        "gguf_version": header.version,
        "tensor_count": len(header.all_tensors),
        "tensors": [
            {"name": t.name, "type": t.type.name, "shape": list(t.shape), "size_bytes": t.nbytes}
            for t in header.all_tensors
        ],
    }


def _folder_facts(path: Path) -> dict[str, Any]:
    from hearth.backends.native.footprint import PAGE
    from hearth.backends.native.kv_sizes import KvSizes, kv_sizes
    from hearth.backends.native.model_folder import read_model_folder
    from hearth.backends.text.chat_templates import DEFAULT
    from hearth.quant.convert.folder_files import chat_templates
    from hearth.quant.generation_defaults import read_generation_defaults

    folder = read_model_folder(path)
    templates, defaults = chat_templates(path), read_generation_defaults(path)
    context = folder.config.context
    sizes: dict[KvType, KvSizes | None] = dict.fromkeys(get_args(KvType))
    for kv_type in sizes:
        with suppress(InvalidParameter):  # The native runner does not support that type.
            sizes[kv_type] = kv_sizes(folder.config, ModelSettings(kv_type=kv_type), page=PAGE)
    return {
        "title": None,
        "size_bytes": folder.size_bytes,
        "files": len(folder.headers),
        "architecture": folder.architecture,
        "parameters": folder.parameters,
        "quantization": folder.stored,
        "context": context,
        "purpose": "text",
        "kv_bytes_per_token": {name: of and of.bytes_per_token for name, of in sizes.items()},
        "kv_window_bytes": {
            name: of and of.seen_window_bytes(context) for name, of in sizes.items()
        },
        "tokenizer": _TOKENIZER if (path / _TOKENIZER).is_file() else None,
        "pre_tokenizer": None,
        "vocabulary": folder.config.vocab_size,
        "template": templates.get(DEFAULT),
        "templates": templates,
        "defaults": defaults,
        "end_tokens": _end_tokens(path, folder.config.vocab_size, defaults.eos_ids),
        "licence": None,
        "gguf_version": None,
        "tensor_count": len(folder.by_name),
        "tensors": [
            {"name": t.name, "type": t.kind, "shape": list(t.shape), "size_bytes": t.nbytes}
            for t in folder.tensors
        ],
    }


def _end_tokens(folder: Path, rows: int, named: frozenset[int]) -> dict[int, str | None]:
    """The tokens that end an answer, as a map from id to text. If no tokenizer can be read, the ids
    that `generation_config.json` names, without texts.
    """
    from hearth.backends.text.vocab.load import open_folder

    try:
        tokenizer = open_folder(folder, rows=rows)
    except HearthError:  # Reported by `--verify`, and when the model is loaded.
        return dict.fromkeys(sorted(named))
    ids = sorted(ident for ident in tokenizer.end_ids | named if ident < tokenizer.vocab_size)
    return {ident: tokenizer.decode([ident]) for ident in ids}


def _purpose(header: GgufFile) -> str:
    if not header.is_encoder:
        return "text"
    ranks = header.value(f"{header.architecture}.pooling_type") == _RANK_POOLING
    return "reranking" if ranks else "embeddings"


def _text(header: GgufFile, key: str) -> str | None:
    """The text value of `key`; None if the file has none or it is not a text."""
    value = header.value(key)
    return value if isinstance(value, str) else None


def _kv_line(facts: dict[str, Any]) -> str:
    if facts["purpose"] != "text":
        return "none: texts are computed as a whole"
    bytes_of: dict[str, int | None] = facts["kv_bytes_per_token"]
    parts = [f"{name} {'not possible' if n is None else f'{n:,}'}" for name, n in bytes_of.items()]
    line = " · ".join(parts) + "  (bytes a token)"
    windows = facts["kv_window_bytes"]["f16"]
    return f"{line}, and f16 {words.size(windows)} for windows" if windows else line


def _template_line(facts: dict[str, Any]) -> str:
    digest = facts["template_sha256"]
    if facts["purpose"] != "text":
        return f"none: it is for {facts['purpose']}"
    if not digest:
        return "none: use hearth run --raw"
    others = [name for name in facts["templates"] if name != "default"]
    return f"yes, sha256 {digest[:16]}" + (f"; also {', '.join(others)}" if others else "")


def _sampling_line(facts: dict[str, Any]) -> str:
    said = [f"{name} {value:g}" for name, value in facts["sampling_defaults"].items()]
    return f"{', '.join(said)} (recommended in its files)" if said else ""


def _ends_line(facts: dict[str, Any]) -> str:
    return ", ".join(
        str(token["id"]) if token["text"] is None else f"{token['text']} ({token['id']})"
        for token in facts["end_tokens"]
    )


def _backend_line(facts: dict[str, Any]) -> str:
    backend = facts["backend"]
    names = {None: "none", "llamacpp": "llama.cpp"}
    return f"{names.get(backend['runner'], backend['runner'])}: {backend['reason']}"


def _drafts_line(facts: dict[str, Any]) -> str:
    names = facts["drafts"]
    return f"{', '.join(names)} can draft for it: --draft {argument(names[0])}" if names else ""


def _verify(state: State, found: FoundModel) -> dict[str, Any]:
    """The result of the job (`verify_job`), with "sound" set to whether all is right.

    Raises:
        Stopped: by Ctrl+C.
        CorruptFile, UnsupportedModel: the model breaks its format, or no runner can run it.
    """
    from hearth.app.library.verify_job import verify
    from hearth.app.paths import own_folder

    question, log = {"path": str(found.path)}, own_folder(state.paths.log)
    verified = run_shown(verify, question, f"checking {found.name}", log)
    return {"sound": not verified["not_finite"], **verified}


def _verdict(found: dict[str, Any]) -> list[str]:
    checked = found["tensors"] - len(found["unread"])
    took = f"{words.size(found['size_bytes'])} in {words.duration(found['wall_s'])}"
    if found["not_finite"]:
        names = [
            f"{one['name']} ({one['rows']} rows, the first is {one['first_row']})"
            for one in found["not_finite"]
        ]
        lines = [f"NaN or infinite numbers in {_listed(names)}: get the file again"]
    else:
        lines = [f"all numbers of {checked} tensors are finite ({took})"]
    if not found["family"]:
        lines.append("the native runner does not know this kind of model; llama.cpp may")
    others = {
        "not looked into, because of their type": found["unread"],
        "unknown tensors, which are not used": found["unknown"],
        "not needed": found["skipped"],
    }
    return [*lines, *(f"{what}: {_listed(names)}" for what, names in others.items() if names)]


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


_LINES = (
    ("name", lambda facts: facts["name"]),
    ("title", lambda facts: facts["title"]),
    ("file", lambda facts: facts["path"]),
    ("from", lambda facts: f"{facts['origin']} {facts['repo'] or ''}".strip()),
    ("size", lambda facts: words.size(facts["size_bytes"])),
    ("architecture", lambda facts: facts["architecture"]),
    ("parameters", lambda facts: f"{words.count(facts['parameters'])} ({facts['parameters']:,})"),
    (
        "quantization",
        lambda facts: f"{facts['quantization']}, {facts['bits_per_weight']} bits a weight",
    ),
    ("context", lambda facts: f"{facts['context']:,} tokens (trained)"),
    ("KV cache", _kv_line),
    (
        "tokenizer",
        lambda facts: (
            f"{facts['tokenizer'] or 'none'} ({facts['pre_tokenizer'] or 'default'}), "
            f"{facts['vocabulary'] or 0:,} tokens"
        ),
    ),
    ("template", _template_line),
    ("sampling", _sampling_line),
    ("ends with", _ends_line),
    ("backend", _backend_line),
    ("drafts", _drafts_line),
    (
        "evaluated",
        lambda facts: evaluation.words(facts["evaluation"]) if facts["evaluation"] else "",
    ),
    ("licence", lambda facts: facts["licence"] or "not stated in the file"),
)
