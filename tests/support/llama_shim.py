"""Stand-ins for a broken llama_cpp: packages of that name that go first on PYTHONPATH."""

from __future__ import annotations

from pathlib import Path

_WRAPPER = """
import importlib.util, pathlib, sys
_here = pathlib.Path(__file__).parent
_real = next(
    folder / "llama_cpp"
    for folder in map(pathlib.Path, sys.path)
    if (folder / "llama_cpp" / "lib").is_dir()
)
__path__ = [str(_here), str(_real)]
"""

_CRASHING = """
import importlib.util, os, pathlib, signal, sys
_real = pathlib.Path(sys.modules["llama_cpp"].__path__[1]) / "llama_cpp.py"
_spec = importlib.util.spec_from_file_location("llama_cpp._real", _real)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
globals().update(vars(_module))
_dangerous = set()

def llama_model_load_from_file(path, params):
    model = _module.llama_model_load_from_file(path, params)
    _dangerous.discard(model)  # the address of a model that was freed
    if (params.use_extra_bufts or ALWAYS) and _module.llama_model_ftype(model) not in (0, 1, 1024):
        _dangerous.add(model)
    return model

def llama_decode(context, batch):
    if _module.llama_get_model(context) in _dangerous:
        FAIL
    return _module.llama_decode(context, batch)
"""

SEGFAULT = "os.kill(os.getpid(), signal.SIGSEGV)"
WRONG = "return (batch.token.__setitem__(0, 5), _module.llama_decode(context, batch))[1]"


def crashing(folder: Path, *, how: str = SEGFAULT, always: bool = False) -> Path:
    """A llama_cpp whose quantized models fail in llama_decode: where weights may be repacked, or
    `always`."""
    package = folder / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_WRAPPER)
    (package / "llama_cpp.py").write_text(
        _CRASHING.replace("ALWAYS", str(always)).replace("FAIL", how)
    )
    return folder


def unloadable(folder: Path) -> Path:
    """A llama_cpp whose shared library does not load."""
    package = folder / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "llama_cpp.py").write_text(
        'raise RuntimeError("Failed to load shared library: undefined symbol: llama_x")'
    )
    return folder
