"""A module inside a simulated chip is recorded, and its netlist is driven with the record.

Recording: a Verilog module bound to the design writes one line per clock edge, the module's inputs and outputs as they
are before the edge. Replay: a test bench gives a netlist the same inputs and compares all outputs before every edge.
Both start from zeros, so they agree from the first edge on, or the netlist is not the design. While it replays, the
bench can write the activity of every net (SAIF).
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sim.verilator import FLAGS, MAKE_VARIABLES, BuildFailed, verilator_root

RECORD = "record.hex"
BENCH = "replay.v"
CONFIG = "replay.vlt"
DECLARATION = re.compile(r"^\s*(input|output)\s+(?:wire\s+|reg\s+)?(?:\[(\d+):(\d+)\]\s*)?(\\\S+|\w+)\s*;", flags=re.M)


class ReplayFailed(RuntimeError):
    """A netlist does not do what the record says, or cannot be run; one line."""


@dataclass(frozen=True)
class Port:
    """A port of a module: its Verilog name, direction, bits."""

    name: str
    output: bool
    width: int


@dataclass(frozen=True)
class Outcome:
    """What a replay found. ``first``: number of the first edge with a difference, None without one."""

    edges: int
    compared_bits: int
    wrong_edges: int
    first: int | None


def ports(module: str) -> list[Port]:
    """Ports of a module from its Verilog text, in the order of their declarations."""
    found: dict[str, Port] = {}
    for direction, high, low, name in DECLARATION.findall(module):
        width = int(high) - int(low) + 1 if high else 1
        found.setdefault(name, Port(name, direction == "output", width))
    return list(found.values())


def _named(name: str) -> str:
    """A name as it is written before punctuation: escaped ones end with a space."""
    return f"{name} " if name.startswith("\\") else name


def _together(chosen: list[Port]) -> str:
    return "{" + ", ".join(_named(port.name) for port in chosen) + "}" if chosen else "1'b0"


def _sides(all_ports: list[Port], clock: str) -> tuple[list[Port], list[Port], int, int]:
    """(inputs but the clock, outputs, bits of each)."""
    inputs = [port for port in all_ports if not port.output and port.name != clock]
    outputs = [port for port in all_ports if port.output]
    return inputs, outputs, sum(port.width for port in inputs) or 1, sum(port.width for port in outputs) or 1


def recorder(module: str, all_ports: list[Port], top: str, clock: str = "clk") -> str:
    """Verilog that records the first instance of ``module`` in ``top``, in the simulation's folder as <module>.hex."""
    inputs, outputs, in_bits, out_bits = _sides(all_ports, clock)
    return f"""
package {module}_recorder_place;
  int unsigned taken = 0;
endpackage
module {module}_recorder(input clock, input [{in_bits - 1}:0] inputs, input [{out_bits - 1}:0] outputs);
  /*verilator no_inline_module*/
  integer file;
  int unsigned place;
  initial begin
    place = {module}_recorder_place::taken;
    {module}_recorder_place::taken = place + 1;
    if (place == 0) file = $fopen("{module}.hex", "w");
  end
  always @(posedge clock) if (place == 0) $fwrite(file, "%h %h\\n", inputs, outputs);
endmodule
bind {module} {module}_recorder recorder(
  .clock({top}.{clock}), .inputs({_together(inputs)}), .outputs({_together(outputs)})
);
"""


def bench(module: str, all_ports: list[Port], record: Path, activity: Path | None, start: int, clock: str) -> str:
    """Verilog that replays a record; prints how many edges there were and which differ.

    Activity of its nets is written from edge ``start`` on.
    """
    inputs, outputs, in_bits, out_bits = _sides(all_ports, clock)
    connections = []
    at = in_bits
    for port in inputs:
        at -= port.width
        connections.append(f".{_named(port.name)}(inputs[{at} +: {port.width}])")
    at = out_bits
    for port in outputs:
        at -= port.width
        connections.append(f".{_named(port.name)}(outputs[{at} +: {port.width}])")
    if any(port.name == clock for port in all_ports):
        connections.append(f".{clock}(clock)")
    dump = f'if (edge_number == {start}) begin $dumpfile("{activity}"); $dumpvars(0, dut); end' if activity else ""
    return f"""`timescale 1ns/1ps
module replay;
  reg clock = 0;
  reg [{in_bits - 1}:0] inputs = 0;
  reg [{out_bits - 1}:0] expected = 0;
  wire [{out_bits - 1}:0] outputs;
  integer file, edge_number = 0, wrong = 0, first = -1;
  {module} dut({", ".join(connections)});
  initial begin
    file = $fopen("{record}", "r");
    while ($fscanf(file, "%h %h\\n", inputs, expected) == 2) begin
      {dump}
      #5;
      if (outputs !== expected) begin
        wrong = wrong + 1;
        if (first < 0) begin
          first = edge_number;
          $display("@@ differs at edge %0d: %h", edge_number, outputs ^ expected);
        end
      end
      clock = 1;
      #5 clock = 0;
      edge_number = edge_number + 1;
    end
    $display("@@ edges %0d wrong %0d first %0d", edge_number, wrong, first);
    $finish;
  end
endmodule
"""


def replay(
    netlists: list[Path],
    models: list[Path],
    module: str,
    all_ports: list[Port],
    record: Path,
    work: Path,
    *,
    activity: Path | None = None,
    start: int = 0,
    clock: str = "clk",
    optimise: str = "-O1",
    timeout: float = 7200.0,
) -> Outcome:
    """Compile a netlist with Verilator and drive it with a record; raises ReplayFailed when it cannot be run.

    ``models``: Verilog of the library's cells and of the SRAMs. Whether the netlist agrees is in the outcome.
    ``optimise``: the C++ compiler's level; -O0 for short records.
    """
    (work / BENCH).write_text(bench(module, all_ports, record.resolve(), activity, start, clock))
    folder = work / "simulation"
    folder.mkdir(exist_ok=True)
    root = verilator_root()
    flags = [flag for flag in FLAGS if flag not in ("--x-initial", "--x-assign", "unique")]
    verilate = [str(root / "bin" / "verilator_bin"), "--cc", "--main", "--exe", "--timing", "--top-module", "replay"]
    verilate += ["-Mdir", str(folder), "-o", "replay", *flags, "--x-assign", "0", "--x-initial", "0"]
    verilate += ["-Wno-lint", "-Wno-style", "-Wno-SPECIFYIGN"]
    verilate += ["--trace-saif", "--trace-underscore"] if activity else []
    verilate += ["-CFLAGS", "--std=c++20 -fcoroutines"]
    # Nets outside cells and macros have it all: what is in these is left out.
    (work / CONFIG).write_text("`verilator_config\n" + "".join(f'tracing_off -file "{file}"\n' for file in models))
    verilate += [str(work / CONFIG), str(work / BENCH), *map(str, [*netlists, *models])]
    make = [
        "make",
        "-j2",
        "-C",
        str(folder),
        "-f",
        "Vreplay.mk",
        f"OPT_FAST={optimise}",
        f"OPT_GLOBAL={optimise}",
        *MAKE_VARIABLES,
    ]
    environment = {**os.environ, "VERILATOR_ROOT": str(root)}
    environment.pop("MAKEFLAGS", None)
    log = work / "replay.log"
    with log.open("w") as out:
        for command in (verilate, make):
            if subprocess.run(command, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False).returncode:
                raise ReplayFailed(f"the netlist of {module} cannot be compiled, see {log.name}")
        try:
            subprocess.run([str(folder / "replay")], stdout=out, stderr=subprocess.STDOUT, timeout=timeout, cwd=work)
        except subprocess.TimeoutExpired:
            raise ReplayFailed(f"the netlist of {module} was stopped after {timeout:.0f} s") from None
    found = re.search(r"^@@ edges (\d+) wrong (\d+) first (-?\d+)$", log.read_text(), flags=re.M)
    if found is None:
        raise ReplayFailed(f"the replay of {module} ended early, see {log.name}")
    edges, wrong, first = (int(value) for value in found.groups())
    _, _, _, out_bits = _sides(all_ports, clock)
    return Outcome(edges, edges * out_bits, wrong, None if first < 0 else first)


__all__ = ["BuildFailed", "Outcome", "Port", "ReplayFailed", "bench", "ports", "recorder", "replay"]
