"""Small files that are replaced as a whole: settings, self-test results, measurements."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any


def replace_file(file: Path, text: str) -> None:
    """Replace the content of `file` (or the target of the link `file`) with `text`. After a crash
    it is complete, either old or new. A new file is private to its owner. The folder must exist.
    """
    target = Path(os.path.realpath(file))
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as new:
            new.write(text)
            new.flush()
            os.fsync(handle)
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(target, name)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def write_json(file: Path, document: Any) -> None:
    """Replace the content of `file` with `document`, see `replace_file`."""
    replace_file(file, json.dumps(document, indent=1))
