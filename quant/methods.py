"""The registry of quantization methods, which share one small interface. The menu and the command
offer the methods that are registered here.

A new method is a class with the members of `Method`. Once `methods` registers it, it is offered
with its name, its types and its options.
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
"""Called with the bytes of the source packed so far, the total to pack, and the current tensor."""
OnNote = Callable[[str], None]
"""Called with a sentence about an earlier attempt: that it is resumed, or why it cannot be."""
Check = Callable[[], None]
"""Called at least once a second; raises to stop the work."""


class UnknownMethod(HearthError):
    """There is no method of that name, or none that makes the requested type."""

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
    """A parameter of a method besides source, target and type."""

    name: str
    kind: Literal["file", "texts", "flag", "number", "choice"]
    """A path, a list of texts, a boolean (false by default), a whole number, or one of
    `choices`."""
    help: str
    choices: tuple[str, ...] = ()
    """The values of a choice; for a path, words that may be given instead of it."""
    least: int | None = None
    """Lower limit of a number."""
    are_flags: bool = False
    """Each of `choices` is a separate flag on a command line."""

    def check(self, value: Any) -> None:
        """Raises `BadRecipe` for an invalid value."""
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
    """A JSON file next to it: source with its hash, recipe, versions, sizes."""
    size_bytes: int
    sha256: str
    facts: dict[str, Any]
    """Contents of the manifest."""


class Plan(Protocol):
    """The result to be made, before anything is written."""

    @property
    def size_bytes(self) -> int:
        """Exact size of the result."""
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
    """Arguments of `Method.run`."""

    threads: int
    replace: bool
    """Whether an existing file or folder with the name of the result is replaced."""
    on_progress: OnProgress
    on_note: OnNote
    check: Check


class Method(Protocol):
    """One way to quantize."""

    name: str
    """Identifier for programs, such as "gguf"."""
    title: str
    """Name for users."""
    about: str
    suffix: str
    """Suffix of the files it makes, such as ".gguf"; empty if it makes folders."""
    options: tuple[Option, ...]

    def targets(self) -> list[Target]:
        """The types it makes, from the most bits to the fewest."""
        ...

    def target_named(self, name: str, source: Path) -> str:
        """The canonical name of the type that the user called `name`, for `source`. Raises
        `BadRecipe` if there is no such type, and a `HearthError` if the source has to be read to
        find out and cannot be.
        """
        ...

    def takes(self, source: Path) -> bool:
        """Whether it can read such a source, judged by its name and first bytes."""
        ...

    def plan(self, source: Path, target: str, options: Mapping[str, Any]) -> Plan:
        """Plan quantizing `source` to the type `target`. Raises a `HearthError` with the reason if
        that is impossible.
        """
        ...

    def run(self, plan: Plan, path: Path, **how: Unpack[Running]) -> Quantized:
        """Make `path` according to `plan`, which must be a plan of this method."""
        ...


def given_options(method: Method, options: Mapping[str, Any]) -> dict[str, Any]:
    """The `options` that were given, that is, which are not None, false or empty.

    Raises:
        UnknownOption: `method` has no option of that name.
        BadRecipe: an option has an invalid value.
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
    """Options written as single words: "group=64", the name of a flag, or a choice that only one
    option has, such as "asym".

    Raises:
        UnknownOption: `method` has no such option, or the option no such value.
    """
    options: dict[str, Any] = {}
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
        values = {
            "flag": True,
            "number": int(value) if is_number else None,
            "texts": [*options.get(option.name, ()), value],
        }
        options[option.name] = values.get(option.kind, value)
    return options


class Methods:
    """Methods by name, in the order they were registered."""

    def __init__(self) -> None:
        self._methods: dict[str, Method] = {}

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods.values())

    def register(self, method: Method) -> None:
        """Add `method`. Raises `ValueError` if its name is taken."""
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
            HearthError: none makes such a type; this is the error of the first method that takes
                the source.
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
        """The method and type that `name` stands for: a method (with its first type), METHOD:TYPE,
        or a type that some method makes of `source`.

        Raises:
            UnknownMethod, UnsupportedModel: as in `named` and `making`.
            HearthError: the method makes no such type.
        """
        method, _, target = name.partition(":")
        if target:
            named_method = self.named(method)
            return named_method, named_method.target_named(target, source)
        if name in self._methods:
            return self._methods[name], self._methods[name].targets()[0].name
        return self.making(name, source)


def methods(runner: Runner | None = None) -> Methods:
    """The methods of this version.

    Args:
        runner: runs models for methods that need activations; without it they are left out.
    """
    from hearth.quant.folders.methods import folder_methods
    from hearth.quant.gguf.quantize_method import GgufMethod

    registry = Methods()
    registry.register(GgufMethod())
    for method in folder_methods(runner):
        registry.register(method)
    return registry
