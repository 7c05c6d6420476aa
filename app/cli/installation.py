"""`hearth doctor`, `hearth settings` and `hearth completion`: the state of the installation, the
settings in force, and shell completion.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from hearth.app.cli.options import complete_model, json_option, shown_setting
from hearth.app.cli.state import State
from hearth.app.exit_codes import ExitCode
from hearth.app.settings import Settings, default_document
from hearth.backends.errors import HearthError, SettingsError
from hearth.backends.native.report import LayoutRoutes, Rows, kernel_report

_FORCING = (
    "To force others: HEARTH_CPU_KERNELS=amx, avx512, avx2, plain or off in the environment of the "
    "host; --dtype f32 or --deterministic (nothing is rounded), --dtype bf16 or f16 (weights are "
    "unpacked), --gpu-layers 0 (the processor)."
)
_INSTALL = {
    "bash": 'eval "$(hearth completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(hearth completion zsh)"   in ~/.zshrc',
    "fish": "hearth completion fish > ~/.config/fish/completions/hearth.fish",
}


@click.command("doctor")
@click.option(
    "--measure",
    is_flag=True,
    help="Measure first which backend is faster here, for each kind of GGUF in the library.",
)
@click.option(
    "--kernels",
    is_flag=True,
    help="Show what multiplies each type of weights on each device, and why.",
)
@json_option
@click.pass_obj
def doctor(state: State, measure: bool, kernels: bool, as_json: bool) -> int:
    """Check the installation; the exit code is 1 if something is broken.

    A line with an x is a fault, one with ! works but could be better; the cure stands below it.

    --measure takes some seconds for each kind, which --backend auto goes by from then on. Let
    nothing else run meanwhile.
    """
    from hearth.app.doctor import examine

    if kernels:
        _kernels(state, as_json=as_json)
        return ExitCode.OK
    if measure:
        _measure(state)
    try:
        known: Settings | HearthError = state.settings
    except SettingsError as error:
        known = error
    findings = []
    for finding in examine(state.paths, known, state.library):
        findings.append(finding)
        for line in () if as_json else finding.lines:
            state.output.data(line)
    faults = [finding for finding in findings if finding.state == "fault"]
    if as_json:
        state.output.json(
            {"healthy": not faults, "findings": [asdict(finding) for finding in findings]}
        )
    elif faults:
        state.output.problem(
            f"Broken: {', '.join(finding.subject for finding in faults)}. The cures stand above."
        )
    return ExitCode.FAILED if faults else ExitCode.OK


def _kernels(state: State, *, as_json: bool) -> None:
    """Print which kernels the native backend multiplies with. Raises `BackendUnavailable` without
    PyTorch.
    """
    report = kernel_report()
    if as_json:
        state.output.json(asdict(report))
        return
    used = report.instructions or "not used"
    state.output.data(f"kernels for processors: {used} ({report.reason})")
    for device, reason in report.absent.items():
        state.output.data(f"{device}: {reason}")
    alike: dict[tuple[str, str, str, tuple[Rows, ...]], list[LayoutRoutes]] = {}
    for route in report.routes:
        held = "" if route.held.upper() == route.layout else f", held as {route.held}"
        alike.setdefault((route.device, route.case, held, route.rows), []).append(route)
    for (device, case, held, _), layouts in alike.items():
        state.output.data(f"\n{', '.join(o.layout for o in layouts)} on {device} {case}{held}")
        table = [("  ROWS", "MULTIPLIED BY", "ACTIVATIONS", "WHY")]
        for rows in layouts[0].rows:
            rest = f" to {rows.last}" if rows.last else " and more"
            count = f"  {rows.first}{'' if rows.first == rows.last else rest}"
            table.append((count, rows.by, rows.activations, rows.reason))
        state.output.table(table)
    state.output.note(_FORCING)


def _measure(state: State) -> None:
    from hearth.app.paths import own_folder
    from hearth.app.speeds import kinds_here, measure_kinds

    kinds = kinds_here(state.library)
    if not kinds:
        state.output.note("There is no GGUF here that both backends can run.")
        return
    cache, logs = own_folder(state.paths.cache), own_folder(state.paths.log)
    measure_kinds(kinds, cache, logs, state.output.note)


@click.command("settings")
@click.argument("model", required=False, default="", shell_complete=complete_model)
@click.option(
    "--default",
    "print_default",
    is_flag=True,
    help="Print a settings file that explains every key.",
)
@json_option
@click.pass_obj
def settings(state: State, model: str, print_default: bool, as_json: bool) -> None:
    """Print the settings in force (for MODEL, if one is named) and where each comes from.

    Flags win over HEARTH_* variables, those over the settings file, that over the defaults. To
    begin a file: hearth settings --default.
    """
    if print_default:
        state.output.data(default_document(), end="")
        return
    by_name = state.settings.all(state.library.resolve(model).name if model else "")
    file = state.settings.file
    if as_json:
        in_force = {name: asdict(setting) for name, setting in by_name.items()}
        state.output.json({"file": str(file), "settings": in_force})
        return
    rows = [("SETTING", "VALUE", "FROM")]
    rows += [(name, shown_setting(name, one.value), one.origin) for name, one in by_name.items()]
    state.output.table(rows)
    state.output.note(f"The settings file is {file}.")


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_INSTALL)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash: eval "$(hearth completion bash)"   in ~/.bashrc
    zsh:  eval "$(hearth completion zsh)"    in ~/.zshrc
    fish: hearth completion fish > ~/.config/fish/completions/hearth.fish
    """
    from click.shell_completion import get_completion_class

    root, output = ctx.find_root(), ctx.obj.output
    kind = get_completion_class(shell)
    assert kind is not None and root.info_name is not None
    variable = f"_{root.info_name.upper()}_COMPLETE"
    output.data(kind(root.command, {}, root.info_name, variable).source())
    if output.to_terminal:
        output.note(f"To install: {_INSTALL[shell]}")
