"""The cycle simulator without RTL: its rules, its sums, what a host may ask, what-ifs and page.

That its cycles are the RTL's is shown in tests/cross/test_cycles.py.
"""

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path

import pytest

from flow import cli
from golden.config import ConfigError
from hw.layouts import Dest, Func
from hw.params import from_preset
from hw.program import UNITS, compile_program
from hw.timing import timing
from sim import metrics, whatif
from sim.page import render
from sim.run import HostPlan, Request, Run, RunError
from sim.stages import name, operands
from sim.streams import Pauses, offered, taken
from sim.timing import ArrayUnit, Timer
from sim.whatif_table import lines, table


@cache
def made(preset="micro-k3"):
    """(parameters, timer)."""
    p = from_preset(preset)
    return p, Timer(p, compile_program(p), timing(p))


def run(request, host=None, preset="micro-k3"):
    """A run without tokens."""
    return Run(made(preset)[1], request, host).all()


# --- the array's rules, by hand ---


def command(func, groups=1, blocks=1):
    """An array command."""
    return {"func": func, "groups": groups, "blocks": blocks, "dest": Dest.T0}


def array(*commands):
    """(take, done) of commands that are valid one after the other, from cycle 10 on."""
    p, _ = made()
    unit, cycle, found = ArrayUnit(p, timing(p), None), 10, []
    for one in commands:
        take, done, *_ = unit.run(ArrayUnit.work(p, timing(p), one), cycle, cycle)
        found.append((take, done))
        cycle = take + 1
    return found


def test_words_follow_each_other_and_done_comes_after_the_functions_latency():
    assert array(command(Func.LINEAR, 2, 2)) == [(13, 14)]
    assert array(command(Func.DECAY)) == [(10, 14)]
    groups = made()[0].groups
    assert array(command(Func.EMBED)) == [(10 + groups, 11 + groups)]  # the word is fetched first


def test_groups_are_written_in_order_and_one_per_cycle():
    assert array(command(Func.GATE), command(Func.LINEAR)) == [(10, 13), (13, 14)]
    assert array(command(Func.DECAY), command(Func.GATE)) == [(10, 14), (12, 15)]


def test_conv_groups_keep_away_from_multipliers_and_history():
    assert array(command(Func.CONV, 3)) == [(14, 17)]  # in 10, 12, 14
    assert array(command(Func.SITU, 2), command(Func.CONV)) == [(11, 14), (13, 16)]
    assert array(command(Func.CONV), command(Func.LINEAR, 1, 3), command(Func.CONV)) == [(10, 13), (13, 14), (14, 17)]


# --- sums ---


@pytest.mark.parametrize("preset", ["micro-k3", "nano-k3"])
@pytest.mark.parametrize("position", [0, 1, 63])
def test_every_cycle_of_a_position_is_accounted_for(preset, position):
    _, timer = made(preset)
    of = timer.position(position)
    for unit in UNITS:
        mine = [s for s in of.slices if s.unit == unit]
        for before, after in zip(mine, mine[1:], strict=False):
            assert after.shown == before.take + 1 <= after.valid <= after.take <= after.done
        total = of.units[unit]
        assert total.split.compute + total.split.dependency + total.split.memory == total.busy
        assert total.busy + total.stalled == mine[-1].take
    assert sum(part.cycles for part in metrics.critical_path(of)) == of.end
    assert sum(metrics.by_stage(metrics.critical_path(of)).values()) == of.end


def test_cycles_add_up_and_equal_the_counters():
    result = run(Request([1, 2, 3], count=5))
    found, counters = metrics.cycles(result), result.counters()
    total = found["sim__cycles__total"]
    assert total == counters["cycles"]
    for unit in UNITS:
        kinds = [
            found[f"sim__cycles__{k}__unit:{unit}"] for k in ("compute", "stall__dependency", "stall__memory", "idle")
        ]
        assert sum(kinds) == total and min(kinds) >= 0
        assert sum(counters[unit].values()) == total
        assert found[f"sim__cycles__compute__unit:{unit}"] <= counters[unit]["busy"]
        assert found[f"sim__cycles__idle__unit:{unit}"] == counters[unit]["idle"]
    assert all(0 < share <= 1 for share in metrics.utilisation(result).values())


def test_achieved_is_below_the_roof():
    p, timer = made()
    for roof in metrics.rooflines(p, timer.t, timer.position(40)):
        assert 0 < roof.macs / roof.cycles < roof.roof <= roof.peak


def test_all_commands_have_a_layer_stage_and_operands():
    p, timer = made("nano-k3")
    at = {(s.unit, s.step.label): (name(s.step.label), operands(s)) for s in timer.position(5).slices}
    assert str(at["array", "layer.3.q_nope"][0]) == "layer 3 attention: q_nope"
    assert at["array", "layer.1.expert1"][0].stage == at["vector", "layer.1.routed"][0].stage == "ffn"
    assert {found.stage for found, _ in at.values()} == {"embed", "mix", "attention", "ffn", "head"}
    assert {found.layer for found, _ in at.values()} == {None, *range(p.model.num_hidden_layers)}
    assert re.fullmatch(r"slots 0-1 \* W\[\d+-\d+\] -> T0 \(linear\)", at["array", "layer.3.q_a"][1])
    assert at["kda", "layer.0.read"][1].startswith("sums, v T1, beta T0 -> u, o")


# --- runs ---


def test_a_source_holds_a_beat_and_a_sink_takes_it_when_it_will():
    willing = [True, False, False, True, True].__getitem__
    assert offered(2, 0, willing) == [0, 3]
    assert offered(2, 0, willing, ready_from=2) == [2, 3]  # offered in 0, held until the chip is ready
    assert taken(1, willing) == 3
    assert [Pauses(3, 0.5)(c) for c in range(50)] == [Pauses(3, 0.5)(c) for c in range(50)]


def test_a_token_that_is_not_taken_stops_the_next():
    free = run(Request([1, 2], count=3))
    slow = run(Request([1, 2], count=3), HostPlan(start_at=100, tokens=lambda cycle: cycle >= 5000))
    assert slow.edges[1] == 5000 + 2 and slow.counters()["token_stalls"] > 3000
    assert slow.edges[0] - slow.started == free.edges[0] - free.started


def test_prompt_positions_have_no_head_unless_logits_are_streamed():
    free, streamed = run(Request([1, 2, 3])), run(Request([1, 2, 3], logits=True))
    assert free.steps[0].timing.end < free.steps[2].timing.end < streamed.steps[0].timing.end
    assert [s.valid is None for s in free.steps] == [True, True, False]
    vocab = made()[0].model.vocab_size
    assert streamed.steps[0].timing.end > vocab  # a beat a cycle


@pytest.mark.parametrize(
    "request_,message",
    [
        (Request([]), "the prompt is empty"),
        (Request([512]), "not in the vocabulary"),
        (Request([1], count=0), "at least one token"),
        (Request([1] * 60, count=6), "65 positions do not fit the context of 64"),
    ],
)
def test_runs_that_the_chip_refuses(request_, message):
    with pytest.raises(RunError, match=message):
        run(request_)


def test_start_before_the_prompt_is_in_is_refused():
    with pytest.raises(RunError, match="comes before"):
        run(Request([1, 2, 3]), HostPlan(prompt_at=50, start_at=51))


# --- what if ---


def test_settings_that_rtl_can_be_generated_for_are_no_projection():
    p, _ = made("nano-k3")
    chip = whatif.apply(p, whatif.parse(["array.rows=32", "mla.positions=8"], p))
    assert (chip.p.array_rows, chip.p.mla_positions, chip.projection) == (32, 8, ())
    other = dataclasses.replace(p, array_rows=32, mla_positions=8)
    assert chip.timer().position(99).end == Timer(other, compile_program(other), timing(other)).position(99).end


@pytest.mark.parametrize(
    "setting",
    ["array.rows=64", "mla.positions=3", "kda.rows=2", "vector.norm=2", "overlap=0", "vector.lanes=32"],
)
def test_settings_without_rtl_are_projections(setting):
    p, timer = made("nano-k3")
    chip = whatif.apply(p, whatif.parse([setting], p))
    assert chip.projection == (setting,)
    assert chip.timer().position(127).end != timer.position(127).end


@pytest.mark.parametrize(
    "setting,message",
    [
        ("array.rows", "takes knob=number"),
        ("array.rows=many", "takes knob=number"),
        ("array.row=8", "unknown knob 'array.row': use array.columns, "),
        ("model.colour=3", "unknown knob"),
        ("array.rows=12", "must be a multiple of 8 up to 512"),
        ("array.rows=0", "at least 1"),
        ("mla.positions=300", "1 to 256"),
        ("kda.rows=33", "1 to 32"),
        ("kda.ports=3", "1 or 2"),
        ("vector.norm=-1", "1 to 4,096"),
        ("loop.count=-1", "0 to 4,096"),
        ("kda.write=0", "1 to 4,096"),
        ("array.latency.conv=10000000", "1 to 4,096"),
        ("array.columns=16384", "a multiple of 32 up to 128, the longest row"),
        ("kda.keys=33", "1 to 32"),
        ("vector.score_take=4", "1 to 3"),
        ("array.rows=--5", "takes knob=number"),
        ("array.rows=9999999999", "takes knob=number"),
        ("model.attn_res_block_size=0", "at least 1"),
        ("overlap=2", "0 or 1"),
        ("model.num_experts=33", "no chip can be generated: num_experts"),
    ],
)
def test_impossible_settings_are_one_line(setting, message):
    p, _ = made("nano-k3")
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        whatif.apply(p, whatif.parse([setting], p))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("first,second", [
    ("vector.lanes=8", "vector.passes=1"), ("kda.rows=2", "kda.width=4"), ("kda.ports=2", "kda.write=2"),
    ("array.columns=64", "array.word_blocks=1"), ("array.rows=64", "array.word_groups=1"),
])  # fmt: skip
def test_two_knobs_of_one_number_are_refused(first, second):
    """Neither may be lost without a word, in whichever order they come."""
    p, _ = made("nano-k3")
    for settings in ([first, second], [second, first]):
        with pytest.raises(ConfigError, match="must be left out beside"):
            whatif.apply(p, whatif.parse(settings, p))


@pytest.mark.parametrize("rate", [2, 8])
def test_no_word_comes_sooner_than_the_weight_memory_gives_it(rate):
    """Within a command and from one to the next: a position takes at least its words times the cycles of one."""
    p, timer = made("nano-k3")
    chip = whatif.apply(p, {"array.word": rate})
    words = timer.position(127).units["array"].split.compute
    slow = chip.timer().position(127)
    assert slow.end >= words * rate
    split = slow.units["array"].split
    assert slow.units["array"].busy == split.compute + split.dependency + split.memory
    roof = metrics.rooflines(chip.p, chip.t, slow)[0]
    assert roof.macs / roof.cycles <= roof.roof


def test_the_page_says_the_rows_of_the_projection(tmp_path, capsys):
    page = tmp_path / "p.html"
    assert (
        nanok3("a", "--config", "micro-k3", "--tokens", 1, "--timing-only", "--set", "array.rows=64", "--html", page)
        == 0
    )
    assert "64 rows" in page.read_text()


def test_the_table_has_every_context_and_the_best_three():
    p, _ = made("nano-k3")
    found = lines(p)
    assert len(found) > 10 and {one.chip.projection == () for one in found} == {True, False}
    assert found[0].cycles[128] == made("nano-k3")[1].position(127).end
    text = table(p)
    assert "| 1 | 64 | 128 | 256 |" in text and re.search(r"^3\. .* cycles", text, re.M)


def test_the_committed_table_is_todays():
    text = (Path(__file__).parents[2] / "docs" / "what-if.md").read_text()
    assert text == table(from_preset("nano-k3")), "write it again: nanok3 sim --what-if docs/what-if.md"


# --- page ---


def test_the_page_is_one_file_that_draws_every_command():
    p, timer = made()
    result = run(Request([1, 2], count=3))
    page = render("micro-k3", p, timer.t, result, {"rows": 16})
    assert "http" not in page and "<script" not in page and "src=" not in page
    drawings = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.S)]
    tips = {tip.text for svg in drawings for tip in svg.iter("title")}
    for s in result.steps[-1].timing.slices:
        assert any(tip.startswith(f"{name(s.step.label)}\n{operands(s)}\n") for tip in tips)


# --- the command ---


def nanok3(*arguments):
    """Exit code of a command."""
    return cli.run(["sim", *map(str, arguments)])


def test_the_command_gives_the_generators_tokens_and_its_own_cycles(capsys, tmp_path):
    asked = ["If", "--tokens", 4, "--config", "micro-k3", "--json"]
    assert nanok3(*asked, "--trace", tmp_path / "t.pftrace", "--html", tmp_path / "p.html") == 0
    found = json.loads(capsys.readouterr().out)
    assert cli.run(["generate", "If", "--tokens", "4", "--config", "micro-k3", "--on", "twin", "--json"]) == 0
    twin = json.loads(capsys.readouterr().out)
    assert (found["text"], found["token_ids"]) == (twin["text"], twin["token_ids"])
    assert found["counters"]["tokens"] == 4 and found["projection"] == []
    assert found["metrics"]["sim__cycles__total"] == found["counters"]["cycles"]
    assert {"sim__cycles__stall__memory", "sim__cycles__stall__dependency"} <= found["metrics"].keys()
    assert (tmp_path / "t.pftrace").stat().st_size and (tmp_path / "p.html").stat().st_size
    assert nanok3(*asked, "--timing-only") == 0
    only = json.loads(capsys.readouterr().out)
    assert only["token_ids"] == [] and only["counters"] == found["counters"]


@pytest.mark.parametrize(
    "arguments,message",
    [
        ([], "give a prompt"),
        (["a", "--config", "micro-k3", "--set", "speed=9"], "unknown knob 'speed'"),
        (["a", "--config", "nano-kpu", "--timing-only"], "no chip can be generated"),
        (["a", "--config", "micro-k3", "--tokens", 99], "do not fit the context of 64"),
        (["a", "--config", "micro-k3", "--trace", "/proc/none/x"], "cannot write"),
        (["a", "--config", "micro-k3", "--html", "/proc/none/x"], "cannot write"),
        (["a", "--config", "micro-k3", "--html", "x" * 300], "cannot write"),
        (["a", "--config", "micro-k3", "--trace", "x" * 300], "cannot write"),
        (["--config", "micro-k3", "--what-if", "x" * 300], "cannot write"),
        (["a", "--config", "micro-k3", "--bench", "--set", "overlap=0"], "a projection has none"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    assert nanok3(*arguments) == 2
    captured = capsys.readouterr()
    assert not captured.out  # it is found before the run
    lines_ = captured.err.strip().splitlines()
    assert message in lines_[-1] and lines_[-1].startswith("nanok3: ")
