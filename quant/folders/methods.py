"""The methods that make a folder of quantized safetensors out of one of plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hearth.quant.checkpoints.scheme import Layout
from hearth.quant.convert.folder import folder_of
from hearth.quant.folders.calibrated import OpenModel
from hearth.quant.folders.plan import Calibration, FolderPlan, plan
from hearth.quant.folders.storage import FP8_BLOCK, Kind, Scope, Storage
from hearth.quant.gguf.errors import BadRecipe
from hearth.quant.methods import (
    Check,
    OnNote,
    OnProgress,
    Option,
    Plan,
    Quantized,
    Target,
    given_options,
)

ROW: Final = -1
MATRIX: Final = 0
"""Of the option "group": what shares a scale instead of a number of inputs."""
_FORMATS: Final[dict[str, Layout]] = {"gptq": "gptq", "awq": "awq"}
"""Of the option "format"; "compressed-tensors" has several layouts."""
_SAMPLES: Final = 64
_TOKENS: Final = 512
_GROUP: Final = Option(
    "group",
    "number",
    "Inputs that share a scale; -1: all of a row, 0: the whole matrix. Of fp8, 128 are blocks of "
    "128 × 128.",
)
_BITS: Final = Option("bits", "number", "4 (default) or 8.")
_SYMMETRY: Final = Option(
    "symmetry", "choice", "Whether groups have zero points.", choices=("sym", "asym")
)
_FORMAT: Final = Option(
    "format",
    "choice",
    "What the folder is for other programs; compressed-tensors by default.",
    choices=("compressed-tensors", *_FORMATS),
)
_HEAD: Final = Option(
    "head", "flag", "Round the output matrix to 8 bits, too, or the embedding that is used as one."
)
_CALIBRATION: Final = (
    Option("calibration", "file", "A text like those that the model will see."),
    Option("samples", "number", f"Windows of that text ({_SAMPLES} by default)."),
    Option("seq-len", "number", f"Tokens of a window ({_TOKENS} by default)."),
)
_ORDER: Final = Option(
    "order",
    "choice",
    "Round the inputs that matter most first (act-order, the default), or in their own order.",
    choices=("act-order", "no-act-order"),
)
_CLIP: Final = Option(
    "clip",
    "choice",
    "Narrow ranges where that loses less (clip, the default), or not.",
    choices=("clip", "no-clip"),
)


@dataclass(frozen=True, slots=True)
class Runner:
    """What methods need that look at activations."""

    open_model: OpenModel
    text: Path
    """That is calibrated on by default."""


@dataclass(slots=True)
class FolderMethod:
    """One of them."""

    name: str
    title: str
    about: str
    options: tuple[Option, ...]
    kind: Kind = "int"
    bits: int = 4
    group: int = 128
    is_symmetric: bool = True
    runner: Runner | None = field(default=None, repr=False)
    """None: it looks at no activations."""
    suffix: str = ""

    def targets(self) -> list[Target]:
        """The one type, of the method's own name."""
        return [Target(self.name, self.about)]

    def target_named(self, name: str, source: Path) -> str:
        """Raises `BadRecipe`."""
        if name.lower() != self.name:
            raise BadRecipe(f'"{name}" is no type that {self.title} makes.', f"Say {self.name}.")
        return self.name

    def takes(self, source: Path) -> bool:
        """`source` is a folder of a model in safetensors, or a file in one."""
        return folder_of(source) is not None

    def plan(self, source: Path, target: str, options: Mapping[str, Any]) -> FolderPlan:
        """Raises as `hearth.quant.folders.plan.plan`, `UnknownOption`, and `BadRecipe` for options
        that contradict each other.
        """
        given = given_options(self, options)
        folder = folder_of(source)
        assert folder is not None, f"{source} is not taken"
        head = None
        if given.get("head"):
            head = Storage("packed", "int", 8, "row", None)
            if given.get("format", "compressed-tensors") != "compressed-tensors":
                raise BadRecipe(
                    f"A folder in the format of {given['format']} cannot say that the output "
                    "matrix is quantized.",
                    "Leave out --head or --format.",
                )
            if self.kind == "nf4":
                raise BadRecipe("A folder of NF4 has no INT8 matrices.", "Leave out --head.")
        calibration = None
        if self.runner is not None:
            calibration = Calibration(
                Path(given.get("calibration") or self.runner.text),
                _number(given, "samples", _SAMPLES, least=2),
                _number(given, "seq-len", _TOKENS, least=16),
            )
        return plan(
            self.name,
            folder,
            self._storage(given),
            head=head,
            calibration=calibration,
            options=given,
        )

    def _storage(self, options: Mapping[str, Any]) -> Storage:
        bits = _number(options, "bits", self.bits, least=1)
        default = self.group if bits < 8 or self.bits == 8 else ROW
        group = _number(options, "group", default, least=ROW)
        scope: Scope = "row" if group == ROW else "tensor" if group == MATRIX else "group"
        symmetry = options.get("symmetry", "sym" if self.is_symmetric else "asym")
        kind = options.get("format", "compressed-tensors")
        for name, value, choices in (
            ("symmetry", symmetry, ("sym", "asym")),
            ("format", kind, ("compressed-tensors", *_FORMATS)),
            ("order", options.get("order", "act-order"), _ORDER.choices),
            ("clip", options.get("clip", "clip"), _CLIP.choices),
        ):
            if value not in choices:
                raise BadRecipe(f"{name} is {value!r}.", f"Choose {' or '.join(choices)}.")
        if self.kind == "fp8":
            if scope == "group":
                if group != FP8_BLOCK:
                    raise BadRecipe(
                        f"FP8 has blocks of 128 × 128, not groups of {group}.",
                        "Choose --group 128, -1 or 0.",
                    )
                scope = "block"
            return Storage("scaled", "fp8", 8, scope, group if scope == "block" else None)
        layout: Layout = "nf4" if self.kind == "nf4" else _FORMATS.get(kind, "packed")
        if layout == "packed" and scope == "tensor":
            layout = "scaled"
        return Storage(
            layout,
            self.kind,
            bits,
            scope,
            group if scope == "group" else None,
            symmetry == "sym",
        )

    def run(
        self,
        plan: Plan,
        path: Path,
        *,
        threads: int,
        replace: bool,
        on_progress: OnProgress,
        on_note: OnNote,
        check: Check,
    ) -> Quantized:
        """See `write`. Raises `TypeError` for a plan of another method."""
        from hearth.quant.folders.rounders import rounding
        from hearth.quant.folders.write import write

        if not isinstance(plan, FolderPlan) or plan.method != self.name:
            raise TypeError(f"a plan of {type(plan).__name__} is not one of {self.title}")
        return write(
            plan,
            path,
            rounding(plan, self.runner, on_note),
            threads=threads,
            replace=replace,
            on_progress=on_progress,
            on_note=on_note,
            check=check,
        )


def _number(options: Mapping[str, Any], name: str, default: int, *, least: int) -> int:
    value = options.get(name, default)
    if not isinstance(value, int) or value < least:
        raise BadRecipe(f"{name} is {value!r}.", f"It must be a whole number from {least} on.")
    return value


def folder_methods(runner: Runner | None) -> list[FolderMethod]:
    """All of them, those that lose least first; without a runner those that need no activations."""
    rounds = (_BITS, _GROUP, _SYMMETRY, _FORMAT, _HEAD)
    found = [
        FolderMethod(
            "int8",
            "INT8",
            "8 bits, next to no loss: for processors and GPUs.",
            (_GROUP, _SYMMETRY, _HEAD),
            bits=8,
            group=ROW,
        ),
        FolderMethod(
            "fp8",
            "FP8",
            "8-bit floats, very little loss: for GPUs that compute with them.",
            (_GROUP, _HEAD),
            kind="fp8",
            bits=8,
            group=ROW,
        ),
        FolderMethod(
            "nf4",
            "NF4",
            "4-bit floats as of bitsandbytes: for training adapters on a GPU.",
            (_GROUP,),
            kind="nf4",
            group=64,
        ),
        FolderMethod("int4", "INT4", "4 bits, rounded to nearest: made in seconds.", rounds),
        FolderMethod(
            "hqq",
            "HQQ",
            "4 bits fitted without data: balanced, made in a minute.",
            rounds,
            is_symmetric=False,
        ),
    ]
    if runner is None:
        return found
    return [
        *found,
        FolderMethod(
            "gptq",
            "GPTQ",
            "4 bits fitted to activations: balanced, made in minutes to hours.",
            (*rounds, _ORDER, *_CALIBRATION),
            runner=runner,
        ),
        FolderMethod(
            "awq",
            "AWQ",
            "4 bits with scaled inputs and narrowed ranges: balanced, made in minutes to hours.",
            (*rounds, _CLIP, *_CALIBRATION),
            is_symmetric=False,
            runner=runner,
        ),
        FolderMethod(
            "best",
            "Best of all",
            "4 bits, of each matrix what loses least: keeps quality, takes longest.",
            (*rounds, *_CALIBRATION),
            is_symmetric=False,
            runner=runner,
        ),
    ]
