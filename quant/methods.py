"""The ways to quantize a model, each behind the same small interface: what the menu and the command
offer is what is registered here.

A new method is a class with the members of `Method`; `methods` registers it, and it appears with
its name, its types and its options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypedDict, Unpack

from hearth.quant.errors import HearthError, UnsupportedModel
from hearth.quant.gguf.errors import BadRecipe

if TYPE_CHECKING:
    from hearth.quant.folders.methods import Runner

OnProgress = Callable[[int, int, str], None]
"""Gets bytes of the source that are packed, those that will be, and the tensor at hand."""
OnNote = Callable[[str], None]
"""Gets a sentence about an earlier attempt: it is resumed, or why it cannot be."""
Check = Callable[[], None]
"""Raises when the work should end; called at least once a second."""


class UnknownMethod(HearthError):
    """There is no method of that name, or none that makes what was asked."""

    code = "unknown_method"
    exit_code = 2
    http_status = 400


class UnknownOption(HearthError):
    """The method has no such option."""

    code = "unknown_option"
    exit_code = 2
    http_status = 400


@dataclass(frozen=True, slots=True)
class Option:
    """Something that a method can be told, beside source, target and type."""

    name: str
    kind: Literal["file", "texts", "flag", "number", "choice"]
    """A path, a list of texts, a boolean that is false by itself, a whole number, or one of
    `choices`."""
    help: str
    choices: tuple[str, ...] = ()
    """Of a path: what may be given in its place."""
    least: int | None = None
    """Of a number."""
    are_flags: bool = False
    """Each of `choices` is a flag of its own on a command line."""

    def check(self, value: Any) -> None:
        """Raises `BadRecipe` for a value that it cannot have."""
        if self.kind == "choice" and value not in self.choices:
            raise BadRecipe(
                f"{self.name} is {value!r}.", f"Choose {' or '.join(self.choices)}.", name=self.name
            )
        if self.kind == "number" and (type(value) is not int or value < (self.least or value)):
            least = "" if self.least is None else f" from {self.least} on"
            raise BadRecipe(
                f"{self.name} is {value!r}.", f"It must be a whole number{least}.", name=self.name
            )


CALIBRATION: Final = Option(
    "calibration",
    "file",
    "A text like those that the model will see, for importance matrices and activations. By "
    "default the bundled one.",
)


@dataclass(frozen=True, slots=True)
class Target:
    """A type that a method makes."""

    name: str
    about: str


@dataclass(frozen=True, slots=True)
class Quantized:
    """A finished file."""

    path: Path
    manifest: Path
    """A JSON file beside it: source with its hash, recipe, versions, sizes."""
    size_bytes: int
    sha256: str
    facts: dict[str, Any]
    """What the manifest says."""


class Plan(Protocol):
    """What will be made; nothing has been made yet."""

    @property
    def size_bytes(self) -> int:
        """Exactly, of the result."""
        ...

    @property
    def source_bytes(self) -> int: ...

    @property
    def bits_per_weight(self) -> float: ...

    @property
    def source_bits_per_weight(self) -> float: ...

    def memory_bytes(self, context: int) -> int:
        """Weights and key-value cache (f16) of the result, at `context` tokens."""
        ...

    def facts(self, *, tensors: bool = False) -> dict[str, Any]:
        """The plan as JSON values, with a list of the tensors on request."""
        ...


class Running(TypedDict):
    """How a method makes what was planned."""

    threads: int
    replace: bool
    """What is there under the name of the result is replaced."""
    on_progress: OnProgress
    on_note: OnNote
    check: Check


class Method(Protocol):
    """One way to quantize."""

    name: str
    """For programs: "gguf"."""
    title: str
    """For people."""
    about: str
    suffix: str
    """Of the files it makes, such as ".gguf"; empty: it makes folders."""
    options: tuple[Option, ...]

    def targets(self) -> list[Target]:
        """The types it makes, from the most bits to the fewest."""
        ...

    def target_named(self, name: str, source: Path) -> str:
        """The name of the type that a person called `name`, made of `source`. Raises `BadRecipe` if
        it is none, and a `HearthError` where the source must be read for that and cannot.
        """
        ...

    def takes(self, source: Path) -> bool:
        """It can read a source of that kind, by its name and first bytes."""
        ...

    def plan(self, source: Path, target: str, options: Mapping[str, Any]) -> Plan:
        """What quantizing `source` to the type `target` will make. Raises a `HearthError` that says
        why it cannot be.
        """
        ...

    def run(self, plan: Plan, path: Path, **how: Unpack[Running]) -> Quantized:
        """Make the file `path` as `plan`, which is this method's own, says."""
        ...


def given_options(method: Method, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `options` that were given: not None, false or empty.

    Raises:
        UnknownOption: `method` has none of that name.
        BadRecipe: one has a value that it cannot have.
    """
    given = {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != "" and value != []
    }
    own = {option.name: option for option in method.options}
    for name, value in given.items():
        if name not in own:
            raise UnknownOption(
                f"{method.title} has no option {name}.",
                f"Its options are: {', '.join(own)}.",
                name=name,
            )
        own[name].check(value)
    return given


def read_options(method: Method, words: Iterable[str]) -> dict[str, Any]:
    """Options as people write them in a word: "group=64", a flag's own name, or one of the choices
    that only one option has, such as "asym".

    Raises:
        UnknownOption: `method` has no such option, or that is no value of it.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        fitting = [one for one in method.options if one.name == name]
        if not value and not fitting:
            fitting = [one for one in method.options if word in one.choices]
            value = word
        if len(fitting) != 1:
            names = ", ".join(one.name for one in method.options)
            raise UnknownOption(
                f'{method.title} has no option "{word}".', f"Its options are: {names}.", name=word
            )
        (option,) = fitting
        is_number = value.removeprefix("-").isdecimal()
        is_good = {
            "flag": not value,
            "number": is_number,
            "choice": value in option.choices,
            "file": bool(value),
            "texts": bool(value),
        }
        if not is_good[option.kind]:
            wanted = " or ".join(option.choices) if option.kind == "choice" else option.help
            raise UnknownOption(f"{name} cannot be {value!r}.", f"{wanted}", name=name)
        values = {"flag": True, "number": int(value) if is_number else None, "texts": [value]}
        found[option.name] = values.get(option.kind, value)
    return found


class Methods:
    """Methods by name, in the order they were registered."""

    def __init__(self) -> None:
        self._methods: dict[str, Method] = {}

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods.values())

    def register(self, method: Method) -> None:
        """Offer `method`. Raises `ValueError` where its name is taken."""
        if method.name in self._methods:
            raise ValueError(f"there is a quantization method {method.name!r} already")
        self._methods[method.name] = method

    def named(self, name: str) -> Method:
        """The method of that name. Raises `UnknownMethod`."""
        if name not in self._methods:
            raise UnknownMethod(
                f'There is no quantization method "{name}".',
                f"There are: {', '.join(self._methods)}.",
                name=name,
            )
        return self._methods[name]

    def making(self, target: str, source: Path) -> tuple[Method, str]:
        """The first method that takes `source` and makes the type `target`, and the type's name.

        Raises:
            UnsupportedModel: no method takes such a source.
            HearthError: none makes such a type; what the first that takes the source says.
        """
        refusals: list[HearthError] = []
        for method in self:
            if method.takes(source):
                try:
                    return method, method.target_named(target, source)
                except HearthError as error:
                    refusals.append(error)
        for method in self:
            if any(one.name == target.lower() for one in method.targets()):
                raise UnsupportedModel(
                    f"{method.title} is made of a folder with config.json and safetensors, and "
                    f"{source.name} is none.",
                    "Take the model's folder in F16, BF16 or F32.",
                    path=str(source),
                )
        if refusals:
            raise refusals[0]
        raise UnsupportedModel(
            f"{source.name} is nothing that this version can quantize.",
            "Take the model's GGUF file in F16, BF16 or F32, or its folder with config.json and "
            "safetensors.",
            path=str(source),
        )

    def named_or_making(self, name: str, source: Path) -> tuple[Method, str]:
        """The method and type that `name` stands for: a method, which makes its first type;
        METHOD:TYPE; or a type that some method makes of `source`.

        Raises:
            UnknownMethod, UnsupportedModel: as `named` and `making`.
            HearthError: the method makes no such type.
        """
        method, _, target = name.partition(":")
        if target:
            found = self.named(method)
            return found, found.target_named(target, source)
        if name in self._methods:
            return self._methods[name], self._methods[name].targets()[0].name
        return self.making(name, source)


def methods(runner: Runner | None = None) -> Methods:
    """The methods of this version.

    Args:
        runner: runs models for methods that look at activations; without one those are left out.
    """
    from hearth.quant.folders.methods import folder_methods
    from hearth.quant.gguf.quantize_method import GgufMethod

    found = Methods()
    found.register(GgufMethod())
    for one in folder_methods(runner):
        found.register(one)
    return found
