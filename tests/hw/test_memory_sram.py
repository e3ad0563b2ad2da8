"""``Sram``: the same behaviour in Amaranth's simulator and in Verilog under Verilator."""

import json

import pytest
from amaranth.sim import Simulator

from hw.emit import BLACKBOXES, LIBERTY, MACROS, MODELS, emit_verilog
from hw.memory.sram import Sram
from tests.cocotb.runner import build, run
from tests.hw.sram_model import SramModel, stimulus

SHAPES = [
    (16, 24, "1rw", 0),
    (20, 100, "1rw", 10),  # odd depth, mask lanes inside a bank
    (32, 160, "1rw", 160),  # one mask lane over several banks
    (16, 150, "1rw", 0),  # two banks
    (16, 40, "1r1w", 0),
    (16, 160, "1r1w", 8),
    (1024, 96, "1rw", 48),
    (4, 3, "1rw", 0),  # padded to the narrowest macro
]


def make(depth: int, width: int, ports: str, granularity: int) -> Sram:
    return Sram(depth, width, ports=ports, write_granularity=granularity or None)


@pytest.mark.parametrize(("depth", "width", "ports", "granularity"), SHAPES)
def test_pysim(depth, width, ports, granularity):
    """Amaranth's simulator against the model."""
    dut = make(depth, width, ports, granularity)
    model = SramModel(width, ports, granularity)
    output = dut.rdata if ports == "1rw" else dut.r_data
    compared = 0

    async def bench(ctx):
        nonlocal compared
        for inputs in stimulus(depth, width, ports, granularity, 400, seed=1):
            for name, value in inputs.items():
                ctx.set(getattr(dut, name), value)
            await ctx.tick()
            expected = model.step(inputs)
            if expected is not None:
                assert ctx.get(output) == expected
                compared += 1

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert compared > 300


@pytest.mark.parametrize(("depth", "width", "ports", "granularity"), SHAPES)
def test_verilator(depth, width, ports, granularity):
    """The macros' Verilog against the same model with the same stimulus."""
    shape = {"depth": depth, "width": width, "ports": ports, "granularity": granularity, "seed": 1}
    run(
        make(depth, width, ports, granularity),
        "sram",
        "tests.hw.bench_memory",
        parameters=shape,
        tests=["random_accesses"],
    )


def test_contents_are_random_at_power_up():
    """Unwritten words change with the seed (Verilator gives all words of one memory the same value)."""
    made = build(Sram(16, 64), "sram")
    runs = made.simulate("tests.hw.bench_memory", tests=["power_up"], seeds=(1, 2))
    first, second = (each.reports["words"] for each in runs)
    assert 0 not in first and all(a != b for a, b in zip(first, second, strict=True))


def test_back_door():
    """Contents are readable and writable in Verilator when asked for, and in Amaranth's simulator."""
    build(Sram(16, 16), "sram", memories=True).simulate("tests.hw.bench_memory", tests=["back_door"])
    dut = Sram(16, 16)

    async def bench(ctx):
        ctx.set(dut.data[5], 0x1234)
        ctx.set(dut.en, 1)
        ctx.set(dut.addr, 5)
        await ctx.tick()
        assert ctx.get(dut.rdata) == 0x1234

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()


def test_files_describe_the_macros(tmp_path):
    """Every view names every macro, and the Verilog holds instances but no array."""
    verilog = emit_verilog(Sram(256, 200, ports="1r1w", write_granularity=25), "store", out_dir=tmp_path)
    (macro,) = json.loads((tmp_path / MACROS).read_text())
    assert macro["bits"] == 256 * macro["width"] and macro["granularity"] == 25
    for file in (MODELS, BLACKBOXES, LIBERTY):
        assert macro["name"] in (tmp_path / file).read_text()
    text = verilog.read_text()
    assert text.count(macro["name"]) == 200 // macro["width"]
    assert "mem" not in text.replace(macro["name"], "") and "signed" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 16, "width": 8, "ports": "2rw"}, "ports is '2rw'"),
        ({"depth": 16, "width": 10, "write_granularity": 4}, "does not divide"),
        ({"depth": 4096, "width": 8}, "holds 2 to 2048 words"),
        ({"depth": 16, "width": 0}, "width is 0"),
    ],
)
def test_wrong_shapes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sram(**arguments)
