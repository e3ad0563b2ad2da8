"""Write a component as Verilog: equal modules merged, hierarchy kept, memories as macros."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Module, Value, ValueCastable
from amaranth.hdl._ir import Fragment, PortDirection
from amaranth.lib import wiring

from hw import yosys
from hw.dedup import deduplicate
from hw.memory import views
from hw.memory.macro_model import MacroSpec, cost
from hw.memory.sram import MacroPlatform

MODELS = "sram_models.v"
BLACKBOXES = "sram_blackbox.v"
LIBERTY = "sram_macros.lib"
MACROS = "macros.json"


def _component_ports(component: Any) -> dict[str, tuple[Value, PortDirection]]:
    """Ports of a component from its signature, named as Amaranth names them (path joined by ``__``)."""
    ports: dict[str, tuple[Value, PortDirection]] = {}
    for path, member, value in component.signature.flatten(component):
        value = value.as_value() if isinstance(value, ValueCastable) else value
        direction = PortDirection.Input if member.flow == wiring.In else PortDirection.Output
        ports["__".join(map(str, path))] = (value, direction)
    return ports


def _class_name(component: object) -> str:
    """``KdaEngine`` -> ``kda_engine``."""
    name = type(component).__name__
    marked = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return marked.lstrip("_")


def _wanted_names(design: Any) -> dict[str, str]:
    """Verilog names of modules by Amaranth's dotted names.

    A component is named by its attribute ``module_name`` when it has one, else by its class.
    """
    names = {}
    for component, fragment in design.elaboratables.items():
        path = ".".join(design.fragments[fragment].name)
        if "." in path and not isinstance(component, Module) and path not in names:
            names[path] = getattr(component, "module_name", None) or _class_name(component)
    return names


def to_rtlil(component: Any, name: str, ports: Any = None) -> tuple[str, list[MacroSpec]]:
    """(deduplicated RTLIL, macros used); ``ports`` as Amaranth's ``rtlil.convert`` takes them, None for a component's
    own."""
    platform = MacroPlatform()
    fragment = Fragment.get(component, platform)
    if ports is None:
        if not hasattr(component, "signature"):
            raise TypeError(f"{component!r} has no signature: give its ports")
        ports = _component_ports(component)
    design = fragment.prepare(ports=ports, hierarchy=(name,))
    text, _ = rtlil.convert_fragment(design, emit_src=False)
    macros = sorted(platform.macros.values())
    return deduplicate(text, _wanted_names(design), reserved=[macro.name for macro in macros]), macros


def macro_table(macros: Iterable[MacroSpec]) -> list[dict[str, Any]]:
    """Shapes and costs of macros, as written to macros.json; a synthesised netlist's counts are multiplied by these."""
    return [
        {
            "name": macro.name,
            "ports": macro.ports,
            "depth": macro.depth,
            "width": macro.width,
            "granularity": macro.granularity,
            "bits": macro.bits,
            **vars(cost(macro)),
        }
        for macro in macros
    ]


def emit_verilog(component: Any, name: str, ports: Any = None, out_dir: Path | str = "build/rtl") -> Path:
    """Write ``<name>.v`` and the files of its macros to ``out_dir``; returns the path of ``<name>.v``.

    Written: the synthesizable Verilog (no attributes, unsigned ports, no initial values), ``sram_models.v``
    (behavioural), ``sram_blackbox.v``, ``sram_macros.lib`` (Liberty) and ``macros.json``. Modules are named by their
    component's class in lower case, or its attribute ``module_name``. ``sram_models.v`` is for simulators only:
    synthesis reads the black boxes.
    """
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    text, macros = to_rtlil(component, name, ports)
    source, verilog = out / f"{name}.il", out / f"{name}.v"
    source.write_text(text)
    yosys.run(
        [
            f"read_rtlil {source.resolve()}",
            "proc -nomux -norom",
            "memory_collect",
            f"write_verilog -noattr -norename {verilog.resolve()}",
        ],
        log=out / f"{name}.yosys.log",
    )
    (out / MODELS).write_text("\n".join(views.behavioural(macro) for macro in macros))
    (out / BLACKBOXES).write_text("\n".join(views.blackbox(macro) for macro in macros))
    (out / LIBERTY).write_text(views.liberty(macros))
    (out / MACROS).write_text(json.dumps(macro_table(macros), indent=1) + "\n")
    return verilog
