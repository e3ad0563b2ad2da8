"""Area and timing of one Amaranth component, for use while designing it.

    python -m flow.steps.synth_unit hw.units.kda:KdaEngine --arg rows=2 --keep kda_lane

or, from Python, ``unit(component, "name")``.
"""

import ast
import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from flow.nangate45 import library as nangate45
from flow.steps import sta, synth
from hw import yosys
from hw.emit import emit_verilog


def unit(
    component: Any,
    name: str,
    *,
    ports: Any = None,
    keep: tuple[str, ...] = (),
    clock_ns: float = 10.0,
    build: Path | str = "build",
    workers: int = 2,
) -> dict[str, Any]:
    """Write a component's Verilog to ``build/unit/<name>`` and synthesise it; returns what ``synth.run`` returns."""
    verilog = emit_verilog(component, name, ports, Path(build) / "unit" / name)
    config = synth.SynthConfig(
        keep=keep, constraints=sta.Constraints(clock_ns=clock_ns), abc_delay_ps=int(800 * clock_ns)
    )
    return synth.run(verilog.parent, name, Path(build) / "synth", config, workers=workers)


def _argument(text: str) -> tuple[str, Any]:
    """``key=value``; the value is a Python literal or, failing that, a string."""
    key, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not key=value")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _main(
    component: Annotated[str, typer.Argument(help="module:Class, or module:function that returns a component")],
    arg: Annotated[list[str] | None, typer.Option(help="key=value for its constructor; repeatable")] = None,
    name: Annotated[str | None, typer.Option(help="name of the top module; default: the class's")] = None,
    keep: Annotated[list[str] | None, typer.Option(help="module name pattern that stays a module; repeatable")] = None,
    clock_ns: Annotated[float, typer.Option(help="clock period in ns")] = 10.0,
) -> None:
    """Synthesise one component and print area by module and worst slack."""
    module, colon, attribute = component.partition(":")
    if not colon:
        raise typer.BadParameter(f"{component!r} is not module:Class")
    made = getattr(importlib.import_module(module), attribute)(**dict(map(_argument, arg or ())))
    try:
        print(synth.report(unit(made, name or attribute.lower(), keep=tuple(keep or ()), clock_ns=clock_ns)))
    except (synth.SynthError, nangate45.LibraryMissing, sta.StaError, yosys.YosysError) as problem:
        synth.console.print(f"[red]{problem}")
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(_main)
