"""Small documents that Hearth keeps: verdicts, measurements, what was tuned."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_json(path: Path, document: Any) -> None:
    """Write `document` in place of what `path` held: after a crash it is the old one or the new
    one, whole. The folder is there.
    """
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=path.name, delete=False
    ) as file:
        json.dump(document, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
