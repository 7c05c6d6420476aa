"""The checks of `hearth doctor`: the state of each part of the installation, and how to fix it."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any, Final, Literal

from hearth.app import machine
from hearth.app.host_link import HostLink
from hearth.app.library.cache_layout import hub_cache
from hearth.app.library.local import BUNDLED, Library, LocalModel, Origin
from hearth.app.paths import Paths
from hearth.app.settings import Settings
from hearth.backends.errors import HearthError, HostUnreachable
from hearth.backends.native.report import DeviceReport, torch_report
from hearth.backends.worker.choice import FAST, MEASURE, this_machine
from hearth.backends.worker.speeds import Speeds
from hearth.kernels.cuda.packings import FORCE, NO_GRAPHS, NOT_RUN
from hearth.quant.versions import installed_version

DISTRIBUTION = "hearth-llm"
_LOW_DISK_BYTES = 2 * 10**9
_OWNERS: Final[Mapping[Origin, str]] = {
    "huggingface": "It is in the Hugging Face cache, which other programs use too",
    "lmstudio": "It belongs to LM Studio",
    "ollama": "It belongs to Ollama",
    "llama.cpp": "It is in the cache of llama.cpp",
    "folder": "It is in a folder of the setting library_folders",
}
"""The programs whose models Hearth uses in place."""
_MARKS: Final = {"ok": " ", "warning": "!", "fault": "x"}
_WIDTH: Final = 16
_DEVICES: Final = {"cpu": "processor", "mps": "Apple GPU (MPS)"}
_MOVE_HOME = "Give yourself the right to write there, or set HEARTH_HOME to another folder."


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        subject: a stable name of what was checked.
        state: "ok"; "warning": works, but see `cure`; "fault": broken.
        text: what was found.
        cure: what to do about it; may be several lines of commands.
        data: the finding in machine-readable form.
    """

    subject: str
    state: Literal["ok", "warning", "fault"]
    text: str
    cure: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """The finding as text: a mark, the subject and what was found; the cure follows below."""
        cure = self.cure.splitlines() if self.state != "ok" else []
        first = f"{_MARKS[self.state]} {self.subject:{_WIDTH}} {self.text}"
        return [first, *(f"{'':{_WIDTH + 3}}{line}" for line in cure)]


def examine(paths: Paths, settings: Settings | HearthError, library: Library) -> Iterator[Finding]:
    """Yield every finding as it is made; `settings` may be the error of reading them."""
    yield _python()
    yield from _packages()
    yield _machine()
    yield _compiler()
    yield _llamacpp(paths)
    yield from _torch()
    yield from _choices(paths, settings)
    yield from _folders(paths)
    yield _disk(paths)
    yield from _settings(settings)
    yield from _models(library)
    yield _host(paths)


def _python() -> Finding:
    text = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    )
    return Finding("python", "ok", text, data={"version": platform.python_version()})


def _packages() -> Iterator[Finding]:
    versions: dict[str, str | None] = {}
    for requirement in metadata.requires(DISTRIBUTION) or ():
        if "extra ==" not in requirement:
            name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
            versions[name] = installed_version(name)
    installed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield Finding(
        "packages",
        "ok",
        f"{DISTRIBUTION} {installed_version(DISTRIBUTION)}; {installed}",
        data={"versions": versions},
    )
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        yield Finding(
            "missing packages",
            "warning",
            f"not installed: {', '.join(missing)}",
            f"What needs them does not work. pip install {' '.join(missing)}",
            {"missing": missing},
        )


def _machine() -> Finding:
    here = machine.this_machine()
    text = (
        f"{here.cpu}, {here.physical_cores} cores ({here.usable_cores} usable threads), "
        f"{' '.join(here.cpu_flags) or 'no flags known'}; memory "
        f"{here.memory_total_bytes / 10**9:.1f} GB, "
        f"{here.memory_available_bytes / 10**9:.1f} GB available"
    )
    return Finding("machine", "ok", text, data=asdict(here))


def _compiler() -> Finding:
    version = machine.compiler()
    if version:
        return Finding("compiler", "ok", version)
    return Finding(
        "compiler",
        "warning",
        "there is no C++ compiler",
        "Only building llama-cpp-python needs one: apt install g++, or xcode-select --install on "
        "macOS.",
    )


def _llamacpp(paths: Paths) -> Finding:
    """The cached result of the self-test, which runs in a child process since it may crash."""
    from hearth.backends.llamacpp import selftest

    try:
        verdict = selftest.verdict(paths.cache)
    except HearthError as error:
        return Finding("llama.cpp", "fault", error.message, error.hint, {"error": error.code})
    except OSError as error:
        return Finding("llama.cpp", "fault", f"the self-test left no result: {error}", _MOVE_HOME)
    version = installed_version("llama-cpp-python")
    data = asdict(verdict)
    slower = selftest.explain(verdict)
    if slower is None:
        text = f"llama-cpp-python {version} passed its self-test; {verdict.system_info}"
        return Finding("llama.cpp", "ok", text, data=data)
    if not verdict.is_final:
        cure = "Close programs that use much memory or processor time, and run the doctor again."
        return Finding("llama.cpp", "warning", slower, cure, data)
    text = f"{slower} In the self-test: {verdict.reason}. The build: {verdict.system_info}"
    return Finding("llama.cpp", "fault", text, selftest.cure(verdict.system_info), data)


def _torch() -> Iterator[Finding]:
    """What PyTorch can do here, as reported by a child process."""
    try:
        report = torch_report()
    except HearthError as error:
        yield Finding("PyTorch", "fault", error.message, error.hint, {"error": error.code})
        return
    devices = "; ".join(_device_text(device) for device in report.devices)
    text = f"PyTorch {report.version}, {report.threads} threads; {devices}"
    yield Finding("PyTorch", "ok", text, data=asdict(report))
    if report.cpu_kernels:
        text = f"packed matrices are multiplied with {report.cpu_kernels} instructions"
        yield Finding("CPU kernels", "ok", text)
    else:
        yield Finding(
            "CPU kernels",
            "warning",
            "the native runner's kernels for processors are missing: it unpacks GGUF files there",
            "Install a C compiler and run `make` again (docs/install.md).",
        )
    if any(device.type == "cuda" for device in report.devices):
        yield Finding(
            "CUDA",
            "warning",
            f"the native runner's kernels and graphs for NVIDIA cards are {NOT_RUN}",
            f"If answers are wrong, set {FORCE}=off (no kernels), or {NO_GRAPHS}=off (no graphs); "
            "`make gpu` in a clone tests them (docs/cuda.md).",
        )
    if any(device.type == "mps" for device in report.devices):
        yield Finding(
            "MPS",
            "warning",
            "the native runner on Apple's GPU is not verified on hardware",
            "llama.cpp is the runner that is chosen there; --backend native takes the other.",
        )


def _device_text(device: DeviceReport) -> str:
    name = _DEVICES.get(device.type, f"{device.type} {device.name}")
    best = " (taken)" if device.is_best else ""
    return (
        f"{name}{best} multiplies {', '.join(device.multiplies)}, "
        f"{device.free_bytes / 1e9:.1f} GB free"
    )


def _choices(paths: Paths, settings: Settings | HearthError) -> Iterator[Finding]:
    """Which runner opens which kind of model, and why."""
    asked = "auto" if isinstance(settings, HearthError) else settings.text("backend")
    if asked != "auto":
        text = f"all models are opened by {asked}, as the settings say"
        yield Finding("backend", "ok", text, data={"backend": asked})
        return
    here = this_machine()
    measured = Speeds(paths.cache).all()
    if here.has_cuda:
        free = here.card_free_bytes
        room = "" if free is None else f" and the card has room for ({free / 1e9:.1f} GB free)"
        text = (
            f"safetensors, and GGUFs that it can run{room}: native, on CUDA; "
            "other GGUFs: llama.cpp; hearth show MODEL says why"
        )
    elif here.is_apple:
        text = "safetensors: native; GGUF: llama.cpp, which is faster on Apple's processors"
    elif here.instructions in FAST:
        text = (
            "safetensors, and GGUFs for which it has kernels and memory: native, which is the "
            "faster one with AVX-512 VNNI unless measured otherwise; other GGUFs: llama.cpp; "
            "hearth show MODEL says why"
        )
    elif measured:
        text = "safetensors: native; GGUF: by what was measured here, else llama.cpp"
    else:
        text = f"safetensors: native; GGUF: llama.cpp, because nothing was measured yet ({MEASURE})"
    data = {
        "backend": "auto",
        "has_cuda": here.has_cuda,
        "card_free_bytes": here.card_free_bytes,
        "measured": [asdict(measurement) for measurement in measured],
    }
    yield Finding("backend", "ok", text, data=data)
    if here.has_cuda or here.is_apple:
        return
    for measurement in measured:
        runner = "native" if measurement.is_native_faster else "llama.cpp"
        yield Finding(
            f"backend {measurement.kind}",
            "ok",
            f"{runner}: {measurement.words}",
            data=asdict(measurement),
        )


def _folders(paths: Paths) -> Iterator[Finding]:
    for name, folder in (
        ("config", paths.config),
        ("data", paths.data),
        ("models", paths.models),
        ("downloads", hub_cache()),
        ("state", paths.state),
        ("cache", paths.cache),
        ("log", paths.log),
    ):
        data = {"path": str(folder)}
        if machine.can_write(folder):
            yield Finding(f"{name} folder", "ok", str(folder), data=data)
        else:
            text = f"{folder} cannot be written to"
            yield Finding(f"{name} folder", "fault", text, _MOVE_HOME, data)


def _disk(paths: Paths) -> Finding:
    free = machine.free_disk_bytes(paths.models)
    text = f"{free / 10**9:.1f} GB free for models"
    data = {"free_bytes": free}
    if free >= _LOW_DISK_BYTES:
        return Finding("disk", "ok", text, data=data)
    cure = "Most models need more. Make room, or set HEARTH_HOME."
    return Finding("disk", "warning", text, cure, data)


def _settings(settings: Settings | HearthError) -> Iterator[Finding]:
    if isinstance(settings, HearthError):
        yield Finding("settings", "fault", settings.message, settings.hint)
        return
    changed = {
        name: setting for name, setting in settings.all().items() if setting.origin != "default"
    }
    text = "; ".join(
        f"{name} = {setting.value} ({setting.origin})" for name, setting in changed.items()
    )
    exists = "" if settings.file.exists() else " (does not exist)"
    yield Finding(
        "settings",
        "ok",
        f"{settings.file}{exists}: {text or 'all have their defaults'}",
        data={
            "file": str(settings.file),
            "values": {
                n: {"value": s.value, "origin": s.origin} for n, s in settings.all().items()
            },
            "models": sorted(settings.models),
        },
    )
    if settings.unknown_variables:
        yield Finding(
            "environment",
            "warning",
            f"nothing reads {', '.join(settings.unknown_variables)}",
            "hearth settings lists what there is to set; a variable is HEARTH_ and its name.",
        )
    yield from _keys(settings)
    origin = settings.all()["offline"].origin
    text = (
        f"no connection is opened ({origin})"
        if settings.offline
        else "network allowed; only downloads use it"
    )
    yield Finding("offline", "ok", text, data={"offline": settings.offline})


def _keys(settings: Settings) -> Iterator[Finding]:
    """Problems with the keys of the terminal app, which is imported only if any are set."""
    if not settings.keymap:
        return
    from hearth.app.tui.looks import checked_keymap, key_clashes

    try:
        clashes = key_clashes(checked_keymap(settings.keymap))
    except HearthError as error:
        yield Finding("keys", "fault", error.message, error.hint)
        return
    for clash in clashes:
        data = {"key": clash.key, "bindings": clash.bindings}
        yield Finding("keys", "warning", clash.text, clash.cure, data)


def _models(library: Library) -> Iterator[Finding]:
    models = library.list(refresh=True)
    for model in models:
        if model.error:
            state: Literal["warning", "fault"] = "fault" if model.origin == "bundled" else "warning"
            yield Finding(
                "model",
                state,
                f"{model.name}: {model.error}",
                _model_cure(model),
                {"path": str(model.path), "origin": model.origin},
            )
    names = {model.name for model in library.fixed()}
    missing = [name for name in BUNDLED if name not in names]
    if missing:
        text = f"the bundled {' and '.join(missing)} cannot be found"
        yield Finding(
            "bundled models", "fault", text, "The installation is incomplete: install Hearth again."
        )
    usable = [model.name for model in models if not model.error]
    text = f"{len(usable)} usable: {', '.join(usable)}" if usable else "there are none"
    yield Finding("models", "ok", text, data={"usable": usable})


def _model_cure(model: LocalModel) -> str:
    """What to do about a file that cannot be used. Only files in Hearth's own library are suggested
    for removal.
    """
    if model.origin == "bundled":
        return "Install Hearth again."
    owner = _OWNERS.get(model.origin)
    if owner is not None:
        return f"{owner}, and Hearth leaves it as it is: {model.path}"
    return f"Replace or remove {model.path}."


def _host(paths: Paths) -> Finding:
    try:
        with HostLink(paths.host_place(), 0.0) as link:
            stats = link.stats()
    except HostUnreachable:
        stats = None
    except HearthError as error:
        return Finding("host", "fault", error.message, error.hint)
    if stats is None:
        text = "no host process is running; commands start one"
        return Finding("host", "ok", text, data={"running": False})
    loaded = (
        ", ".join(f"{w.name} (process {w.pid}, {w.running} running)" for w in stats.workers)
        or "nothing loaded"
    )
    text = f"process {stats.pid}, version {stats.version}, {stats.clients} attached, {loaded}"
    return Finding("host", "ok", text, data={"running": True, **asdict(stats)})
