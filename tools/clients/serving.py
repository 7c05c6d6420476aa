"""`hearth serve` in its own home, with the clients' models in its library."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hearth.app.paths import find_paths
from models import LONG_CONTEXT

_END_TIMEOUT_S = 60


@contextmanager
def served(
    models: Mapping[str, Path], default: str, long: frozenset[str], log: Path
) -> Iterator[str]:
    """Yield the address, without a path, of a server; the server and its host are stopped at exit.

    Args:
        models: GGUF files, by their names in requests.
        default: the model for requests that name none.
        log: file that the server's own log is copied to.
        long: names of models that are loaded with a context of `LONG_CONTEXT`.

    Raises:
        RuntimeError: the server did not start.
    """
    with tempfile.TemporaryDirectory(prefix="hearth-") as home:
        paths = find_paths({"HEARTH_HOME": home})
        paths.models.mkdir(parents=True)
        for name, path in models.items():
            # Hard links, because a client may delete a model; copies across file systems.
            _link(path, paths.models / f"{name}.gguf")
        paths.settings_file.parent.mkdir(parents=True, exist_ok=True)
        paths.settings_file.write_text(
            "".join(f'[models."{name}"]\ncontext = {LONG_CONTEXT}\n' for name in sorted(long))
        )
        environ = {**os.environ, "HEARTH_HOME": home}
        environ.pop("HEARTH_API_KEY", None)
        hearth = [sys.executable, "-m", "hearth.app.cli.main"]
        with tempfile.TemporaryFile("w+") as narration:
            process = subprocess.Popen(
                [*hearth, "serve", default, "--port", "0"],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=narration,
                text=True,
            )
            assert process.stdout is not None
            try:
                url = process.stdout.readline().split()
                if not url:
                    process.wait()
                    narration.seek(0)
                    raise RuntimeError(f"hearth serve did not start: {narration.read()}")
                yield url[-1].removesuffix("/v1")
            finally:
                process.terminate()
                process.wait(_END_TIMEOUT_S)
                subprocess.run([*hearth, "stop"], env=environ, capture_output=True)
                written = paths.log / "server.log"
                log.write_bytes(written.read_bytes() if written.exists() else b"")


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError:
        link.write_bytes(path.read_bytes())
