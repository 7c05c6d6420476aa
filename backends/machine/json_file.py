"""Small JSON documents that Hearth keeps: self-test results, measurements, tuned settings."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_json(path: Path, document: Any) -> None:
    """Replace the file at `path` by `document` atomically: after a crash the file is either the old
    one or the new one, complete. The folder must exist.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(handle)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
