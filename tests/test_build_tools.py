"""The decisions of the set-up: which compiler and flags, where torch comes from, which versions are
pinned.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import pins
import toolchain
import torch_source
from source_tree import ROOT
from toolchain import NO_AMX, Compiler, Machine

AMX = Machine("Linux", "x86_64", frozenset({"avx2", "avx512f", "amx_tile", "amx_int8", "amx_bf16"}))
NO_AMX_CPU = Machine("Linux", "x86_64", frozenset({"avx2", "avx512f"}))
ARM = Machine("Linux", "aarch64", frozenset({"asimd", "sve"}))

DEBIAN_GCC = "c++ (Debian {version}-14+deb12u1) {version}\nCopyright (C) 2022 FSF, Inc.\n"
DEBIAN_CLANG = "Debian clang version {version} (15~deb12u1)\nTarget: x86_64-pc-linux-gnu\n"


class Programs:
    """Stands in for the installed compilers: a name and what it prints for --version."""

    def __init__(self, **outputs: str) -> None:
        self.outputs = {
            name.replace("xx", "++").replace("_", "-"): text for name, text in outputs.items()
        }

    def ask(self, command: list[str]) -> str | None:
        return self.outputs.get(command[0])

    def which(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.outputs else None


def gcc(version: str) -> str:
    return DEBIAN_GCC.format(version=version)


def clang(version: str) -> str:
    return DEBIAN_CLANG.format(version=version)


def choose(
    machine: Machine,
    programs: Programs,
    environment: dict[str, str] | None = None,
    compiles: Callable[[Compiler], bool] = lambda compiler: True,
) -> toolchain.Recipe:
    return toolchain.choose_recipe(
        "0.3.36", machine, environment or {}, programs.ask, programs.which, compiles
    )


@pytest.mark.parametrize(
    ("text", "family", "version"),
    [
        ("g++ (Ubuntu 13.2.0-23ubuntu4) 13.2.0\n", "gcc", (13, 2, 0)),
        ("g++ (GCC) 13.2.1 20231205 (Red Hat 13.2.1-6)\n", "gcc", (13, 2, 1)),
        (DEBIAN_CLANG.format(version="16.0.6"), "clang", (16, 0, 6)),
        ("Ubuntu clang version 18.1.3 (1ubuntu1)\n", "clang", (18, 1, 3)),
        ("Apple clang version 15.0.0 (clang-1500.3.9.4)\n", "clang", (15, 0, 0)),
    ],
)
def test_compilers_are_told_apart(text: str, family: str, version: tuple[int, ...]) -> None:
    found = toolchain.identify("cc", "c++", lambda command: text)
    assert found == Compiler(family, version, "cc", "c++")


@pytest.mark.parametrize("text", [None, "", "tcc version 0.9.27\n"])
def test_an_unknown_compiler_is_none(text: str | None) -> None:
    assert toolchain.identify("cc", "c++", lambda command: text) is None


@pytest.mark.parametrize(
    ("version", "drops"),
    [
        ((10, 2, 0), False),
        ((11, 4, 0), True),
        ((12, 2, 0), True),
        ((12, 3, 0), True),
        ((12, 4, 0), False),
        ((13, 1, 0), True),
        ((13, 2, 0), True),
        ((13, 3, 0), False),
        ((14, 2, 0), False),
    ],
)
def test_which_gcc_drops_the_tile_configuration(version: tuple[int, ...], drops: bool) -> None:
    assert Compiler("gcc", version, "gcc", "g++").drops_tile_config is drops
    assert not Compiler("clang", version, "clang", "clang++").drops_tile_config


def test_a_good_gcc_needs_no_flags() -> None:
    assert choose(AMX, Programs(cxx=gcc("13.3.0"))).flags == ()


@pytest.mark.parametrize("machine", [NO_AMX_CPU, ARM])
def test_a_processor_without_amx_needs_no_flags(machine: Machine) -> None:
    recipe = choose(
        machine, Programs(cxx=gcc("12.2.0"), clangxx=clang("19.1.0"), clang=clang("19.1.0"))
    )
    assert recipe.flags == ()
    assert recipe.compiler.family == "gcc"


def test_an_affected_gcc_on_amx_leaves_amx_alone() -> None:
    recipe = choose(AMX, Programs(cxx=gcc("12.2.0")))
    assert recipe.flags == NO_AMX
    assert "AMX off" in recipe.reason


def test_clang_replaces_an_affected_gcc() -> None:
    programs = Programs(cxx=gcc("12.2.0"))
    programs.outputs |= {name: clang("16.0.6") for name in ("clang-16", "clang++-16")}
    programs.outputs |= {name: clang("19.1.7") for name in ("clang-19", "clang++-19")}
    recipe = choose(AMX, programs)
    assert recipe.compiler == Compiler("clang", (19, 1, 7), "clang-19", "clang++-19")
    assert recipe.flags == ()


def test_an_old_clang_does_not_replace_it() -> None:
    programs = Programs(cxx=gcc("12.2.0"), clang=clang("14.0.6"), clangxx=clang("14.0.6"))
    assert choose(AMX, programs).flags == NO_AMX


def test_a_clang_that_cannot_link_does_not_replace_it() -> None:
    programs = Programs(cxx=gcc("12.2.0"), clang=clang("19.1.7"), clangxx=clang("19.1.7"))
    recipe = choose(AMX, programs, compiles=lambda compiler: compiler.family == "gcc")
    assert recipe.flags == NO_AMX


def test_a_compiler_that_the_user_names_is_kept() -> None:
    programs = Programs(cxx=gcc("14.2.0"), clang=clang("19.1.7"), clangxx=clang("19.1.7"))
    programs.outputs["g++-12"] = gcc("12.2.0")
    recipe = choose(AMX, programs, {"CC": "gcc-12", "CXX": "g++-12"})
    assert (recipe.compiler.cxx, recipe.flags) == ("g++-12", NO_AMX)


@pytest.mark.parametrize("programs", [Programs(), Programs(cxx=gcc("12.2.0"))])
def test_no_working_compiler_is_said_with_its_cure(programs: Programs) -> None:
    with pytest.raises(toolchain.NoCompiler, match="build-essential"):
        choose(NO_AMX_CPU, programs, compiles=lambda compiler: False)


def test_flags_join_those_of_the_user() -> None:
    recipe = choose(AMX, Programs(cxx=gcc("12.2.0")))
    environment = recipe.environment({"CFLAGS": "-O2", "PIP_FIND_LINKS": "/wheels"})
    assert environment["CFLAGS"] == "-O2 " + " ".join(NO_AMX)
    assert environment["CXXFLAGS"] == " ".join(NO_AMX)
    assert environment["PIP_FIND_LINKS"] == "/wheels"


def test_the_key_changes_with_whatever_changes_the_machine_code() -> None:
    old, new = Programs(cxx=gcc("12.2.0")), Programs(cxx=gcc("12.4.0"))
    keys = [
        choose(AMX, old).key(AMX, {}),
        choose(AMX, new).key(AMX, {}),
        choose(NO_AMX_CPU, new).key(NO_AMX_CPU, {}),
        choose(AMX, new).key(AMX, {"CMAKE_ARGS": "-DGGML_CUDA=on"}),
    ]
    assert len(set(keys)) == len(keys)
    assert choose(AMX, old).key(AMX, {"HOME": "/elsewhere"}) == keys[0]


def test_kernel_bookkeeping_flags_do_not_change_the_key() -> None:
    patched = Machine("Linux", "x86_64", NO_AMX_CPU.cpu_flags | {"md_clear", "constant_tsc"})
    recipe = choose(NO_AMX_CPU, Programs(cxx=gcc("12.2.0")))
    assert recipe.key(patched, {}) == recipe.key(NO_AMX_CPU, {})


def test_a_library_that_fails_its_check_is_built_without_amx_once() -> None:
    first = choose(AMX, Programs(cxx=gcc("14.2.0")))
    safer = toolchain.safe_recipe(first, AMX)
    assert safer is not None
    assert safer.flags == NO_AMX
    assert toolchain.safe_recipe(safer, AMX) is None


@pytest.mark.parametrize("machine", [NO_AMX_CPU, ARM])
def test_without_amx_there_is_nothing_safer_to_build(machine: Machine) -> None:
    recipe = choose(machine, Programs(cxx=gcc("12.2.0")))
    assert toolchain.safe_recipe(recipe, machine) is None


@pytest.mark.parametrize(
    ("environment", "system", "expected"),
    [
        ({"HEARTH_HOME": "/h", "XDG_CACHE_HOME": "/x"}, "Linux", "/h/cache/wheels"),
        ({"XDG_CACHE_HOME": "/x"}, "Darwin", "/x/hearth/wheels"),
        ({"HEARTH_HOME": "~/h"}, "Linux", "~/h/cache/wheels"),
        ({"XDG_CACHE_HOME": "x"}, "Linux", "~/.cache/hearth/wheels"),
        ({}, "Linux", "~/.cache/hearth/wheels"),
        ({}, "Darwin", "~/Library/Caches/hearth/wheels"),
    ],
)
def test_built_wheels_lie_in_the_cache_folder(
    environment: dict[str, str], system: str, expected: str
) -> None:
    assert toolchain.cache_folder(environment, system) == Path(expected).expanduser()


@pytest.mark.parametrize(
    ("system", "nvidia", "answers", "index", "may_bring_cuda"),
    [
        ("Linux", True, True, None, False),
        ("Linux", False, True, torch_source.CPU_INDEX, False),
        ("Linux", False, False, None, True),
        ("Darwin", False, False, None, False),
    ],
)
def test_where_torch_comes_from(
    system: str, nvidia: bool, answers: bool, index: str | None, may_bring_cuda: bool
) -> None:
    source = torch_source.choose_source(system, {}, has_nvidia=nvidia, cpu_index_answers=answers)
    assert (source.index_url, source.may_bring_cuda) == (index, may_bring_cuda)


def test_a_named_torch_index_overrules_everything() -> None:
    environment = {"HEARTH_TORCH_INDEX": "https://example.org/cu130"}
    source = torch_source.choose_source(
        "Linux", environment, has_nvidia=False, cpu_index_answers=True
    )
    assert source.pip_arguments() == ["--no-deps", "--index-url", "https://example.org/cu130"]


def test_an_index_that_cannot_be_reached_is_given_up() -> None:
    assert not torch_source.cpu_index_answers("http://127.0.0.1:9", limit_s=2)


def torch_report(*needs: str) -> dict[str, object]:
    return {"install": [{"metadata": {"version": "2.13.0", "requires_dist": list(needs)}}]}


def test_a_cuda_build_is_announced() -> None:
    text = torch_source.describe_candidate(
        torch_report("filelock", "nvidia-cublas==13.1", "cuda-bindings")
    )
    assert "2 CUDA packages" in text
    assert "HEARTH_TORCH_INDEX" in text


def test_a_cpu_build_is_named_as_one() -> None:
    text = torch_source.describe_candidate(torch_report("filelock", 'nvidia-x; extra == "gpu"'))
    assert "without CUDA packages" in text


@pytest.mark.parametrize("text", ["", "not json", "[1]"])
def test_a_missing_report_is_no_candidate(text: str) -> None:
    assert torch_source.parse_report(text) == {}


def test_pins_leave_out_ourselves_and_build_suffixes() -> None:
    packages = [
        {"name": "torch", "version": "2.13.0+cpu"},
        {"name": "llama_cpp_python", "version": "0.3.36"},
        {"name": "hearth-llm", "version": "0.1.0"},
        {"name": "pip", "version": "25.0"},
    ]
    lines = pins.render(packages).splitlines()
    assert [line for line in lines if "#" not in line] == [
        "llama-cpp-python==0.3.36",
        "torch==2.13.0",
    ]


def test_every_dependency_has_a_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [need for group in project["optional-dependencies"].values() for need in group]
    names = {need.split(">")[0].split("=")[0] for need in [*project["dependencies"], *extras]}
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names - pinned == set()
