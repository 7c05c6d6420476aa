"""Vocabularies for models with random weights: made in code, or copied from a GGUF file.

llama.cpp's own vocabulary-only files are part of the source package of llama-cpp-python, with test
vectors for tokenizers and chat templates; `make vocabularies` or the first use unpacks them from
there into the user's cache folder, once.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf

from hearth.app.paths import find_paths, private_folder
from hearth.quant.gguf.reader import read_header
from hearth.quant.gguf.values import NumberArray, StringArray

PACKAGE = "llama-cpp-python"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, for vocabularies without a template."""

_PREFIX = "tokenizer."
_TEMPLATE_KEY = "tokenizer.chat_template"
_TOKENS, _TYPES, _SCORES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores"))
_MERGES = ("h e", "l l", "he ll", "hell o", "Ġ t", "Ġt h", "Ġth e", "i n", "a n", "a t", "o n")
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MEMBER = re.compile(
    r"[^/]+/vendor/llama\.cpp/models/(ggml-vocab-[\w.-]+\.gguf(?:\.inp|\.out)?|templates/[\w.-]+\.jinja)"
)
TREE_VARIABLE = "LLAMA_CPP_MODELS"
"""Names the `models` folder of llama.cpp's sources."""
_PATIENCE = ("--disable-pip-version-check", "--retries=1", "--timeout=15")
"""Fail soon without a network, since callers can go on without the files."""
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a GGUF file; `element_kind` is the type of an array's elements."""

    key: str
    value: Any
    kind: gguf.GGUFValueType
    element_kind: gguf.GGUFValueType | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All information about tokens in a GGUF file."""

    tokens: list[bytes]
    types: list[int]
    scores: list[float] | None
    others: tuple[Entry, ...]
    """All other `tokenizer.*` keys."""

    def padded(self, size: int) -> Vocabulary:
        """This vocabulary with unused tokens added up to `size`.

        Raises:
            ValueError: it has more than `size` tokens.
        """
        missing = size - len(self.tokens)
        if missing < 0:
            raise ValueError(
                f"a vocabulary of {len(self.tokens):,} tokens does not fit a model of {size:,}"
            )
        return replace(
            self,
            tokens=self.tokens + [b"[PAD%d]" % index for index in range(missing)],
            types=self.types + [int(gguf.TokenType.UNUSED)] * missing,
            scores=None if self.scores is None else self.scores + [0.0] * missing,
        )

    def write(self, writer: gguf.GGUFWriter) -> None:
        """Add all keys to `writer`, and `TEMPLATE` if there is no template yet."""
        kinds = gguf.GGUFValueType
        for entry in self.others:
            writer.add_key_value(entry.key, entry.value, entry.kind, entry.element_kind)
        writer.add_key_value(_TOKENS, self.tokens, kinds.ARRAY, kinds.STRING)
        writer.add_key_value(_TYPES, self.types, kinds.ARRAY, kinds.INT32)
        if self.scores is not None:
            writer.add_key_value(_SCORES, self.scores, kinds.ARRAY, kinds.FLOAT32)
        if not any(entry.key == _TEMPLATE_KEY for entry in self.others):
            writer.add_chat_template(TEMPLATE)


def synthetic() -> Vocabulary:
    """Byte-level BPE: 256 bytes, eleven merges and ChatML's three control tokens; tokenizes
    anything.
    """
    kinds = gguf.GGUFValueType
    words = [*_byte_alphabet(), *(merge.replace(" ", "") for merge in _MERGES)]
    tokens = [word.encode() for word in (*words, *_SPECIALS)]
    normal, control = int(gguf.TokenType.NORMAL), int(gguf.TokenType.CONTROL)
    return Vocabulary(
        tokens=tokens,
        types=[normal] * len(words) + [control] * len(_SPECIALS),
        scores=None,
        others=(
            Entry("tokenizer.ggml.model", "gpt2", kinds.STRING),
            Entry("tokenizer.ggml.pre", "qwen2", kinds.STRING),
            Entry("tokenizer.ggml.merges", list(_MERGES), kinds.ARRAY, kinds.STRING),
            Entry("tokenizer.ggml.eos_token_id", tokens.index(b"<|im_end|>"), kinds.UINT32),
            Entry("tokenizer.ggml.padding_token_id", tokens.index(b"<|endoftext|>"), kinds.UINT32),
            Entry("tokenizer.ggml.add_bos_token", False, kinds.BOOL),
        ),
    )


def from_file(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file, with or without weights.

    Raises:
        ValueError: the file has no tokens.
        CorruptFile: it is not a GGUF file.
    """
    file = read_header(path)
    tokens = file.value(_TOKENS)
    if not isinstance(tokens, StringArray):
        raise ValueError(f"{path} holds no vocabulary")
    types, scores = file.value(_TYPES), file.value(_SCORES)
    others = []
    for key, value in file.metadata.items():
        if key.startswith(_PREFIX) and key not in (_TOKENS, _TYPES, _SCORES):
            plain: Any = value
            element_kind = None
            if isinstance(value, StringArray | NumberArray):
                element_kind = gguf.GGUFValueType(value.element_type)
                plain = value.raw_strings() if isinstance(value, StringArray) else list(value)
            kind = gguf.GGUFValueType(file.value_types[key])
            others.append(Entry(key, plain, kind, element_kind))
    normal = int(gguf.TokenType.NORMAL)
    return Vocabulary(
        tokens=tokens.raw_strings(),
        types=[normal] * len(tokens) if types is None else [int(item) for item in types],
        scores=None if scores is None else [float(item) for item in scores],
        others=tuple(others),
    )


def from_sdist(name: str, *, sdist: Path | None = None) -> Vocabulary:
    """A vocabulary of llama.cpp, e.g. "qwen2" or "llama-bpe".

    Args:
        sdist: a downloaded source package to take it from; None: the cache folder, or `pip
            download` if the cache folder has none.

    Raises:
        ValueError: the package has no such vocabulary.
        subprocess.CalledProcessError: pip could not get the package.
    """
    folder = _cache_folder(pinned_version())
    if not folder.is_dir():
        _unpack_pinned(sdist, folder)
    path = folder / f"ggml-vocab-{name}.gguf"
    if not path.is_file():
        known = ", ".join(sorted(file.stem[11:] for file in folder.glob("*.gguf")))
        raise ValueError(f"{PACKAGE} has no vocabulary {name!r}; it has {known}")
    return from_file(path)


def unpack(sdist: Path, folder: Path) -> None:
    """Put the vocabulary-only files of a source package into `folder`, which appears only when it
    is complete.

    Raises:
        ValueError: the package contains none.
    """
    private_folder(folder.parent)
    with (
        tempfile.TemporaryDirectory(dir=folder.parent) as unfinished,
        tarfile.open(sdist) as package,
    ):
        ready = Path(unfinished, "ready")
        ready.mkdir()
        for member in package:
            match = _MEMBER.fullmatch(member.name)
            content = package.extractfile(member) if match and member.isfile() else None
            if match and content is not None:
                kept = ready / match[1]
                kept.parent.mkdir(exist_ok=True)
                kept.write_bytes(content.read())
        if not any(ready.iterdir()):
            raise ValueError(f"{sdist} holds no vocabulary of llama.cpp")
        if not folder.is_dir():
            ready.rename(folder)


def found_tree() -> Path | None:
    """A folder with llama.cpp's vocabularies, their test vectors and its templates: the one that
    LLAMA_CPP_MODELS names, else the one unpacked before; None if there is none. Uses no network.
    """
    named = os.environ.get(TREE_VARIABLE)
    folder = Path(named) if named else _cache_folder(pinned_version())
    return folder if any(folder.glob("*.gguf")) else None


def main() -> None:
    """Unpack the package of the pinned version, downloaded where it is not there yet. Ends with 1
    and a line that says so where it cannot be had.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--sdist", type=Path, help="a downloaded source package to take them from")
    sdist = parser.parse_args().sdist
    folder = _cache_folder(pinned_version())
    if not folder.is_dir():
        try:
            _unpack_pinned(sdist, folder)
        except subprocess.CalledProcessError:
            sys.exit(f"{PACKAGE} {pinned_version()} could not be downloaded; pip says why above.")
    print(f"{len(list(folder.glob('*.gguf')))} vocabularies are in {folder}")


def pinned_version() -> str:
    """The version of llama-cpp-python that pyproject.toml requires."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pin = next(line for line in project["dependencies"] if line.startswith(f"{PACKAGE}=="))
    return str(pin.partition("==")[2])


def _unpack_pinned(sdist: Path | None, folder: Path) -> None:
    if sdist is not None:
        unpack(sdist, folder)
        return
    with tempfile.TemporaryDirectory() as download:
        unpack(_download(pinned_version(), Path(download)), folder)


def _download(version: str, folder: Path) -> Path:
    """Download the source package. pip checks the file against the index's sha256, and takes it
    from its cache if possible.

    Only this package is requested as source: its build backend, which pip runs for the metadata,
    may be a wheel.
    """
    command = [sys.executable, "-m", "pip", "--quiet", *_PATIENCE, "download", "--no-deps"]
    source = ["--no-binary", PACKAGE, f"--dest={folder}", f"{PACKAGE}=={version}"]
    subprocess.run([*command, *source], check=True)
    return next(folder.glob("*.tar.gz"))


def _cache_folder(version: str) -> Path:
    return find_paths().cache / "vocabularies" / f"{PACKAGE}-{version}-v2"


def _byte_alphabet() -> list[str]:
    """The characters that stand for the bytes 0 to 255 in GPT-2's byte-level BPE."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


if __name__ == "__main__":
    main()
