"""The import contracts of docs/architecture.md, read from the source, and what starting the command
may import.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from source_tree import PACKAGES, Import, Module, modules, under

LAYERS = {"app": 4, "backends": 3, "quant": 2, "kernels": 1}
RUNNERS = ("hearth.backends.native", "hearth.backends.llamacpp", "hearth.backends.remote")
LIBRARIES_OF_MODELS = ("torch", "llama_cpp")
UNSAFE_MODULES = ("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib")
JINJA_ENVIRONMENTS = {
    "Environment",
    "SandboxedEnvironment",
    "ImmutableSandboxedEnvironment",
    "NativeEnvironment",
    "Template",
}
HEAVY = ("torch", "llama_cpp", "numpy", "gguf", "textual", "huggingface_hub", "jinja2", "asyncio")

Rule = Callable[[Module, Import], bool]


def breaches(found: list[Module], rule: Rule) -> list[str]:
    """`file:line: name` of each import that breaks `rule`."""
    return [
        f"{module}:{entry.line}: {entry.name}"
        for module in found
        for entry in module.imports
        if rule(module, entry)
    ]


def package_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "hearth" and len(parts) > 1 else None


def climbs(module: Module, entry: Import) -> bool:
    target = package_of(entry.name)
    if target is None or target == module.package:
        return False
    return LAYERS.get(target, 5) >= LAYERS[module.package]


def crosses_runners(module: Module, entry: Import) -> bool:
    own = [runner for runner in RUNNERS if under(module.name, runner)]
    others = [runner for runner in RUNNERS if runner not in own]
    return bool(own) and under(entry.name, *others)


def test_a_package_imports_only_lower_ones() -> None:
    assert breaches(modules(*LAYERS), climbs) == []


def test_the_rule_for_layers_notices_a_climb() -> None:
    quant = Module(modules("quant")[0].path, "hearth.quant.example")
    assert climbs(quant, Import("hearth.backends.contract.requests.Request", 1))
    assert climbs(quant, Import("hearth.assets.guide", 1))
    assert not climbs(quant, Import("hearth.kernels.table", 1))


def test_assets_use_only_themselves() -> None:
    def leaves(module: Module, entry: Import) -> bool:
        return package_of(entry.name) not in (None, "assets")

    assert breaches(modules("assets"), leaves) == []


def test_packages_are_imported_by_their_full_name() -> None:
    def is_bare(module: Module, entry: Import) -> bool:
        return entry.name.split(".")[0] in PACKAGES

    assert breaches(modules(*PACKAGES, "tests", "benchmarks", "tools"), is_bare) == []


def test_the_engine_knows_no_runner() -> None:
    engine = [
        module for module in modules("backends") if under(module.name, "hearth.backends.engine")
    ]

    def names_a_runner(module: Module, entry: Import) -> bool:
        return under(entry.name, *RUNNERS, *LIBRARIES_OF_MODELS)

    assert engine
    assert breaches(engine, names_a_runner) == []


def test_runners_do_not_know_each_other() -> None:
    assert breaches(modules("backends"), crosses_runners) == []


def test_the_terminal_app_and_the_commands_are_apart() -> None:
    """Only `open_chat` of the commands knows the app; neither is under the sessions."""

    def crosses(module: Module, entry: Import) -> bool:
        below = under(module.name, "hearth.app.session")
        in_app = below or under(module.name, "hearth.app.tui")
        return (in_app and under(entry.name, "hearth.app.cli")) or (
            below and under(entry.name, "hearth.app.tui")
        )

    assert breaches(modules("app"), crosses) == []


def cycles(found: list[Module]) -> list[list[str]]:
    """The groups of modules that import each other, also in functions and under
    `TYPE_CHECKING`.
    """
    names = {module.name for module in found}
    imported = {
        module.name: {owner(entry.name, names) for entry in module.imports} - {module.name, ""}
        for module in found
    }
    above: dict[str, set[str]] = {}
    for name in names:  # Everything that `name` leads to.
        above[name], left = set(), list(imported[name])
        while left:
            if (next_one := left.pop()) not in above[name]:
                above[name].add(next_one)
                left += imported[next_one]
    groups = {
        tuple(sorted(other for other in above[name] if name in above[other]))
        for name in names
        if name in above[name]
    }
    return [list(group) for group in sorted(groups)]


def owner(name: str, names: set[str]) -> str:
    """The module that an import of `name` runs; empty: none of `names`."""
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name


@pytest.mark.parametrize("package", ["app", "backends", "kernels"])
def test_no_modules_of_a_package_import_each_other(package: str) -> None:
    assert cycles(modules(package)) == []


def test_the_rule_for_cycles_notices_one() -> None:
    a, b, c = (Module(modules("app")[0].path, f"hearth.app.{name}") for name in "abc")
    for module, source in (
        (a, "def f():\n    from hearth.app.b import x"),
        (b, "if TYPE_CHECKING:\n    import hearth.app.c"),
        (c, "from hearth.app import a"),
    ):
        module.__dict__["_outline"] = False, list(module.imports_in(ast.parse(source)))
    assert cycles([a, b, c]) == [["hearth.app.a", "hearth.app.b", "hearth.app.c"]]
    assert cycles([a, b]) == []


def test_front_ends_import_no_library_that_runs_models() -> None:
    def runs_models(module: Module, entry: Import) -> bool:
        return under(entry.name, *LIBRARIES_OF_MODELS)

    assert breaches(modules("app"), runs_models) == []


def test_only_its_own_runner_imports_llama_cpp() -> None:
    others = [
        module
        for module in modules(*PACKAGES)
        if not under(module.name, "hearth.backends.llamacpp")
    ]

    def imports_llama_cpp(module: Module, entry: Import) -> bool:
        return under(entry.name, "llama_cpp")

    assert breaches(others, imports_llama_cpp) == []


def test_only_what_measures_it_imports_transformers() -> None:
    def imports_transformers(module: Module, entry: Import) -> bool:
        own = "hearth.backends.bench.transformers_side"
        return module.name != own and under(entry.name, "transformers")

    assert breaches(modules(*PACKAGES), imports_transformers) == []


def test_nothing_unpickles() -> None:
    def is_unsafe(module: Module, entry: Import) -> bool:
        return under(entry.name, *UNSAFE_MODULES) or under(entry.name, "torch.load")

    assert breaches(modules(*PACKAGES), is_unsafe) == []


def test_nothing_that_came_with_a_model_is_executed() -> None:
    found = []
    for module in modules(*PACKAGES):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and _is_unsafe_call(node):
                found.append(f"{module}:{node.lineno}: {ast.unparse(node)[:60]}")
    assert found == []


def _is_unsafe_call(call: ast.Call) -> bool:
    unpickles = any(
        keyword.arg in {"allow_pickle", "trust_remote_code"}
        and ast.unparse(keyword.value) != "False"
        for keyword in call.keywords
    )
    return unpickles or dotted(call.func) in {"eval", "exec", "torch.load"}


def dotted(node: ast.expr) -> str:
    """`node` if it is names with dots between them, such as torch.load; else empty."""
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def last_name(node: ast.expr) -> str:
    """What comes after the last dot of `node`, if it is a name; else empty."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def test_one_function_makes_the_jinja_environment() -> None:
    makers = set()
    for module in modules(*PACKAGES):
        tree = module.tree
        names = JINJA_ENVIRONMENTS | _subclasses(tree)
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and _calls(
                function, names
            ):
                makers.add(f"{module.name}.{function.name}")
    assert len(makers) == 1, makers


def _subclasses(tree: ast.Module) -> set[str]:
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(last_name(base) in JINJA_ENVIRONMENTS for base in node.bases)
    }


def _calls(function: ast.AST, names: set[str]) -> bool:
    return any(
        isinstance(node, ast.Call) and last_name(node.func) in names for node in ast.walk(function)
    )


REPORT = """
import json, sys

def no_network(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise RuntimeError(f"{event} {args[1:]}")

sys.addaudithook(no_network)
import hearth.app.cli.main
if len(sys.argv) > 1:
    try:
        hearth.app.cli.main.main()
    except SystemExit as left:
        assert not left.code, left.code
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=["import", "help"])
def test_the_command_starts_without_heavy_imports_or_a_network(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REPORT, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stderr.splitlines()[-1])
    assert [name for name in loaded if under(name, *HEAVY)] == []
    assert arguments == [] or "Usage" in done.stdout


def test_the_first_paint_imports_nothing_that_it_does_not_need() -> None:
    code = (
        "import json, sys, hearth.app.tui.open, hearth.app.tui.screens.chat;"
        "json.dump(sorted(sys.modules), sys.stdout)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = json.loads(done.stdout)
    late = (
        "click",
        "ctypes",
        "hearth.app.library.catalogue",
        "hearth.app.presets",
        "hearth.app.tui.screens.dialogs",
        "hearth.app.answer",
        "hearth.app.session.turn",
        "hearth.app.tui.widgets.message",
        "hearth.backends.host.client",
        "hearth.backends.engine.validate",
        "hearth.backends.contract.events",
        "hearth.backends.contract.loaded",
        "hearth.backends.contract.requests",
        "httpx2",
        "huggingface_hub",
        "markdown_it",
        "msgspec",
        "numpy",
        "psutil",
        "pygments.lexers",
    )
    assert [name for name in loaded if under(name, *late)] == []


def test_the_app_opens_without_the_command_line() -> None:
    code = (
        "import sys, hearth.app.cli.main as hearth, hearth.app.tui.open as opening\n"
        "hearth.can_draw, opening.open_app = lambda: True, lambda *_, **__: 7\n"
        "code = hearth.main([])\n"
        "sys.exit(1 if 'click' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 7
