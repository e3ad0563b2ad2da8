"""The files that describe an SRAM macro to other tools: behavioural Verilog, black-box Verilog, Liberty.

Pins of every macro (``MacroSpec.pins``), all active high and sampled at the rising edge of ``clk``:

* ``1rw``: en, we, [wmask], addr, wdata -> rdata. ``en & ~we`` reads, ``en & we`` writes the lanes of wmask.
* ``1r1w``: r_en, r_addr -> r_data and w_en, [wmask], w_addr, w_data. A read of the word written in the same cycle
  returns the old word.

The output holds the word of the last read. Contents and output are random until written and read.
"""

from collections.abc import Iterable

from hw.memory.macro_model import DRIVE_NS_PER_FF, PIN_ENERGY_FRACTION, SLEW_5FF_NS, SLEW_500FF_NS, MacroSpec, cost

PUBLIC_DEFINE = "NANOK3_SRAM_PUBLIC"
LIBRARY = "nanok3_sram"


def _ports(spec: MacroSpec, *, reg_output: bool) -> str:
    """Verilog port declarations."""
    lines = []
    for name, direction, width in spec.pins():
        kind = "output reg" if direction == "output" and reg_output else direction
        bus = f" [{width - 1}:0]" if width > 1 or name not in ("clk", "en", "we", "r_en", "w_en") else ""
        lines.append(f"  {kind}{bus} {name}")
    return ",\n".join(lines)


def _write_statements(spec: MacroSpec, addr: str, data: str) -> list[str]:
    """Assignments of one write, by lane when there is a mask."""
    if not spec.lanes:
        return [f"mem[{addr}] <= {data};"]
    step = spec.granularity
    part = [f"[{lane * step + step - 1}:{lane * step}]" for lane in range(spec.lanes)]
    return [f"if (wmask[{lane}]) mem[{addr}]{part[lane]} <= {data}{part[lane]};" for lane in range(spec.lanes)]


def behavioural(spec: MacroSpec) -> str:
    """Verilog model of one macro.

    The storage is an array named ``mem``; compiled with the define ``NANOK3_SRAM_PUBLIC`` it is public in Verilator, so
    that a bench can load it through the back door. It has no initial block: Verilator fills it with random bits when
    built with ``--x-initial unique`` and run with ``+verilator+rand+reset+2``.
    """
    array = f"reg [{spec.width - 1}:0] mem [0:{spec.depth - 1}]"
    if spec.ports == "1rw":
        body = ["if (en) begin", "  if (we) begin"]
        body += [f"    {line}" for line in _write_statements(spec, "addr", "wdata")]
        body += ["  end else begin", "    rdata <= mem[addr];", "  end", "end"]
    else:
        body = ["if (r_en) r_data <= mem[r_addr];", "if (w_en) begin"]
        body += [f"  {line}" for line in _write_statements(spec, "w_addr", "w_data")]
        body += ["end"]
    always = "\n".join(f"    {line}" for line in body)
    return (
        f"module {spec.name} (\n{_ports(spec, reg_output=True)}\n);\n"
        f"`ifdef {PUBLIC_DEFINE}\n  {array} /* verilator public_flat_rw */;\n`else\n  {array};\n`endif\n"
        f"  always @(posedge clk) begin\n{always}\n  end\nendmodule\n"
    )


def blackbox(spec: MacroSpec) -> str:
    """Verilog declaration of one macro without contents, for synthesis."""
    return f"(* blackbox *)\nmodule {spec.name} (\n{_ports(spec, reg_output=False)}\n);\nendmodule\n"


def _constraint(kind: str, value: float) -> str:
    return (
        f'timing() {{ related_pin : "clk"; timing_type : {kind}_rising;'
        f' rise_constraint(scalar) {{ values("{value:.3f}"); }} fall_constraint(scalar) {{ values("{value:.3f}"); }} }}'
    )


def _power(rise: float, fall: float, when: str = "") -> str:
    condition = f'when : "{when}"; ' if when else ""
    return (
        f'internal_power() {{ {condition}rise_power(scalar) {{ values("{rise:.3f}"); }}'
        f' fall_power(scalar) {{ values("{fall:.3f}"); }} }}'
    )


def _clock_pin(spec: MacroSpec) -> list[str]:
    """The clock pin with the access energy at its rising edge, by which port is enabled."""
    model = cost(spec)
    if spec.ports == "1rw":
        cases = [("en", model.read_energy_fj), ("!en", 0.0)]
    else:
        cases = [
            ("r_en & !w_en", model.read_energy_fj),
            ("!r_en & w_en", model.write_energy_fj),
            ("r_en & w_en", model.read_energy_fj + model.write_energy_fj),
            ("!r_en & !w_en", 0.0),
        ]
    lines = [f"direction : input; clock : true; capacitance : {model.clock_pin_ff:.3f};"]
    return lines + [_power(energy, 0.0, when) for when, energy in cases]


def _input_pin(spec: MacroSpec) -> list[str]:
    model = cost(spec)
    pin_energy = PIN_ENERGY_FRACTION * model.read_energy_fj
    return [
        f"direction : input; capacitance : {model.signal_pin_ff:.3f};",
        _constraint("setup", model.setup_ns),
        _constraint("hold", model.hold_ns),
        _power(pin_energy, pin_energy),
    ]


def _output_pin(spec: MacroSpec) -> list[str]:
    """Output with its delay and slew as tables over the load at 0 or 5 and at 500 fF."""
    model = cost(spec)
    loaded = model.clk_to_q_ns + DRIVE_NS_PER_FF * model.max_load_ff
    delay = f'index_1("0.000, {model.max_load_ff:.3f}"); values("{model.clk_to_q_ns:.4f}, {loaded:.4f}");'
    slew = f'index_1("5.000, {model.max_load_ff:.3f}"); values("{SLEW_5FF_NS:.4f}, {SLEW_500FF_NS:.4f}");'
    tables = "".join(f" cell_{edge}(load) {{ {delay} }}" for edge in ("rise", "fall"))
    tables += "".join(f" {edge}_transition(load) {{ {slew} }}" for edge in ("rise", "fall"))
    return [
        f"direction : output; max_capacitance : {model.max_load_ff:.3f};",
        f'timing() {{ related_pin : "clk"; timing_type : rising_edge; timing_sense : non_unate;{tables} }}',
    ]


def _cell(spec: MacroSpec) -> str:
    """Liberty cell of one macro."""
    model = cost(spec)
    lines = [
        f"  cell({spec.name}) {{",
        f"    area : {model.area_um2:.3f};",
        "    interface_timing : true;",
        f"    memory() {{ type : ram; address_width : {spec.address_width}; word_width : {spec.width}; }}",
        f"    cell_leakage_power : {model.leakage_nw:.3f};",
    ]
    for name, direction, width in spec.pins():
        if name == "clk":
            head, content = f"pin({name})", _clock_pin(spec)
        else:
            head = f"pin({name})" if name in ("en", "we", "r_en", "w_en") else f"bus({name})"
            content = _input_pin(spec) if direction == "input" else _output_pin(spec)
        if head.startswith("bus"):
            content = [f"bus_type : bus_{width};", *content]
        lines += [f"    {head} {{", *(f"      {line}" for line in content), "    }"]
    return "\n".join([*lines, "  }"])


def liberty(specs: Iterable[MacroSpec]) -> str:
    """Liberty library of all given macros, in the units and thresholds of Nangate's typical library (ns, fF, fJ,
    nW)."""
    specs = sorted(set(specs))
    widths = sorted({width for spec in specs for name, _, width in spec.pins() if name not in ("clk", "en", "we")})
    types = "\n".join(
        f"  type(bus_{w}) {{ base_type : array; data_type : bit; bit_width : {w}; bit_from : {w - 1}; bit_to : 0;"
        " downto : true; }"
        for w in widths
    )
    thresholds = "\n".join(
        f"  {kind}_threshold_pct_{edge} : {value};"
        for kind, value in (("slew_lower", 30), ("slew_upper", 70), ("input", 50), ("output", 50))
        for edge in ("rise", "fall")
    )
    cells = "\n".join(_cell(spec) for spec in specs)
    return f"""library({LIBRARY}) {{
  technology(cmos);
  delay_model : table_lookup;
  comment : "abstract SRAM macros, hw/memory/macro_model.py";
  time_unit : "1ns";
  voltage_unit : "1V";
  current_unit : "1uA";
  leakage_power_unit : "1nW";
  pulling_resistance_unit : "1kohm";
  capacitive_load_unit(1, ff);
  nom_process : 1;
  nom_temperature : 25.0;
  nom_voltage : 1.1;
  operating_conditions(typical) {{ process : 1; temperature : 25.0; voltage : 1.1; tree_type : balanced_tree; }}
  default_operating_conditions : typical;
{thresholds}
  slew_derate_from_library : 1.0;
  default_cell_leakage_power : 0;
  default_fanout_load : 1;
  default_max_transition : 0.2;
  lu_table_template(load) {{ variable_1 : total_output_net_capacitance; index_1("0.000, 500.000"); }}
{types}
{cells}
}}
"""
