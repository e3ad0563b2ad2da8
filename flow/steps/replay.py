"""Modules inside a simulated chip are recorded, and their netlists are driven with the records.

Recording: a Verilog module bound to a kind of module writes, for each of its instances, a line whenever its inputs or
outputs are not what they were, as they are before a clock edge. Replay: a test bench gives a netlist the same inputs
and compares all outputs before every edge. Modules inside it that have records of their own can be left out: a player
stands for each, gives the outputs of its record, and compares the inputs it gets. Replaying each part alone says of the
whole what one simulation of it would: when every part answers recorded inputs with recorded outputs, from zeros on and
before every edge, the recorded values are what the parts do together, as long as no ring of gates goes through several
parts. It takes the memory of the largest part.

While it replays, the bench can write the activity of every net (SAIF).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flow import netlist
from sim.verilator import FLAGS, MAKE_VARIABLES, BuildFailed, verilator_root

BENCH = "replay.sv"
CONFIG = "replay.vlt"
Window = tuple[int, int]  # numbers of edges: from, to
ACTIVITY, LOG = "activity.saif", "replay.log"
DUT = ("replay", "dut")
CLOCK_PS = 10_000  # of the replay
DECLARATION = re.compile(r"^\s*(input|output)\s+(?:wire\s+|reg\s+)?(?:\[(\d+):(\d+)\]\s*)?(\\\S+|\w+)\s*;", flags=re.M)


class ReplayFailed(RuntimeError):
    """A netlist does not do what the record says, or cannot be run; one line."""


@dataclass(frozen=True)
class Port:
    """A port of a module: its name without Verilog's escape, direction, bits."""

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
    """Ports of a module from its Verilog text, in the order of their declarations; what its head lacks is none."""
    listed = netlist.listed(module)
    found: dict[str, Port] = {}
    for direction, high, low, name in DECLARATION.findall(module):
        width = int(high) - int(low) + 1 if high else 1
        name = name.lstrip("\\")
        if name in listed:
            found.setdefault(name, Port(name, direction == "output", width))
    return list(found.values())


def bits(all_ports: Sequence[Port], *, output: bool) -> list[str]:
    """Names of the outputs' bits, or of the inputs'."""
    chosen = [port for port in all_ports if port.output == output]
    return [f"{port.name}[{bit}]" if port.width > 1 else port.name for port in chosen for bit in range(port.width)]


def same_ports(
    expected: Sequence[Port], found: Sequence[Port], what: str = "the netlist", other: str = "the RTL"
) -> list[Port]:
    """The expected ports, if the netlist has just these; tools reorder them. Raises ReplayFailed."""
    if set(expected) != set(found):
        differing = sorted({port.name for port in set(expected) ^ set(found)})
        raise ReplayFailed(f"{what} has other ports than {other}: {', '.join(differing[:5])}")
    return list(expected)


def _named(name: str) -> str:
    """A name as it can always be written: one tool's plain name is a word of Verilog's to another."""
    return f"\\{name} "


@dataclass(frozen=True)
class Sides:
    """A module's inputs, without its clock, and outputs, each as one vector in the order of a record."""

    all_ports: Sequence[Port]
    clock: str

    @property
    def inputs(self) -> list[Port]:
        return [port for port in self.all_ports if not port.output and port.name != self.clock]

    @property
    def outputs(self) -> list[Port]:
        return [port for port in self.all_ports if port.output]

    @property
    def in_bits(self) -> int:
        return sum(port.width for port in self.inputs) or 1

    @property
    def out_bits(self) -> int:
        return sum(port.width for port in self.outputs) or 1


def _together(chosen: list[Port]) -> str:
    return "{" + ", ".join(_named(port.name) for port in chosen) + "}" if chosen else "1'b0"


def _parts(chosen: list[Port], vector: str, bits: int) -> Iterator[tuple[str, str]]:
    """(port, its part of the vector) of each."""
    at = bits
    for port in chosen:
        at -= port.width
        yield _named(port.name), f"{vector}[{at} +: {port.width}]"


def recorder(module: str, all_ports: Sequence[Port], top: str, clock: str = "clk") -> str:
    """Verilog that records every instance of ``module`` in ``top``, in the simulation's folder as <instances>.rec.

    A line is the number of an edge and what inputs and outputs are from it on, in hexadecimal digits; the last line has
    the number of edges, negative.
    """
    sides = Sides(all_ports, clock)
    return f"""
module {module}_recorder(input clock, input [{sides.in_bits - 1}:0] inputs, input [{sides.out_bits - 1}:0] outputs);
  integer file, edge_number = 0;
  reg [{sides.in_bits - 1}:0] last_inputs;
  reg [{sides.out_bits - 1}:0] last_outputs;
  string name;
  initial begin
    name = $sformatf("%m");
    file = $fopen({{name.substr(0, name.len() - {len(".recorder") + 1}), ".rec"}}, "w");
  end
  always @(posedge clock) begin
    if (edge_number == 0 || inputs != last_inputs || outputs != last_outputs)
      $fwrite(file, "%0d %h %h\\n", edge_number, inputs, outputs);
    last_inputs = inputs;
    last_outputs = outputs;
    edge_number = edge_number + 1;
  end
  final begin
    $fwrite(file, "-%0d 0 0\\n", edge_number);
    $fclose(file);
  end
endmodule
bind {module} {module}_recorder recorder(
  .clock({top}.{clock}), .inputs({_together(sides.inputs)}), .outputs({_together(sides.outputs)})
);
"""


def _reader(inputs: str, outputs: str, in_bits: int, out_bits: int) -> str:
    """Verilog that follows a record: ``follow(edge)`` gives both vectors the values they have at that edge.

    They change with the registers, at the clock edge before: in a part as in the whole no net changes twice a cycle.
    """
    return f"""
  integer file, next_edge, found;
  reg [{in_bits - 1}:0] next_inputs;
  reg [{out_bits - 1}:0] next_outputs;
  task open(input string name);
    file = $fopen(name, "r");
    found = $fscanf(file, "%d %h %h", next_edge, next_inputs, next_outputs);
  endtask
  task follow(input integer number);
    if (found == 3 && number == next_edge) begin
      {inputs} <= next_inputs;
      {outputs} <= next_outputs;
      found = $fscanf(file, "%d %h %h", next_edge, next_inputs, next_outputs);
    end
  endtask
"""


def player(module: str, all_ports: Sequence[Port], clock: str = "clk") -> str:
    """Verilog of a module in whose place its record is: outputs as recorded, inputs compared before every edge.

    Its clock, if it has one, must have risen as often as the replay's, and be down.
    """
    sides = Sides(all_ports, clock)
    clocked = any(port.name == clock for port in all_ports)
    counted = f"  always @(posedge {_named(clock)}) rises = rises + 1;" if clocked else ""
    ticks = f" || {_named(clock)} !== 0 || rises != replay.edge_number" if clocked else ""
    lines = [
        f"module {_named(module)}({', '.join(_named(port.name) for port in all_ports)});",
        "  /*verilator tracing_off*/",
    ]
    for port in all_ports:
        lines.append(f"  {'output' if port.output else 'input'} [{port.width - 1}:0] {_named(port.name)};")
    lines += [
        f"  reg [{sides.in_bits - 1}:0] expected = 0;",
        f"  reg [{sides.out_bits - 1}:0] outputs = 0;",
        f"  wire [{sides.in_bits - 1}:0] inputs = {_together(sides.inputs)};",
        _reader("expected", "outputs", sides.in_bits, sides.out_bits),
        *(f"  assign {name} = {part};" for name, part in _parts(sides.outputs, "outputs", sides.out_bits)),
        f"""
  string name, records;
  integer told = 0, rises = 0;
{counted}
  initial begin
    name = $sformatf("%m");
    if ($value$plusargs("records=%s", records) == 0) $fatal;
    open({{records, name.substr({len(".".join(DUT))}, name.len() - 1), ".rec"}});
    follow(0);
  end
  always @(posedge replay.clock) follow(replay.edge_number + 1);
  always @(replay.compared)
    if (inputs !== expected{ticks}) begin
      replay_differs::here = 1;
      if (told == 0) $display("@@ inputs of %s differ at edge %0d: %h, %0d of its clock",
        name, replay.edge_number, inputs ^ expected, rises);
      told = 1;
    end
endmodule
""",
    ]
    return "\n".join(lines)


def bench(module: str, all_ports: Sequence[Port], window: Window | None, clock: str = "clk") -> str:
    """Verilog that replays a record; prints how many edges there were, and at how many something differs.

    The record is "<+records>.rec", and those of the players are beside it. Between the edges of ``window`` activity of
    the nets is written.
    """
    sides = Sides(all_ports, clock)
    connections = [f".{name}({part})" for name, part in _parts(sides.inputs, "inputs", sides.in_bits)]
    connections += [f".{name}({part})" for name, part in _parts(sides.outputs, "outputs", sides.out_bits)]
    if any(port.name == clock for port in all_ports):
        connections.append(f".{_named(clock)}(clock)")
    dump = ""
    if window is not None:  # Verilator has no $dumpoff: the file is closed instead
        dump = f"""if (edge_number == {window[0]}) begin $dumpfile("{ACTIVITY}"); $dumpvars(0, dut); end
      if (edge_number == {window[1]}) $c("vlSymsp->_traceDumpClose();");"""
    return f"""`timescale 1ns/1ps
package replay_differs;
  bit here = 0;
endpackage
module replay;
  reg clock = 0, compared = 0;
  reg [{sides.in_bits - 1}:0] inputs = 0;
  reg [{sides.out_bits - 1}:0] expected = 0;
  wire [{sides.out_bits - 1}:0] outputs;
  integer edge_number = 0, wrong = 0, first = -1;
  string records;
  {_named(module)} dut({", ".join(connections)});
  {_reader("inputs", "expected", sides.in_bits, sides.out_bits)}
  initial begin
    if ($value$plusargs("records=%s", records) == 0) $fatal;
    open({{records, ".rec"}});
    follow(0);
    forever begin
      {dump}
      #4 compared = !compared;
      if (outputs !== expected) begin
        replay_differs::here = 1;
        if (first < 0) $display("@@ outputs differ at edge %0d: %h", edge_number, outputs ^ expected);
      end
      #1 if (replay_differs::here) begin
        wrong = wrong + 1;
        if (first < 0) first = edge_number;
        replay_differs::here = 0;
      end
      if (found != 3 || edge_number + 1 == -next_edge) break; // what comes after the last edge is not in the record
      clock = 1;
      #5 clock = 0;
    end
    if (found == 3) $display("@@ edges %0d wrong %0d first %0d", edge_number + 1, wrong, first);
    $finish;
  end
  always @(posedge clock) begin
    edge_number <= edge_number + 1;
    follow(edge_number + 1);
  end
endmodule
"""


@dataclass(frozen=True)
class Part:
    """A netlist to be replayed: module ``top`` of its files, with players for the modules named in ``played``.

    ``models``: Verilog of the library's cells and of the SRAMs; nets in these have no activity.
    """

    top: str
    ports: Sequence[Port]
    netlists: Sequence[Path]
    models: Sequence[Path]
    played: Mapping[str, Sequence[Port]] = field(default_factory=dict)
    clock: str = "clk"


def compiled(part: Part, work: Path, *, window: Window | None = None, optimise: str = "-O1") -> Path:
    """The program that replays a part, made by Verilator in ``work``; raises ReplayFailed.

    With ``window``, it writes activity between these edges. ``optimise``: the C++ compiler's level, -O0 for short ones.
    """
    played = "".join(player(module, all_ports, part.clock) for module, all_ports in part.played.items())
    (work / BENCH).write_text(bench(part.top, part.ports, window, part.clock) + played)
    # Nets outside cells and macros have it all: what is in these is left out.
    quiet = "".join(f'tracing_off -file "{file}"\n' for file in part.models)
    (work / CONFIG).write_text(f"`verilator_config\n{quiet}")
    folder = work / "simulation"
    folder.mkdir(exist_ok=True)
    try:
        root = verilator_root()
    except BuildFailed as problem:
        raise ReplayFailed(str(problem)) from None
    flags = [flag for flag in FLAGS if flag not in ("--x-initial", "--x-assign", "unique")]
    verilate = [str(root / "bin" / "verilator_bin"), "--cc", "--main", "--exe", "--timing", "--top-module", DUT[0]]
    verilate += ["-Mdir", str(folder), "-o", "replay", *flags, "--x-assign", "0", "--x-initial", "0"]
    verilate += ["+1364-2005ext+v", "-Wno-lint", "-Wno-style", "-Wno-SPECIFYIGN"]
    verilate += ["--trace-saif", "--trace-underscore"] if window is not None else []
    verilate += ["-CFLAGS", "--std=c++20 -fcoroutines"]
    verilate += map(str, [work / CONFIG, work / BENCH, *part.netlists, *part.models])
    make = ["make", "-j2", "-C", str(folder), "-f", f"V{DUT[0]}.mk", *MAKE_VARIABLES]
    make += [f"OPT_FAST={optimise}", f"OPT_GLOBAL={optimise}"]
    environment = {**os.environ, "VERILATOR_ROOT": str(root)}
    environment.pop("MAKEFLAGS", None)
    log = work / "compile.log"
    with log.open("w") as out:
        for command in (verilate, make):
            if subprocess.run(command, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False).returncode:
                raise ReplayFailed(f"the netlist of {part.top} cannot be compiled, see {work.name}/{log.name}")
    return folder / "replay"


def run(part: Part, program: Path, records: Path, work: Path, *, timeout: float = 7200.0) -> Outcome:
    """Drive a part with the record ``records``.rec; raises ReplayFailed when it cannot be run.

    Whether the netlist agrees is in the outcome; what differed is in ``work``/replay.log.
    """
    if not Path(f"{records}.rec").is_file():
        raise ReplayFailed(f"there is no record {records.name}.rec of {part.top}")
    log = work / LOG
    command = [str(program.resolve()), f"+records={records.resolve()}"]
    with log.open("w") as out:
        try:
            subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=timeout, cwd=work, check=False)
        except subprocess.TimeoutExpired:
            raise ReplayFailed(f"the netlist of {part.top} was stopped after {timeout:.0f} s") from None
    found = re.search(r"^@@ edges (\d+) wrong (\d+) first (-?\d+)$", log.read_text(), flags=re.M)
    if found is None:
        raise ReplayFailed(f"the replay of {part.top} ended early, see {work.name}/{log.name}")
    edges, wrong, first = (int(value) for value in found.groups())
    bits = Sides(part.ports, part.clock).out_bits
    return Outcome(edges, edges * bits, wrong, None if first < 0 else first)


__all__ = ["BuildFailed", "Outcome", "Part", "Port", "ReplayFailed", "Sides", "compiled", "ports", "recorder", "run"]
