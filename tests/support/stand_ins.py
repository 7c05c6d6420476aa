"""A child process of a few lines that replaces a worker."""

from __future__ import annotations

import textwrap

_LOADS = """
    import sys
    from dataclasses import fields
    from hearth.backends.contract.events import Started
    from hearth.backends.contract.loaded import EngineStats, ModelInfo
    from hearth.backends.contract.wire import Frame, Generate, GetEngineStats, encode
    from hearth.backends.contract.wire import read_frame

    def info():
        values = {"int": 1, "str": "x", "float": 0.0, "bool": False}
        named = {f.name: values[f.type] for f in fields(ModelInfo) if f.type in values}
        return ModelInfo(**named)

    def say(ident, body):
        sys.stdout.buffer.write(encode(Frame(ident, body)))
        sys.stdout.buffer.flush()

    say(read_frame(sys.stdin.buffer).id, info())
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        answer(frame)
"""
HANGS = "import sys; sys.stdin.read()"
"""Never loads; exits when its stdin ends."""
COMPUTES = """
    def answer(frame):
        if isinstance(frame.body, GetEngineStats):
            say(frame.id, EngineStats(running=1, live_tokens=10, steps=next(steps)))
    import itertools
    steps = itertools.count()
"""
"""Does a step whenever its statistics are requested, and answers nothing else."""
IS_MUTE = """
    def answer(frame):
        pass
"""


def answering(how: str) -> str:
    """The code of a worker that loads and then calls `answer(frame)`, which `how` defines."""
    return textwrap.dedent(how) + textwrap.dedent(_LOADS)
