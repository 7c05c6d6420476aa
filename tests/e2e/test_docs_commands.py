"""Every block of shell commands and of Python in README.md and docs/ runs as it is printed, or has
a comment before it with the reason why it is not run: `<!-- not run: GPU -->`.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from source_tree import ROOT

REASONS = ("GPU", "Hub", "other system", "Docker", "over 60 s")
MOST_MARKED = 0.2
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:[A-Z_]+=\S* )*(?:hearth|make|curl|pip|uv|python|printf|docker|export)\b")
SETTINGS = """
host_idle_s = 0
[aliases]
smollm2 = "guide"
MODEL = "guide"
qwen3 = "guide"
[remotes."cluster"]
url = "http://127.0.0.1:{port}/v1"
model = "guide"
"""
HEARTH = """#!/bin/bash
# `hearth`, but `hearth serve` goes to the background once it listens.
[ "$1" = serve ] || exec "{python}" -m hearth.app.cli.main "$@"
[ -s servers ] && export HEARTH_SERVE_PORT=0
"{python}" -m hearth.app.cli.main "$@" > serve.log 2>&1 &
echo $! >> servers
for _ in $(seq 300); do
    grep -q "http" serve.log && exit 0
    kill -0 $! || {{ cat serve.log >&2; exit 1; }}
    sleep 0.1
done
exit 1
"""


@dataclass(frozen=True)
class Block:
    """One fenced block; `reason` is empty if it is to be run."""

    page: Path
    line: int
    language: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> Iterator[Block]:
    fence = re.compile(r"(?:<!-- not run: (.+?) -->\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in fence.finditer(text):
            line = text.count("\n", 0, found.start(2)) + 1
            yield Block(page, line, found[2], found[3], found[1] or "")


BLOCKS = list(blocks())
RUN = [block for block in BLOCKS if block.language in ("sh", "python")]


def test_commands_are_fenced_as_sh_and_marks_have_a_known_reason() -> None:
    unfenced = []
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        unfenced += re.findall(rf"^    {COMMAND.pattern}.*$", prose, re.M)
    assert unfenced == []
    assert [str(b) for b in BLOCKS if b.language != "sh" and COMMAND.match(b.text)] == []
    assert [str(b) for b in RUN if b.reason and not b.reason.startswith(REASONS)] == []


def test_few_blocks_are_not_run() -> None:
    marked = [str(block) for block in RUN if block.reason]
    assert len(marked) <= MOST_MARKED * len(RUN), marked


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A home and working folder for the commands, short enough for a socket's path."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = Path(tempfile.mkdtemp(prefix="hearth-"))
    (home / "bin").mkdir()
    (home / "port").write_text(str(port))
    program = home / "bin" / "hearth"
    program.write_text(HEARTH.format(python=sys.executable))
    program.chmod(0o755)
    (home / ".config" / "hearth").mkdir(parents=True)
    (home / ".config" / "hearth" / "settings.toml").write_text(SETTINGS.format(port=port))
    for name in ("model.gguf", "model-bf16.gguf"):
        shutil.copy(ROOT / "assets" / "guide" / "guide.f16.gguf", home / name)
    yield home
    subprocess.run([program, "stop", "guide"], env=environment(home), capture_output=True)
    shutil.rmtree(home, ignore_errors=True)


def environment(home: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEARTH_", "XDG_"))
    }
    port = (home / "port").read_text()
    own = {
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "HEARTH_SERVE_PORT": port,
        "CLUSTER_KEY": "none",
        "HF_HUB_CACHE": str(home / "hub"),
    }
    return kept | own


def run(place: Path, text: str, *, needs_server: bool) -> None:
    """Runs a script of bash in `place`."""
    script = "hearth serve guide\n" * needs_server + text
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=place,
            env=environment(place),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )
    finally:
        stop_servers(place)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def adapted(text: str, place: Path) -> str:
    """`text` with addresses of this machine."""
    port = (place / "port").read_text()
    text = text.replace("4242", port).replace("mybox", "127.0.0.1")
    return text.replace("10.0.0.5:8000", f"127.0.0.1:{port}")


linux = pytest.mark.skipif(sys.platform != "linux", reason="the paths are those of Linux")


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [block for block in RUN if block.language == "sh" and not block.reason], ids=str
)
def test_commands_run(block: Block, place: Path) -> None:
    text = adapted(block.text, place)
    port = (place / "port").read_text()
    run(place, text, needs_server=port in text and not text.startswith("hearth serve"))


@linux
@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({b.page for b in RUN if b.language == "python"}), ids=str)
def test_python_runs(page: Path, place: Path) -> None:
    """The blocks of a page in one program, but those whose imports only `make clients` installs."""
    found = [block for block in RUN if block.page == page and block.language == "python"]
    texts = [
        adapted(block.text, place)
        for block in found
        if not block.reason and all(map(find_spec, imported(block.text)))
    ]
    program = "\n".join(texts)
    run(
        place,
        f"{sys.executable} - <<'END'\n{program}\nEND",
        needs_server=(place / "port").read_text() in program,
    )


def imported(text: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


def stop_servers(place: Path) -> None:
    servers = place / "servers"
    if servers.exists():
        for pid in servers.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        servers.unlink()
