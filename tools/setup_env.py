"""Creates `.venv` for the Makefile: Hearth, its tested dependencies and a llama.cpp that works on
this processor.

Run by the system's Python (3.11 or newer) with nothing installed. Reports progress on stderr; the
output of pip goes to `.venv/setup.log`, whose end is shown when a step fails.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036, as an older Python may run this
    sys.exit(
        f"Hearth needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}.\n"
        "Name a newer one: make PYTHON=python3.12 chat"
    )

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import toolchain
import torch_source

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernels" / "cpu"))
import build_library as cpu_kernels

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".ready"
LOG = VENV / "setup.log"
CONSTRAINTS = ROOT / "constraints.txt"
INSTALLED_RECIPE = VENV / ".llama-recipe"
MODEL_TRIED = VENV / ".smollm2"
PACKAGE_MODEL = ROOT / "app" / "library" / "package_model.py"
EXTRAS = ".[test,check]"
HEARTBEAT_S = 60
MODEL_WAIT_S = 5


class SetupFailed(Exception):
    """A step failed; the message is shown to the user."""


def say(text: str) -> None:
    """Print narration to stderr: stdout belongs to the program that runs after the set-up."""
    print(f"[hearth] {text}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print what starts, and its duration if that is long enough."""
    say(what)
    start = time.monotonic()
    yield
    took_s = time.monotonic() - start
    if took_s >= 2:
        say(f"  done in {took_s:.0f} s")


def logged(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a command with its output in the log. Raises `SetupFailed` with the end of the log."""
    start = time.monotonic()
    with LOG.open("ab") as log:
        log.write(f"\n$ {' '.join(command)}\n".encode())
        log.flush()
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        while True:
            try:
                code = child.wait(timeout=HEARTBEAT_S)
                break
            except subprocess.TimeoutExpired:
                say(f"  still working, {time.monotonic() - start:.0f} s")
            except BaseException:
                child.terminate()
                raise
    if code != 0:
        tail = LOG.read_text(errors="replace").splitlines()[-40:]
        raise SetupFailed(
            "\n".join([*tail, "", f"This failed: {' '.join(command)}", f"The whole log: {LOG}"])
        )


def venv_python() -> str:
    return str(VENV / "bin" / "python")


def pip(*arguments: str) -> list[str]:
    return [venv_python(), "-m", "pip", "--disable-pip-version-check", *arguments]


def make_venv() -> None:
    """Create an environment, unless the existing one runs and was created in this very folder
    (environments cannot be moved).
    """
    home = VENV / ".made-in"
    made_here = home.exists() and home.read_text() == str(ROOT)
    if made_here and toolchain.ask([venv_python(), "-c", "import pip"]) is not None:
        return
    shutil.rmtree(VENV, ignore_errors=True)
    done = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True)
    if done.returncode != 0:
        hint = "On Debian and Ubuntu: sudo apt install python3-venv"
        raise SetupFailed(
            f"{done.stdout}{done.stderr}\nPython could not make a virtual environment. {hint}"
        )
    home.write_text(str(ROOT))


def pinned(name: str) -> str:
    """The tested version of a package, from constraints.txt."""
    for line in CONSTRAINTS.read_text().splitlines():
        if line.lower().startswith(f"{name.lower()}=="):
            return line.split("==")[1].strip()
    raise SetupFailed(f"{CONSTRAINTS.name} has no line for {name}.")


def installed_version(name: str) -> str | None:
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    output = toolchain.ask([venv_python(), "-c", code, name])
    return output.strip() if output else None


def install_torch() -> None:
    """Install torch in its tested version, without CUDA packages if there is no NVIDIA card."""
    wanted = pinned("torch")
    if (installed_version("torch") or "").split("+")[0] == wanted:
        return
    system = toolchain.read_machine().system
    nvidia = torch_source.has_nvidia_card()
    needs_cpu_index = system == "Linux" and not nvidia and not os.environ.get("HEARTH_TORCH_INDEX")
    source = torch_source.choose_source(
        system,
        os.environ,
        has_nvidia=nvidia,
        cpu_index_answers=needs_cpu_index and torch_source.cpu_index_answers(),
    )
    requirement = f"torch=={wanted}"
    if source.may_bring_cuda:
        dry = pip("install", "--quiet", "--dry-run", "--report", "-", "--no-deps", requirement)
        report = subprocess.run(
            dry, capture_output=True, text=True, stdin=subprocess.DEVNULL
        ).stdout
        candidate = torch_source.describe_candidate(torch_source.parse_report(report))
        say(f"pip's sources have {candidate}")
    with step(f"installing torch {wanted}, {source.reason}"):
        logged(pip("install", *source.pip_arguments(), requirement))


def build_wheel(recipe: toolchain.Recipe, folder: Path) -> Path:
    """The wheel for `recipe`, built now or found in `folder`, Hearth's own cache.

    pip's wheel cache is not used: it is keyed by the source of a wheel but not by compiler flags.
    """
    wheels = sorted(folder.glob("*.whl"))
    if wheels:
        say(f"llama.cpp: using the build made here before ({recipe.reason})")
        return wheels[0]
    say(f"llama.cpp: building with {recipe.reason}")
    requirement = f"llama-cpp-python=={recipe.package_version}"
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    arguments = (
        "--no-deps",
        "--no-cache-dir",
        "--no-binary",
        "llama-cpp-python",
        "--wheel-dir",
        str(part),
    )
    try:
        with step("  compiling; some minutes, once (about 4 on two fast cores)"):
            logged(pip("wheel", *arguments, requirement), recipe.environment(os.environ))
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return next(folder.glob("*.whl"))


def install_llama(recipe: toolchain.Recipe, machine: toolchain.Machine) -> Path:
    """Build or find the wheel of `recipe` and install it; returns the folder that contains it."""
    key = recipe.key(machine, os.environ)
    folder = toolchain.cache_folder(os.environ, machine.system) / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    same_build = INSTALLED_RECIPE.exists() and INSTALLED_RECIPE.read_text() == key
    if not (same_build and installed_version("llama-cpp-python") == recipe.package_version):
        wheel = build_wheel(recipe, folder)
        logged(pip("install", "--no-deps", "--force-reinstall", str(wheel)))
        INSTALLED_RECIPE.write_text(key)
    return folder


def find_fault() -> str | None:
    """The fault that Hearth's self-test finds in the installed llama.cpp, on one line; None if it
    passes.

    The test survives a crash of the library. Raises `SetupFailed` if it cannot run at all.
    """
    command = [venv_python(), "-m", "hearth.backends.llamacpp.selftest", "--verify"]
    done = subprocess.run(
        command, cwd=VENV, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    with LOG.open("a") as log:
        log.write(f"\n$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.returncode == 0:
        return None
    verdict = done.stdout.strip()
    if done.returncode != 1 or not verdict:
        raise SetupFailed(f"{done.stderr}\nThe self-test of llama.cpp could not run.")
    return verdict.splitlines()[-1]


def note_result(folder: Path, recipe: toolchain.Recipe, *, passed: bool) -> None:
    """Record next to the wheel what it is and whether it passed, so that a bad one is not tried
    twice.
    """
    if folder.exists():
        result = {"recipe": recipe.reason, "flags": recipe.flags, "self_test_passed": passed}
        (folder / "recipe.json").write_text(json.dumps(result, indent=2) + "\n")


def known_bad(folder: Path) -> bool:
    note = folder / "recipe.json"
    return note.exists() and json.loads(note.read_text()).get("self_test_passed") is False


def verify_llama(recipe: toolchain.Recipe, machine: toolchain.Machine, folder: Path) -> None:
    """Run the self-test; if it fails, build the library again the safe way, if there is one."""
    with step("checking llama.cpp on a quantised file"):
        fault = find_fault()
    note_result(folder, recipe, passed=fault is None)
    safer = toolchain.safe_recipe(recipe, machine) if fault else None
    if safer:
        say(f"  {fault} Building again without the part that fails.")
        folder = install_llama(safer, machine)
        fault = find_fault()
        note_result(folder, safer, passed=fault is None)
    if fault:
        say(f"  {fault} Hearth will run llama.cpp in a slower mode; see: hearth doctor")


def build_kernels() -> None:
    """Build the native runner's CPU kernels. Without them it computes with torch alone."""
    if cpu_kernels.is_current():
        return
    try:
        with step("compiling the native runner's kernels"):
            cpu_kernels.build()
    except cpu_kernels.NoCompiler as error:
        say(f"  {error}\n  Packed models run on torch alone, which is slower.")


def first_recipe(machine: toolchain.Machine) -> toolchain.Recipe:
    """The recipe to start with: the fastest one, or the safe one if the fastest failed here
    before.
    """
    recipe = toolchain.choose_recipe(pinned("llama-cpp-python"), machine, os.environ)
    folder = toolchain.cache_folder(os.environ, machine.system) / recipe.key(machine, os.environ)
    safer = toolchain.safe_recipe(recipe, machine) if known_bad(folder) else None
    return safer or recipe


@contextmanager
def model_download(wait_s: float) -> Iterator[None]:
    """Download SmolLM2 while the block runs, and for at most `wait_s` after it. A failure is only
    reported: the set-up continues without the model, and `hearth pull` completes the download.
    """
    child = subprocess.Popen(
        [sys.executable, "-I", str(PACKAGE_MODEL)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield
        reason = ""
        try:
            _, output = child.communicate(timeout=wait_s)
            if child.returncode != 0:
                reason = (output.strip().splitlines() or ["it failed."])[-1]
        except subprocess.TimeoutExpired:
            reason = "the download takes too long."
    finally:
        if child.poll() is None:
            child.terminate()
            child.communicate()
    MODEL_TRIED.touch()
    if reason:
        say(f"SmolLM2 is not installed: {reason} To get it later: .venv/bin/hearth pull smollm2")
    else:
        say("SmolLM2 is in the model library")


def set_up() -> None:
    start = time.monotonic()
    version = ".".join(map(str, sys.version_info[:3]))
    say(f"setting up .venv with Python {version} (once; {LOG.relative_to(ROOT)} has the details)")
    machine = toolchain.read_machine()
    recipe = first_recipe(machine)
    make_venv()
    LOG.write_bytes(b"")
    logged(pip("install", "-c", str(CONSTRAINTS), "setuptools"))
    install_torch()
    folder = install_llama(recipe, machine)
    with step("installing Hearth and its other dependencies"):
        logged(pip("install", "-c", str(CONSTRAINTS), "--no-build-isolation", "-e", EXTRAS))
    verify_llama(recipe, machine, folder)
    build_kernels()
    STAMP.write_text(f"{ROOT}\n")
    say(f"ready after {time.monotonic() - start:.0f} s")


def main(arguments: list[str]) -> int:
    """Create `.venv`. With `--model`, SmolLM2 is downloaded meanwhile; with `--model-only`, nothing
    else is done.
    """
    if os.name == "nt":
        say("On Windows install with pip: see docs/install.md, section Windows.")
        return 1
    try:
        if "--model-only" in arguments:
            say("downloading SmolLM2, 93 MB (10 s at most)")
            with model_download(wait_s=2 * MODEL_WAIT_S):
                return 0
        with model_download(MODEL_WAIT_S) if "--model" in arguments else nullcontext():
            set_up()
    except (SetupFailed, toolchain.NoCompiler) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped; the next make goes on from here")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
