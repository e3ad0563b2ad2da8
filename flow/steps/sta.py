"""Static timing of a netlist with OpenSTA (``sta``): an ideal clock, wires from a wire-load model."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


class StaError(RuntimeError):
    """OpenSTA failed; the message holds its error."""


@dataclass(frozen=True)
class Constraints:
    """The clock is ideal, 100 MHz by default; inputs come and outputs are due at a stated part of the cycle.

    The reset is a false path: it is held for many cycles.
    """

    clock_port: str = "clk"
    reset_port: str = "rst"
    clock_ns: float = 10.0
    input_delay_ns: float = 1.0
    output_delay_ns: float = 1.0
    driving_cell: str = "BUF_X4"
    load_ff: float = 10.0
    wire_load: str = "5K_hvratio_1_1"


@dataclass
class TimingReport:
    """Slacks in ns (None: there is no such path) and the text of the worst paths."""

    setup_ws_ns: float | None = None
    hold_ws_ns: float | None = None
    from_macro_ns: dict[str, float | None] = field(default_factory=dict)
    to_macro_ns: dict[str, float | None] = field(default_factory=dict)
    worst_path: str = ""


def executable(name: str = "sta") -> str | None:
    """Path of OpenSTA, None where it is not installed."""
    return shutil.which(name)


def version(program: str) -> str:
    """OpenSTA's version line."""
    done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60)
    return (done.stdout or done.stderr).strip().splitlines()[0] if (done.stdout or done.stderr).strip() else "unknown"


def sdc(constraints: Constraints) -> str:
    """The constraints as SDC (time ns, load fF)."""
    c = constraints
    return f"""create_clock -name core -period {c.clock_ns:g} [get_ports {c.clock_port}]
foreach port [all_inputs] {{
  if {{[get_property $port full_name] ne "{c.clock_port}"}} {{
    set_input_delay {c.input_delay_ns:g} -clock core $port
    set_driving_cell -lib_cell {c.driving_cell} $port
  }}
}}
set_output_delay {c.output_delay_ns:g} -clock core [all_outputs]
set_load {c.load_ff:g} [all_outputs]
if {{[llength [get_ports -quiet {c.reset_port}]]}} {{ set_false_path -from [get_ports {c.reset_port}] }}
"""


def _script(netlist: Path, top: str, liberties: Sequence[Path], macros: Sequence[str], constraints: Constraints) -> str:
    """Tcl for OpenSTA: worst paths over all, and from and to each class of macro."""
    lines = [f"read_liberty {liberty}" for liberty in liberties]
    lines += [f"read_verilog {netlist}", f"link_design {top}", sdc(constraints)]
    lines += [
        f"set_wire_load_model -name {constraints.wire_load}",
        'puts "@@ setup"',
        "report_checks -path_delay max -format full -fields {slew capacitance input_pin} -digits 4",
        'puts "@@ hold"',
        "report_checks -path_delay min -format full -digits 4",
    ]
    if macros:
        lines += [
            "foreach cell [get_cells -hierarchical *] { lappend cells_of([get_property $cell ref_name]) $cell }",
        ]
    for macro in macros:
        lines += [
            f'puts "@@ from {macro}"',
            f"report_checks -path_delay max -from $cells_of({macro}) -format full -digits 4",
            f'puts "@@ to {macro}"',
            f"report_checks -path_delay max -to $cells_of({macro}) -format full -digits 4",
        ]
    return "\n".join([*lines, 'puts "@@ end"']) + "\n"


def _slack(text: str) -> float | None:
    """Slack of the first path of a report."""
    match = re.search(r"(-?\d+\.\d+)\s+slack", text)
    return float(match.group(1)) if match else None


def analyse(
    netlist: Path,
    top: str,
    liberties: Sequence[Path],
    macros: Sequence[str],
    constraints: Constraints,
    work: Path,
    *,
    program: str = "sta",
    timeout: float = 3600.0,
) -> TimingReport:
    """Time a netlist; the script and the whole report are kept in ``work`` as sta.tcl and sta.rpt."""
    script = work / "sta.tcl"
    script.write_text(_script(netlist, top, liberties, macros, constraints))
    try:
        done = subprocess.run([program, "-exit", str(script)], capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise StaError(f"OpenSTA was stopped after {timeout:.0f} s") from None
    output = done.stdout + done.stderr
    (work / "sta.rpt").write_text(output)
    errors = [line for line in output.splitlines() if line.startswith("Error")]
    if errors or "@@ end" not in output:
        raise StaError(f"OpenSTA: {errors[0] if errors else 'it stopped early; see sta.rpt'}")
    parts = {}
    for part in output.split("@@ ")[1:]:
        head, _, body = part.partition("\n")
        parts[head.strip()] = body
    return TimingReport(
        setup_ws_ns=_slack(parts["setup"]),
        hold_ws_ns=_slack(parts["hold"]),
        from_macro_ns={macro: _slack(parts[f"from {macro}"]) for macro in macros},
        to_macro_ns={macro: _slack(parts[f"to {macro}"]) for macro in macros},
        worst_path=parts["setup"].strip(),
    )
