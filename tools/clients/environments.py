"""The environment of each client: a virtual environment, or a folder with node_modules."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

from catalog import Client


class Environment:
    """One client's packages in `folder`."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        self.folder = folder

    @property
    def bin(self) -> Path:
        """Folder of the environment's programs."""
        if self._client.registry == "npm":
            return self.folder / "node_modules" / ".bin"
        return self.folder / ("Scripts" if sys.platform == "win32" else "bin")

    def install(self, *, upgrade: bool) -> None:
        """Install missing packages.

        Args:
            upgrade: also replace packages that are older than the registry's newest version.

        Raises:
            subprocess.CalledProcessError: pip or npm failed; its output is in `stderr`.
        """
        if self._version() and not upgrade:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        packages = self._client.packages
        if self._client.registry == "npm":
            self.folder.joinpath("package.json").write_text('{"private": true}\n')
            latest = [f"{package}@latest" for package in packages]
            _run("npm", "install", "--no-audit", "--no-fund", *latest, folder=self.folder)
        else:
            venv.create(self.folder, with_pip=True)
            pip = (str(self.bin / "python"), "-m", "pip", "--disable-pip-version-check")
            _run(*pip, "install", "-q", "--upgrade", *packages, folder=self.folder)

    def version(self) -> str:
        """Version of the client's first package.

        Raises:
            LookupError: it is not installed.
        """
        version = self._version()
        if not version:
            raise LookupError(f"{self._client.name} is not installed in {self.folder}.")
        return version

    def _version(self) -> str:
        package = self._client.packages[0].partition("[")[0]
        if self._client.registry == "npm":
            described = self.folder / "node_modules" / package / "package.json"
            return json.loads(described.read_text())["version"] if described.exists() else ""
        read = f"from importlib.metadata import version; print(version({package!r}))"
        try:
            command = [str(self.bin / "python"), "-c", read]
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            return ""
        return done.stdout.strip()


def _run(*command: str, folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
