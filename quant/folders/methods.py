"""The methods that quantize a folder of plain safetensors into a folder of packed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Unpack

from hearth.quant.checkpoints.scheme import NF4_BLOCKS, SHORTEST_GROUP, Layout
from hearth.quant.convert.folder import folder_of
from hearth.quant.errors import UnsupportedModel
from hearth.quant.folders.calibrated import OpenModel
from hearth.quant.folders.plan import Calibration, FolderPlan, Outside, plan
from hearth.quant.folders.storage import FP8_BLOCK, Kind, Scope, Storage
from hearth.quant.gguf.errors import BadRecipe
from hearth.quant.methods import (
    CALIBRATION,
    Option,
    Plan,
    Quantized,
    Running,
    Target,
    given_options,
)

ROW: Final = -1
MATRIX: Final = 0
"""Values of the option "group" for one scale per row (`ROW`) or for the whole matrix (`MATRIX`)."""
FORMATS: Final[dict[str, Layout]] = {"compressed-tensors": "packed", "gptq": "gptq", "awq": "awq"}
"""Values of the option "format"; "compressed-tensors" has more layouts than this."""
_SAMPLES: Final = 64
_TOKENS: Final = 512
_GROUP: Final = Option(
    "group",
    "number",
    "Inputs that share a scale; -1: all of a row, 0: the whole matrix. Of fp8, 128 are blocks of "
    "128 × 128.",
    least=ROW,
)
_BITS: Final = Option("bits", "number", "4 (default), 6 or 8.", least=1)
_SYMMETRY: Final = Option(
    "symmetry",
    "choice",
    "Groups without (sym) or with (asym) zero points.",
    choices=("sym", "asym"),
    are_flags=True,
)
_FORMAT: Final = Option(
    "format",
    "choice",
    "What the folder is for other programs; compressed-tensors by default.",
    choices=tuple(FORMATS),
)
_OUTSIDE: Final = (
    Option(
        "head",
        "choice",
        "Bits of the output matrix, or of the embedding used as one; by default it is copied.",
        choices=("8", "6"),
    ),
    Option(
        "embedding", "choice", "Bits of the embedding; by default it is copied.", choices=("8", "6")
    ),
)
_E5M2: Final = Option(
    "e5m2",
    "flag",
    "Two bits of fraction rather than three (E5M2): a wider range, and twice the error.",
)
_CALIBRATION: Final = (
    CALIBRATION,
    Option("samples", "number", f"Windows of that text ({_SAMPLES} by default).", least=2),
    Option("seq-len", "number", f"Tokens of a window ({_TOKENS} by default).", least=16),
)
FILE_MB: Final = Option(
    "file-mb",
    "number",
    "Megabytes of a safetensors file at most (5,000 by default); one matrix is never divided.",
    least=1,
)
_ORDER: Final = Option(
    "order",
    "choice",
    "Round the inputs that matter most first (act-order, the default), or in their own order.",
    choices=("act-order", "no-act-order"),
    are_flags=True,
)
_CLIP: Final = Option(
    "clip",
    "choice",
    "Narrow ranges where that loses less (clip, the default), or not.",
    choices=("clip", "no-clip"),
    are_flags=True,
)


@dataclass(frozen=True, slots=True)
class Runner:
    """What methods need that use activations."""

    open_model: OpenModel
    text: Path
    """The default calibration text."""


@dataclass(slots=True)
class FolderMethod:
    """A method that makes a folder."""

    name: str
    title: str
    about: str
    options: tuple[Option, ...]
    kind: Kind = "int"
    bits: int = 4
    group: int = 128
    is_symmetric: bool = True
    runner: Runner | None = field(default=None, repr=False)
    """None if the method uses no activations."""
    suffix: str = ""

    def targets(self) -> list[Target]:
        """The only type, which has the method's name."""
        return [Target(self.name, self.about)]

    def target_named(self, name: str, source: Path) -> str:
        """The method's name. Raises `BadRecipe` for any other name."""
        if name.lower() != self.name:
            raise BadRecipe(f'"{name}" is no type that {self.title} makes.', f"Say {self.name}.")
        return self.name

    def takes(self, source: Path) -> bool:
        """Whether `source` is a folder of a model in safetensors, or a file in one."""
        return folder_of(source) is not None

    def plan(self, source: Path, target: str, options: Mapping[str, Any]) -> Plan:
        """Raises the errors of `hearth.quant.folders.plan.plan`, `UnknownOption`,
        `UnsupportedModel` for sources that `takes` rejects, and `BadRecipe` for contradictory
        options.
        """
        given = given_options(self, options)
        folder = folder_of(source)
        if folder is None:
            raise UnsupportedModel(
                f"{source} is not a folder with config.json and safetensors.",
                "Put its files back, or name another folder.",
                path=str(source),
            )
        kinds: tuple[Outside, ...] = ("head", "embedding")
        outside = {kind: int(given[kind]) for kind in kinds if kind in given}
        if outside and given.get("format", "compressed-tensors") != "compressed-tensors":
            raise BadRecipe(
                f"A folder in the format of {given['format']} cannot say that embedding or output "
                "matrix are quantized.",
                "Leave out --head and --embedding, or --format.",
            )
        calibration = None
        if self.runner is not None:
            calibration = Calibration(
                Path(given.get("calibration") or self.runner.text),
                given.get("samples", _SAMPLES),
                given.get("seq-len", _TOKENS),
            )
        return plan(
            self.name,
            folder,
            self._storage(given),
            outside=outside,
            calibration=calibration,
            options=given,
            file_bytes=10**6 * given.get("file-mb", 5000),
        )

    def _storage(self, options: Mapping[str, Any]) -> Storage:
        bits = options.get("bits", self.bits)
        default = self.group if bits < 8 or self.bits == 8 else ROW
        group = options.get("group", default)
        scope: Scope = "row" if group == ROW else "tensor" if group == MATRIX else "group"
        symmetry = options.get("symmetry", "sym" if self.is_symmetric else "asym")
        kind = options.get("format", "compressed-tensors")
        if self.kind == "fp8":
            float8: Kind = "e5m2" if options.get("e5m2") else "fp8"
            if scope == "group":
                if group != FP8_BLOCK:
                    raise BadRecipe(
                        f"FP8 has blocks of 128 × 128, not groups of {group}.",
                        "Choose --group 128, -1 or 0.",
                    )
                scope = "block"
            return Storage("scaled", float8, 8, scope, group if scope == "block" else None)
        is_nf4 = self.kind == "nf4"
        if scope == "group" and (group not in NF4_BLOCKS if is_nf4 else group % SHORTEST_GROUP):
            sizes = ", ".join(map(str, NF4_BLOCKS)) if is_nf4 else f"a multiple of {SHORTEST_GROUP}"
            raise BadRecipe(f"{self.title} has no groups of {group}.", f"Choose --group {sizes}.")
        if scope == "tensor" and self.name == "hqq":
            raise BadRecipe(
                "HQQ fits scales of rows and groups, not of a whole matrix.",
                "Choose another --group, or int4.",
            )
        layout: Layout = "nf4" if is_nf4 else FORMATS[kind]
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

    def run(self, plan: Plan, path: Path, **how: Unpack[Running]) -> Quantized:
        """See `write`. Raises `TypeError` if `plan` is of another method."""
        from hearth.quant.folders.rounders import rounding
        from hearth.quant.folders.write import write

        if not isinstance(plan, FolderPlan) or plan.method != self.name:
            raise TypeError(f"a plan of {type(plan).__name__} is not one of {self.title}")
        return write(plan, path, rounding(plan, self.runner, how["on_note"]), **how)


def folder_methods(runner: Runner | None) -> list[FolderMethod]:
    """All methods, 8 bits before 4; without a runner only those that need no activations."""
    rounds = (_BITS, _GROUP, _SYMMETRY, _FORMAT, *_OUTSIDE, FILE_MB)
    data_free = [
        FolderMethod(
            "int8",
            "INT8",
            "8 bits, next to no loss: for processors and GPUs.",
            (_GROUP, _SYMMETRY, *_OUTSIDE, FILE_MB),
            bits=8,
            group=ROW,
        ),
        FolderMethod(
            "fp8",
            "FP8",
            "8-bit floats, very little loss: for GPUs that compute with them.",
            (_GROUP, _E5M2, *_OUTSIDE, FILE_MB),
            kind="fp8",
            bits=8,
            group=ROW,
        ),
        FolderMethod(
            "nf4",
            "NF4",
            "4-bit floats as of bitsandbytes: for training adapters on a GPU.",
            (_GROUP, FILE_MB),
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
        return data_free
    return [
        *data_free,
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
