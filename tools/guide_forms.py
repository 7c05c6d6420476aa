"""Derives the other forms of the bundled models from their committed f16 files, with llama.cpp's
own quantizer: `make forms` writes them to `build/guide`, tests to a temporary folder.
"""

from __future__ import annotations

import argparse
import ctypes
from pathlib import Path

from hearth.backends.llamacpp.lib import load_library

FORMS = ("F32", "Q8_0", "Q6_K", "Q4_K_M", "Q4_0")
MODELS = ("guide", "guide-draft")
ASSETS = Path(__file__).resolve().parent.parent / "assets" / "guide"


def guide_path(name: str = "guide") -> Path:
    """The committed f16 file of a bundled model."""
    return ASSETS / f"{name}.f16.gguf"


def derive(form: str, folder: Path, name: str = "guide") -> Path:
    """The file of model `name` in `form` (one of `FORMS`), written to `folder` unless it exists.

    Raises:
        RuntimeError: llama.cpp cannot write that form of this model.
    """
    path = folder / f"{name}.{form}.gguf"
    if path.exists():
        return path
    library = load_library()
    api = library.api
    library.log.clear()
    params = api.llama_model_quantize_default_params()
    params.ftype = getattr(api, f"LLAMA_FTYPE_{'ALL_F32' if form == 'F32' else f'MOSTLY_{form}'}")
    part = path.with_suffix(".part")
    source = str(guide_path(name)).encode()
    code = api.llama_model_quantize(source, str(part).encode(), ctypes.byref(params))
    if code != 0:
        part.unlink(missing_ok=True)
        raise RuntimeError(f"llama.cpp could not write {form} of {name}: {library.log.said()}")
    return part.rename(path)


def main() -> None:
    """Write all forms of guide, and the draft's f32 (its rows are too short for K-quants)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/guide"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for form in FORMS:
        path = derive(form, folder)
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    print(derive("F32", folder, "guide-draft"))


if __name__ == "__main__":
    main()
