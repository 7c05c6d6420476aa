"""The models that a repository offers, and the files that are refused.

A model is one quantization in GGUF, or all of the repository's safetensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final, Literal

from hearth.app.library.errors import ChoiceNotFound, RefusedRepository, RepositoryNotFound
from hearth.app.library.hub import Repository, RepositoryFile
from hearth.app.library.model_files import BESIDE_WEIGHTS, PICKLE_SUFFIXES, is_below_weights
from hearth.app.nearest import nearest

Group = Literal["small", "balanced", "large"]
ChoiceKind = Literal["gguf", "safetensors"]
SAFETENSORS: Final = "safetensors"
"""The name of the choice that consists of all safetensors of a repository."""

_QUANT: Final = re.compile(
    r"(?:^|(?<=[-._/ ]))"
    r"((?:UD[-_])?(?:"
    r"IQ[1-4]_(?:XXS|XS|S|M|NL|XL)"
    r"|Q[1-8]_K(?:_(?:XXS|XS|S|M|L|XL|XXL))?"
    r"|Q[1-8]_[01](?:_(?:L|XL|4_4|4_8|8_8))?"
    r"|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32"
    r"))(?=$|[-._/ ])",
    re.IGNORECASE,
)
_PART: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_BITS: Final = {
    "IQ1_S": 1.6, "IQ1_M": 1.8, "TQ1_0": 1.7, "TQ2_0": 2.1, "IQ2_XXS": 2.1, "IQ2_XS": 2.3,
    "IQ2_S": 2.5, "IQ2_M": 2.7, "Q2_K": 3.0, "IQ3_XXS": 3.1, "IQ3_XS": 3.3, "IQ3_S": 3.5,
    "Q3_K_S": 3.5, "IQ3_M": 3.7, "Q3_K_M": 3.9, "Q3_K_L": 4.2, "IQ4_XS": 4.3, "MXFP4": 4.3,
    "NVFP4": 4.5, "IQ4_NL": 4.5, "Q4_0": 4.6, "Q4_K_S": 4.6, "Q4_K_M": 4.85, "Q4_1": 5.1,
    "Q5_0": 5.5, "Q5_K_S": 5.5, "Q5_K_M": 5.7, "Q5_1": 6.0, "Q6_K": 6.6, "Q8_0": 8.5,
    "F16": 16.0, "BF16": 16.0, "F32": 32.0,
}  # fmt: skip
"""Approximate bits per weight of models of each type."""
_BEST_BITS: Final = _BITS["Q4_K_M"]
_SMALL_BELOW: Final = 4.0
_LARGE_FROM: Final = 6.2


@dataclass(frozen=True, slots=True)
class Choice:
    """One model of a repository that can be downloaded and used.

    Attributes:
        name: the quantization, such as "Q4_K_M"; the file's name if that contains none, or if
            several files have the same one; `SAFETENSORS` for a whole repository.
        files: all files of the model, parts in order.
        bits_per_weight: size over the repository's parameters; None if the Hub does not know these.
        is_quantized: whether safetensors are quantized already, so that quantizing is not offered;
            False for GGUF files, whose names tell.
    """

    name: str
    kind: ChoiceKind
    files: tuple[RepositoryFile, ...]
    size_bytes: int
    bits_per_weight: float | None
    group: Group
    is_quantized: bool = False


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file of weights that is refused, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Offer:
    """The models that a repository offers.

    Attributes:
        choices: smallest first; at least one.
    """

    choices: tuple[Choice, ...]
    refused: tuple[RefusedFile, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """The parts of `organisation/name@revision:choice`; `choice` is empty if absent."""

    repo_id: str
    revision: str
    choice: str


def parse_reference(text: str) -> Reference:
    """The repository and the choice that `text` names.

    The form is "organisation/name", optionally preceded by the Hub's address, and optionally
    followed by "@revision" and by ":Q4_K_M" or ":file.gguf".

    Raises `RepositoryNotFound` if `text` cannot be the name of a repository.
    """
    short = re.sub(r"^(?:https?://)?(?:huggingface\.co|hf\.co)/", "", text.strip())
    name, _, choice = short.strip("/").partition(":")
    repo_id, _, revision = name.partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id, re.ASCII):
        raise RepositoryNotFound(
            f'"{text}" is not the name of a repository.',
            "Names look like organisation/name, or organisation/name:Q4_K_M for one quant.",
            name=text,
        )
    return Reference(repo_id, revision or "main", choice)


def offer(repository: Repository) -> Offer:
    """The models that `repository` offers.

    Projectors (mmproj) and importance matrices are left out, because they are parts of other
    models.

    Raises:
        RefusedRepository: it offers none; the message has the reason.
    """
    ggufs: list[RepositoryFile] = []
    refused: list[RefusedFile] = []
    for file in repository.files:
        name = PurePosixPath(file.path).name.lower()
        if name.endswith(".gguf"):
            if "mmproj" not in name and "imatrix" not in name:
                ggufs.append(file)
        elif name.endswith(PICKLE_SUFFIXES) and "imatrix" not in name:
            reason = "a file of this kind (pickle) can run any code when it is loaded"
            refused.append(RefusedFile(file.path, reason))
    gguf_choices: list[Choice] = []
    for files in _models(ggufs):
        gap = _missing_parts(files)
        if gap:
            refused.append(RefusedFile(files[0].path, gap))
        else:
            gguf_choices.append(_gguf(files, repository.parameters))
    choices = _named_apart(gguf_choices) + _safetensors(repository)
    if not choices:
        raise _nothing(repository, refused)
    choices.sort(key=lambda choice: (choice.size_bytes, choice.name))
    return Offer(tuple(choices), tuple(refused))


def find_choice(offer: Offer, repo_id: str, wanted: str) -> Choice:
    """The choice of `offer` that is called `wanted` or has a file of that name, ignoring case.

    Raises `ChoiceNotFound`, with the most similar names.
    """
    lower = wanted.lower()
    for choice in offer.choices:
        paths = [file.path.lower() for file in choice.files]
        names = [choice.name.lower(), *paths, *(PurePosixPath(path).name for path in paths)]
        if lower in names:
            return choice
    names = [choice.name for choice in offer.choices]
    near = nearest(wanted, names, most=3)
    guess = f"Did you mean {' or '.join(near)}? " if near else ""
    refused = [file for file in offer.refused if lower in file.path.lower()]
    because = f" {refused[0].path} is refused: {refused[0].reason}." if refused else ""
    raise ChoiceNotFound(
        f"{repo_id} has no {wanted}.{because}",
        f"{guess}It has {', '.join(names)}.",
        name=wanted,
        nearest=near,
        names=names,
    )


def _models(ggufs: Iterable[RepositoryFile]) -> list[list[RepositoryFile]]:
    """The files of each model, parts in order."""
    models: dict[str, list[RepositoryFile]] = {}
    for file in sorted(ggufs, key=lambda file: file.path):
        models.setdefault(_PART.sub(".gguf", file.path), []).append(file)
    return list(models.values())


def _missing_parts(files: Sequence[RepositoryFile]) -> str:
    """Why a model of several parts is incomplete; empty if it is complete."""
    matches = [match for file in files if (match := _PART.search(file.path))]
    if not matches:
        return ""
    total = int(matches[0][2])
    there = {int(match[1]) for match in matches}
    if there == set(range(1, total + 1)):
        return ""
    return f"only {len(there)} of its {total} parts are in the repository"


def _gguf(files: Sequence[RepositoryFile], parameters: int | None) -> Choice:
    path = _PART.sub(".gguf", files[0].path).removesuffix(".gguf")
    pure = PurePosixPath(path)
    quants = _QUANT.findall(pure.name) or _QUANT.findall(str(pure.parent))
    name = _tidy(quants[-1]) if quants else pure.name
    size = sum(file.size_bytes for file in files)
    bits = size * 8 / parameters if parameters else None
    return Choice(name, "gguf", tuple(files), size, bits, _group(_known_bits(name) or bits))


def _tidy(quant: str) -> str:
    upper = quant.upper().replace("UD_", "UD-")
    return upper.replace("FP16", "F16").replace("FP32", "F32") if "MX" not in upper else upper


def _known_bits(name: str) -> float | None:
    """Bits per weight of the quantization `name` or of its variants, such as UD-Q4_K_XL."""
    plain = name.removeprefix("UD-")
    while plain:
        if plain in _BITS:
            return _BITS[plain]
        variants = [bits for known, bits in _BITS.items() if known.startswith(f"{plain}_")]
        if variants:
            return max(variants)
        plain = plain.rpartition("_")[0]
    return None


def _group(bits: float | None) -> Group:
    if bits is None:
        return "balanced"
    if bits < _SMALL_BELOW:
        return "small"
    return "large" if bits >= _LARGE_FROM else "balanced"


def _named_apart(choices: Sequence[Choice]) -> list[Choice]:
    """`choices`, in which those with the same name are named after their files instead."""
    names = [choice.name for choice in choices]
    return [
        replace(choice, name=_PART.sub(".gguf", choice.files[0].path).removesuffix(".gguf"))
        if names.count(choice.name) > 1
        else choice
        for choice in choices
    ]


def _safetensors(repository: Repository) -> list[Choice]:
    """The repository's safetensors and their other files, as one choice.

    Empty without weights or configuration.
    """
    top = [file for file in repository.files if "/" not in file.path]
    weights = [file for file in top if file.path.endswith(".safetensors")]
    usual = [file for file in weights if file.path.startswith("model")]
    weights = usual or weights  # Some repositories also have the same weights as consolidated*.
    beside = [file for file in top if file.path in BESIDE_WEIGHTS]
    beside += [file for file in repository.files if is_below_weights(file.path)]
    if not weights or "config.json" not in {file.path for file in beside}:
        return []
    files = (*beside, *weights)
    size = sum(file.size_bytes for file in files)
    bits = size * 8 / repository.parameters if repository.parameters else None
    group = _group(bits or 16.0)
    quantized = repository.is_quantized
    return [Choice(SAFETENSORS, "safetensors", files, size, bits, group, quantized)]


def best_choice(choices: Sequence[Choice], fits: Callable[[Choice], bool]) -> Choice:
    """The choice to recommend.

    Of those that fit this machine, the one nearest to Q4_K_M; the smallest if none fits. GGUF files
    are preferred to safetensors.
    """
    ggufs = [choice for choice in choices if choice.kind == "gguf"] or list(choices)
    fitting = [choice for choice in ggufs if fits(choice)]
    if not fitting:
        return ggufs[0]

    def distance(choice: Choice) -> tuple[float, bool, int]:
        bits = _known_bits(choice.name) or choice.bits_per_weight or _BEST_BITS
        return abs(bits - _BEST_BITS), choice.name != "Q4_K_M", -choice.size_bytes

    return min(fitting, key=distance)


def _nothing(repository: Repository, refused: Sequence[RefusedFile]) -> RefusedRepository:
    if refused:
        return RefusedRepository(
            f"{repository.repo_id} has nothing that Hearth takes: {refused[0].path}: "
            f"{refused[0].reason}.",
            "Look for a repository with the same model as GGUF or safetensors; most carry GGUF in "
            "their name.",
            refused=[file.path for file in refused],
        )
    return RefusedRepository(
        f"{repository.repo_id} has no model in it: no GGUF file, and no safetensors with a "
        "config.json.",
        "Look for a repository with GGUF in its name.",
        refused=[],
    )
