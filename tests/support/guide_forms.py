"""The bundled model in other forms, derived from its f16 file by llama.cpp's own quantizer."""

from __future__ import annotations

import ctypes
from pathlib import Path

FORMS = ("F32", "F16", "Q8_0", "Q4_0", "Q4_K_M", "Q6_K")


def guide_path(name: str = "guide") -> Path:
    """The committed f16 file."""
    return Path(__file__).parents[2] / "assets" / "guide" / f"{name}.f16.gguf"


def derive(form: str, folder: Path, name: str = "guide") -> Path:
    """`name` as `form`, one of `FORMS`; made once a folder."""
    path = folder / f"{name}-{form}.gguf"
    if path.exists():
        return path
    import llama_cpp.llama_cpp as api

    api.llama_backend_init()
    params = api.llama_model_quantize_default_params()
    types = {"F32": "ALL_F32"}
    params.ftype = getattr(api, f"LLAMA_FTYPE_{types.get(form, f'MOSTLY_{form}')}")
    params.nthread = 1
    code = api.llama_model_quantize(
        str(guide_path(name)).encode(), str(path).encode(), ctypes.byref(params)
    )
    assert code == 0, f"llama.cpp could not write {form}"
    return path
