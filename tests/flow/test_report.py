"""The report: what it reads, what it says of a run and of what a run does not have, and runs side by side."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flow import check, pipeline
from flow.cli import run as nanok3
from flow.report import area, compare, derived, keep, page, paths, pictures
from flow.report.headline import ANNOUNCED, headline
from flow.report.run import STAGE_OF, ReportError, load
from tests.flow import made_run

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a page loads, its pictures by their titles, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.pictures: dict[str, str] = {}
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.loads += [found[key] for key in ("src", "href", "srcset", "data") if key in found]
        if tag == "img":
            self.pictures[found["alt"]] = found["src"]
        assert tag not in ("script", "link", "iframe")

    def handle_data(self, data):
        self.words += data


@pytest.fixture
def whole(tmp_path):
    return made_run.make(tmp_path / "micro-k3")


@pytest.fixture
def decode(tmp_path):
    """A decode recorded on the made-up run's Verilog: 1,000 cycles per token at context 128."""
    file = tmp_path / "decode.json"
    cycles = {"mean": 1010.5, "at_context": {"128": 1000}}
    made_run.write(file, {"verilog_sha256": made_run.VERILOG_SHA256, "decode": {"cycles_per_token": cycles}})
    return file


def lines(run):
    return {line.name: line for line in headline(run)}


def test_stages_are_the_flow_s():
    for step in pipeline.STEPS:
        assert getattr(step, "stage", STAGE_OF[step.name]) == STAGE_OF[step.name]
    documented = re.findall(r"^\| `(\w+)` \| .* \| `(\w+)` \|$", (ROOT / "docs/flow.md").read_text(), flags=re.M)
    assert dict(documented) == STAGE_OF


def test_headline_of_a_signed_off_chip(whole, decode):
    found = lines(derived.complete(load(whole), decode))
    assert found["die"].value == pytest.approx(0.04)
    assert found["cells"].value == pytest.approx(0.0192)  # of sign-off, not of synthesis
    assert found["macros at 1 Mbit/mm2"].value == pytest.approx(0.016384)
    assert found["cells + macros at 1 Mbit/mm2"].announced == pytest.approx(3.97)
    assert found["worst setup slack at 10 ns"].announced == pytest.approx(2.29)
    assert found["worst setup slack at 10 ns"].value == 1.75
    assert found["worst hold slack"].value == 0.042
    assert found["tokens per second"].value == pytest.approx(1e5)
    assert round(found["tokens per second"].announced) == 8721
    assert found["power"].value == pytest.approx(12.5)
    assert found["energy per token"].value == pytest.approx(0.0125 * 1000 * 10)  # W, cycles, ns
    assert "decode of 4 tokens on the netlist, 98.0 % of pins" in found["energy per token"].note
    for line in found.values():
        assert line.comparable.split(":")[0] in ("yes", "in part", "no")
        assert line.note


def test_the_last_stage_counts(tmp_path):
    run = load(made_run.make(tmp_path / "a", to="global_route"))
    assert (run.last("timing__setup__ws").value, run.last("timing__setup__ws").stage) == (2.0, "globalroute")
    assert run.last("timing__recovery__ws") is None


def test_a_decode_of_other_verilog_does_not_count(whole, decode):
    recorded = json.loads(decode.read_text())
    made_run.write(decode, recorded | {"verilog_sha256": "ef" * 32})
    found = lines(derived.complete(load(whole), decode))
    assert found["tokens per second"].value is None and "other Verilog (efefefefefef)" in found["cycles per token"].note
    assert found["energy per token"].value is None
    assert found["power"].value == pytest.approx(12.5)


def test_a_step_s_own_decode_counts_before_a_recorded_one(whole, decode):
    made_run.measure(whole, netlistsim__decode__cycles_per_token=1001)
    found = lines(derived.complete(load(whole), decode))["cycles per token"]
    assert (found.value, found.note) == (1001, "decode of the routed netlist")


def test_without_a_context_the_mean_counts(whole, decode):
    recorded = json.loads(decode.read_text())
    recorded["decode"]["cycles_per_token"]["at_context"] = {}
    made_run.write(decode, recorded)
    assert lines(derived.complete(load(whole), decode))["cycles per token"].value == 1010.5


def test_a_unit_stands_alone(tmp_path):
    found = lines(derived.complete(load(made_run.make(tmp_path / "u", unit="router"))))
    assert "tokens per second" not in found and found["power"].value == pytest.approx(12.5)
    assert all(line.announced is None and line.comparable == "" for line in found.values())


def test_blocks_are_opened(tmp_path):
    """A chip with two copies of a block: the block's outline is not area of macros, what is in it counts twice."""
    block = made_run.make(tmp_path / "micro-k3.tile", unit="tile")
    made_run.measure(block, finish__design__die__area=2000.0, finish__design__instance__area__stdcell=1500.0)
    made_run.measure(block, finish__design__instance__area__macros=100.0)
    chip = made_run.make(tmp_path / "micro-k3")
    made_run.change(chip, blocks=["micro-k3.tile"])
    made_run.write(chip / "synth" / "cells.json", {"cells": {"tile": 2, "NAND2_X1": 7}})
    found = lines(derived.complete(load(chip)))
    assert found["cells"].value == pytest.approx((19200 + 2 * 1500) * 1e-6)
    assert found["SRAM macros, our model"].value == pytest.approx((9100 - 2 * 2000 + 2 * 100) * 1e-6)
    assert found["power"].value == pytest.approx(12.5 + 2 * 12.5)
    power = derived.power_table(load(chip))
    assert power["unit"].tolist() == ["array", "vector", "micro-k3", "tile x2"]
    assert power["internal_w"][3] == pytest.approx(2 * 9e-3)
    made_run.measure(block, finish__power__total=None)
    assert lines(derived.complete(load(chip)))["power"].value is None
    made_run.change(chip, blocks=["micro-k3.tile", "micro-k3.gone"])  # one was not kept: synthesis saw all of it
    found = lines(derived.complete(load(chip)))["cells"]
    assert (found.value, found.note) == (pytest.approx(0.0180005), "after synthesis")


@pytest.mark.parametrize(
    ("value", "shown"), [(1234567.0, "1,234,567.000"), (3.4694, "3.469"), (0.0078167, "0.00782"), (0.0, "0.000")]
)
def test_small_figures_keep_three_digits(value, shown, whole):
    assert lines(load(whole))["die"].shown(value) == shown


def test_the_page_has_everything_and_loads_nothing(tmp_path, decode):
    run = derived.complete(load(made_run.make(tmp_path / "a", to="layout")), decode)
    text = page.html(run)
    shown = Page(text)
    assert shown.loads and all(source.startswith("data:image/") for source in shown.loads)
    assert not re.search(r"url\(|@import|https?://", text)
    assert set(shown.pictures) == {
        "Layout",
        "Placement density",
        "Routing congestion",
        "Clock tree",
        "Slack of all endpoints",
        "Area by unit",
        "Power by unit",
    }
    for warning in ("bins are <full>", "bins are fuller", "a plain one", "no clock on a & b"):
        assert warning in shown.words
    assert "bins are &lt;full&gt;" in text
    for words in ("signed off", "openroad", "made up", "finish__power__total", "4,096.0", "nano-kpu", "98.0 % of pins"):
        assert words in shown.words
    assert "None:" not in shown.words.replace("None: no decode", "")


def test_the_page_tells_when_another_netlist_was_simulated(whole):
    def said():
        return " ".join(Page(page.html(load(whole))).words.split())

    assert (
        "4 tokens, 12,345 clock edges, 987,654 bits compared with the RTL's, 0 edges differ; the netlist is the"
        in said()
    )
    made_run.measure(whole, netlistsim__netlist__sha256="ef" * 32, netlistsim__edges__wrong=3)
    assert "3 edges differ; the netlist is not the one that was signed off." in said()


def test_the_page_tells_how_a_large_netlist_was_simulated(whole):
    """In parts, as synthesised, and compared with what was laid out."""
    made_run.measure(whole, netlistsim__parts=79, netlistsim__netlist="globally routed")
    words = " ".join(Page(page.html(load(whole))).words.split())
    assert "12,345 clock edges, in 79 parts, 987,654 bits" in words
    assert (
        "the one that was globally routed, compared cell by cell with the one of synthesis that was simulated." in words
    )


def test_the_page_says_what_is_not_there(tmp_path):
    shown = Page(page.html(load(made_run.make(tmp_path / "a", to="synth"))))
    assert "Before layout" in shown.words
    assert set(shown.pictures) == {"Area by unit"}
    for step in ("layout", "placement", "global_route", "clock_tree", "signoff", "power"):
        assert f"None: step {step} has not run; this run is pre-layout." in shown.words
    assert "Timing after synthesis, which keeps the worst setup path only" in shown.words


def test_until_sign_off_the_global_route_s_timing_counts(tmp_path):
    folder = made_run.make(tmp_path / "a", to="signoff")
    for name in ("paths.json", "slacks.csv"):
        (folder / "signoff" / name).rename(folder / "global_route" / name)
    shown = Page(page.html(load(folder))).words
    assert "800 endpoints, 0 with negative slack; globally routed: real clock tree" in shown
    assert "Timing globally routed: real clock tree" in shown
    assert len(paths.worst(load(folder))) == 20


def test_warnings_beyond_count_are_told(whole):
    report = json.loads((whole / "report.json").read_text())
    report["steps"][3]["warnings"] = [f"[WARNING DPL-0001] cell {i // 2}" for i in range(1000)]
    made_run.write(whole / "report.json", report)
    (found,) = [w for w in page.warnings(load(whole)) if w.step == "placement"]
    assert found.listed == [(f"cell {i}", 2) for i in range(200)] and found.more == 600
    assert "600 more are in placement/log." in Page(page.html(load(whole))).words


def test_a_clock_that_is_not_met_is_said(whole, decode):
    assert "NOT MET" not in lines(derived.complete(load(whole), decode))["tokens per second"].note
    made_run.measure(whole, finish__timing__setup__ws=-0.1)
    assert "NOT MET" in lines(derived.complete(load(whole), decode))["tokens per second"].note


def test_a_step_that_left_no_file_is_named(whole):
    (whole / "placement" / "density.csv").unlink()
    assert "None: step placement left no density.csv." in Page(page.html(load(whole))).words


def test_worst_paths_in_words(whole):
    found = paths.worst(load(whole))
    assert [path.check for path in found] == ["setup"] * 10 + ["hold"] * 10
    assert [path.slack_ns for path in found[:10]] == sorted(path.slack_ns for path in found[:10])
    assert found[0].words == (
        "From register sum[4] in array/row_3 through array/row_3 (0.17 ns, 1 cell, 1 to buffer), then vector (7.43 ns,"
        " 1 cell), to a register in vector."
    )
    assert found[0].delay_ns == pytest.approx(7.6) and found[0].wire_ns == pytest.approx(0.02 + 0.4 + 0.03)
    assert found[10].words == "From port in_data[0] through micro-k3 (0.04 ns, wires only), to a register in micro-k3."


def test_the_worst_ten_of_all_corners(whole):
    kept = json.loads((whole / "signoff" / "paths.json").read_text())
    slow = [path | {"slack_ns": path["slack_ns"] - 0.045} for path in kept["typical"]["setup"]]
    made_run.write(whole / "signoff" / "paths.json", kept | {"slow": {"setup": slow}})
    found = paths.worst(load(whole))[:10]
    assert [path.corner for path in found].count("slow") == 7
    assert found[0].corner == "slow"


def test_the_path_of_synthesis_in_words(tmp_path):
    (path,) = paths.worst(load(made_run.make(tmp_path / "a", to="synth")))
    assert (path.check, path.slack_ns, path.wire_ns) == ("setup", 2.5, None)
    assert path.delay_ns == pytest.approx(7.4102)
    assert path.words == (
        "From a register in sequencer through sequencer (0.11 ns, 1 cell, 1 to buffer), then vector (7.30 ns, 1 cell),"
        " to a register in vector."
    )


def test_sram_and_port_ends_are_named():
    found = paths._path(
        "typical",
        "setup",
        {
            "slack_ns": 1.0,
            "stages": made_run.stages(
                ("sram_1rw_64x96", "mla/bank/store_2/rd[1]", "mla/bank/word[1]", 0.0), ("", "y", "y", 0.2)
            ),
        },
        "top",
    )
    assert (found.start, found.end) == ("SRAM store_2 (sram_1rw_64x96) in mla/bank", "port y")


def test_boxes_add_up():
    total = 1e-6 * (made_run.TREE["area_um2"] + made_run.TREE["macro_area_um2"])
    outer = area.boxes(made_run.TREE)
    assert sum(box.size for box in outer) == pytest.approx(total)
    for box in outer:
        assert not box.inside or sum(part.size for part in box.inside) == pytest.approx(box.size)
    assert {box.name for box in outer if box.sram} == {"sram_1rw_256x64_by_2"}
    placed = pictures._place(outer, 0, 0, 4, 3)
    for box, (_, _, width, height) in placed:
        assert width * height == pytest.approx(12 * box.size / total)


def test_maps_put_each_bin_in_its_place():
    table = {"x_um": np.array([0.0, 5.0, 0.0]), "y_um": np.array([0.0, 0.0, 5.0])}
    xs, ys, found = pictures.grid(table, np.array([1.0, 2.0, 3.0]))
    assert list(xs) == [0, 5] and list(ys) == [0, 5]
    assert found[0].tolist() == [1, 2] and found[1, 0] == 3 and np.isnan(found[1, 1])


def test_merged_maps_keep_the_fullest_bin():
    values = np.random.default_rng(3).random((37, 101))
    values[5, 7] = np.nan
    found = pictures.merged(values, 10)
    assert found.shape == (10, 10)
    assert np.nanmax(found) == np.nanmax(values)
    assert found[0, 0] == np.nanmax(values[:4, :11])
    assert np.isnan(pictures.merged(np.full((3, 3), np.nan), 2)).all()


def test_tracks_that_are_wanted_where_there_are_none():
    table = {
        "horizontal_usage": np.array([0.0, 3.0, 3.0]),
        "horizontal_capacity": np.array([0.0, 0.0, 6.0]),
    }
    used = page._used(table, "horizontal")
    assert np.isnan(used[0]) and used[1] > 1 and used[2] == 0.5


def test_a_kept_run_stands_alone_and_is_small(tmp_path, decode):
    run = derived.complete(load(made_run.make(tmp_path / "a", to="layout")), decode)
    written = keep.write(run, tmp_path / "kept")
    files = sorted(file.name for file in written.parent.iterdir())
    assert files == ["layout.jpg", "report.html", "report.json"]
    assert sum(file.stat().st_size for file in written.parent.iterdir()) < 2_000_000
    again = derived.complete(load(tmp_path / "kept"))
    assert headline(again) == headline(run)
    before = written.read_text()
    assert keep.write(again, None) == written and written.read_text() == before  # it cannot be made again from this
    beside = Page(compare.html([again, run], ["kept", "new"]))
    assert "Layout" in beside.pictures and "its own page" in beside.words
    with pytest.raises(ReportError, match="is a kept run"):
        keep.write(again, tmp_path / "other")
    (tmp_path / "kept" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="notes.txt"):
        keep.write(run, tmp_path / "kept")


def test_the_layout_is_scaled_until_it_is_small(tmp_path):
    noise = np.random.default_rng(1).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "layout.png")
    uri = pictures.layout(tmp_path / "layout.png", "").uri
    data = base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))
    assert len(data) <= pictures.LAYOUT_BYTES
    assert Image.open(io.BytesIO(data)).width > 300


def test_pages_do_not_change_from_one_time_to_the_next(whole):
    assert page.html(load(whole)) == page.html(load(whole))


def two(tmp_path):
    first, second = made_run.make(tmp_path / "a"), made_run.make(tmp_path / "b", to="signoff")
    made_run.measure(second, finish__timing__hold__ws=-0.01, finish__design__instance__area__stdcell=21120.0)
    return [derived.complete(load(folder)) for folder in (first, second)]


def test_runs_side_by_side(tmp_path):
    runs = two(tmp_path)
    names = compare.names(runs)
    assert names == [str(tmp_path / "a"), str(tmp_path / "b")]  # of one design: told apart by their folders
    found = compare.plain(runs, names)
    assert found["headline"]["cells"]["values"] == pytest.approx([0.0192, 0.02112])
    assert found["headline"]["power"]["values"] == [pytest.approx(12.5), None]
    assert found["seconds"]["power"] == [4096.0, None]
    text = compare.text(runs, names)
    assert re.search(r"cells \(mm2\) +0.0192 +0.0211 \(\+10.0 %\)", text)
    assert re.search(r"worst hold slack \(ns\) +0.0420 +-0.0100 \(-0.052\)", text)
    assert "synth__timing__setup__ws " not in text  # the same in both
    shown = Page(compare.html(runs, names))
    assert "+10.0 %" in shown.words and "None: step layout has not run; this run is signed off." in shown.words
    assert all(source.startswith("data:") for source in shown.loads)


def test_designs_that_differ_are_called_by_their_names(tmp_path):
    runs = [load(made_run.make(tmp_path / "a")), load(made_run.make(tmp_path / "b", unit="router"))]
    assert compare.names(runs) == ["micro-k3", "micro-k3.router"]
    assert compare.headlines(runs)[1][0].announced == ANNOUNCED["cells_mm2"]


def test_command_writes_the_page(whole, capsys):
    assert nanok3(["report", str(whole)]) == 0
    assert (whole / "report.html").stat().st_size > 100_000
    out = capsys.readouterr().out
    assert out.startswith("micro-k3, signed off") and "8,721" in out
    assert nanok3(["report", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["headline"][0]["name"] == "die"


def test_command_compares(tmp_path, capsys):
    two(tmp_path)
    out = tmp_path / "new" / "both.html"
    assert nanok3(["report", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["states"] == ["signed off", "signed off"]
    assert out.read_text().startswith("<!DOCTYPE html>")


def broken(folder, how):
    report = folder / "report.json"
    if how == "no report":
        report.unlink()
    elif how == "not JSON":
        report.write_text("{")
    elif how == "no metrics":
        made_run.change(folder, metrics=None)
    elif how == "infinite":
        report.write_text(report.read_text().replace("0.0125", "Infinity"))
    elif how == "columns":
        (folder / "power" / "power.csv").write_text("unit,watts\narray,1\n")
    elif how == "short line":
        (folder / "power" / "power.csv").write_text("unit,internal_w,switching_w,leakage_w\narray,1\n")
    elif how == "no number":
        (folder / "power" / "power.csv").write_text("unit,internal_w,switching_w,leakage_w\narray,1,much,1\n")
    elif how == "picture":
        (folder / "layout").mkdir()
        (folder / "layout" / "layout.png").write_text("not a picture")
    elif how == "paths":
        made_run.write(folder / "signoff" / "paths.json", {"typical": {"setup": [{"slack_ns": 1}]}})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no report", "holds no report.json"),
        ("not JSON", "report.json cannot be read"),
        ("no metrics", "report.json: metrics must be keys and values"),
        ("infinite", "report.json: metrics.finish__power__total must be a number or text"),
        ("columns", "has the columns unit,watts"),
        ("short line", "line 2: 2 values for 4 columns"),
        ("no number", "power.csv column switching_w"),
        ("picture", "layout.png is not a picture"),
        ("paths", "signoff/paths.json: typical.setup[0].stages is missing"),
    ],
)
def test_bad_input_is_one_line(whole, how, message, capsys):
    broken(whole, how)
    assert nanok3(["report", str(whole)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and message in errors[0]
    assert not (whole / "report.html").exists()


def test_bad_arguments_are_one_line(whole, decode, tmp_path, capsys):
    unit = made_run.make(tmp_path / "unit", unit="router")
    (tmp_path / "other.json").write_text("{}")
    for arguments, message in (
        ([str(tmp_path / "nowhere")], "holds no report.json"),
        ([str(whole), "--decode", str(tmp_path / "nowhere")], "--decode: no file"),
        (
            [str(whole), "--decode", str(tmp_path / "other.json")],
            "other.json: verilog_sha256 is missing; figures are what",
        ),
        ([str(unit), "--decode", str(decode)], "--decode: only whole chips decode, and micro-k3.router is a unit"),
    ):
        assert nanok3(["report", *arguments]) == 2
        errors = capsys.readouterr().err.splitlines()
        assert len(errors) == 1 and message in errors[0]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "the whole must be keys and values"),
        ({"verilog_sha256": None}, "verilog_sha256 must be text"),
        ({"verilog_sha256": "a"}, "holds no cycles per token"),  # figures of synthesis alone
        ({"verilog_sha256": "a", "decode": {"cycles_per_token": None}}, "holds no cycles per token"),  # one token
        ({"verilog_sha256": "a", "decode": {"cycles_per_token": 1000}}, "must be keys and values or null"),
        ({"verilog_sha256": "a", "decode": {"cycles_per_token": {"mean": "x", "at_context": {}}}}, "cycles_per_token"),
        ({"verilog_sha256": "a", "decode": {"cycles_per_token": {"mean": 0, "at_context": {}}}}, "must be above 0"),
    ],
)
def test_a_file_that_holds_no_decode_is_refused(whole, tmp_path, record, message, capsys):
    made_run.write(tmp_path / "d.json", record)
    assert nanok3(["report", str(whole), "--decode", str(tmp_path / "d.json")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and "d.json" in errors[0] and message in errors[0]


# ---------------------------------------------------------------- files that are broken in any way

NESTED = "[" * 100_000 + "]" * 100_000
BYTES = b"\xff\xfe\x00,\x80\n"
TABLES = {
    "placement/density.csv": page.density,
    "global_route/congestion.csv": page.congestion,
    "clock_tree/clock_tree.csv": page.clock_tree,
    "signoff/slacks.csv": page.slacks,
    "power/power.csv": page.power_units,
}
JSON = {
    "report.json": lambda run: (headline(run), page.corners(run), page.warnings(run), check.check(run, check.read())),
    "signoff/paths.json": paths.worst,
    "synth/synthesis.json": lambda run: (page.treemap(run, area.tree(run)), [*area.units(area.tree(run))]),
    "synth/step.json": lambda run: derived.complete(run, run.folder / "decode.json"),
    "synth/cells.json": lambda run: derived.complete(run),
    "decode.json": lambda run: derived.complete(run, run.folder / "decode.json"),
}


def read(folder, name, reader):
    """A part of the page made of one file: it is made, or the file is named in one line."""
    try:
        reader(load(folder))
    except ReportError as problem:
        assert name in str(problem) and "\n" not in str(problem)
        return False
    return True


@pytest.mark.parametrize(("name", "reader"), TABLES.items(), ids=TABLES)
def test_a_broken_table_is_named(whole, name, reader):
    file = whole / name
    head, *lines = file.read_text().splitlines()
    last = lines[0].rpartition(",")[0]  # the first line without its last value, which is a number in all but one table
    broken = {
        "empty": "",
        "no head": "\n".join(lines),
        "cut within a line": "\n".join([head, *lines[:3], last]),
        "a column less": "\n".join(line.rpartition(",")[0] for line in [head, *lines]),
        "a column more": "\n".join(f"{line},1" for line in [head, *lines]),
        "columns in another order": "\n".join(",".join(line.split(",")[::-1]) for line in [head, *lines]),
        "other separators": file.read_text().replace(",", ";"),
        "an open quote": head + '\n"' + "\n".join(lines),
        "a zero byte": "\n".join([head, "\0," + lines[0]]),
    }
    number = next(i for i, word in enumerate(lines[0].split(",")) if re.fullmatch(r"-?[\d.e-]+", word))
    for word in ("much", "null", "", "nan", "inf", "1e999", "0x10"):
        values = lines[0].split(",")
        values[number] = word
        broken[word or "nothing"] = "\n".join([head, ",".join(values), *lines[1:]])
    for how, text in broken.items():
        file.write_text(text)
        assert not read(whole, name, reader), how
    file.write_bytes(BYTES)
    assert not read(whole, name, reader)
    file.write_text(head + "\n")
    assert read(whole, name, reader), "a table with no line is one"


def test_bins_without_area_are_refused(whole):
    made_run.table(
        whole / "placement" / "density.csv", ",".join(page.DENSITY), [(0, 0, 10, 0, 0.5), (10, 0, 10, 0, 0.5)]
    )
    with pytest.raises(ReportError, match="density.csv: a bin has no area"):
        page.density(load(whole))


def variants(value, make=lambda changed: changed):
    """A JSON value with each of its parts, by turns, of another kind, or gone; only the first item of lists."""
    for other in (None, True, -1.5, 0, 10**400, float("nan"), "much", [], {}, [[]], {"a": None}):
        yield make(other)
    if isinstance(value, dict):
        for key, inside in value.items():
            yield make({k: v for k, v in value.items() if k != key})
            yield from variants(inside, lambda changed, key=key: make({**value, key: changed}))
    elif isinstance(value, list) and value:
        yield from variants(value[0], lambda changed: make([changed, *value[1:]]))


@pytest.mark.parametrize(("name", "reader"), JSON.items(), ids=JSON)
def test_a_broken_json_file_is_named(whole, decode, name, reader, monkeypatch):
    monkeypatch.setattr(page.pictures, "treemap", lambda boxes, words: None)  # drawing takes time
    decode.rename(whole / "decode.json")
    file = whole / name
    good = json.loads(file.read_text())
    if name == "synth/cells.json":
        made_run.change(whole, blocks=["block"])
        made_run.make(whole.parent / "block", unit="router", to="synth")
    if name == "report.json":  # a few metrics stand for all
        good["metrics"] = {
            k: v for k, v in good["metrics"].items() if k.startswith("finish__timing__setup") or "source" in k
        }
    assert read(whole, name, reader)
    for text in ("", file.read_text()[:-20], "null", "3", '"text"', "[]", "{", NESTED, '{"a":' * 5000):
        file.write_text(text)
        assert not read(whole, name, reader), text[:40]
    file.write_bytes(BYTES)
    assert not read(whole, name, reader)
    read_well = 0
    for changed in variants(good):
        made_run.write(file, changed)
        read_well += read(whole, name, reader)
    assert read_well, "some parts may be of other values"


def test_a_cut_picture_is_named(whole):
    (whole / "layout").mkdir()
    made_run.picture(whole / "layout" / "layout.png", 200)
    data = (whole / "layout" / "layout.png").read_bytes()
    for end in (0, 4, 20, 33, 60, len(data) // 2, len(data) - 30):
        (whole / "layout" / "layout.png").write_bytes(data[:end])
        with pytest.raises(ReportError, match="layout.png is not a picture"):
            page.layout(load(whole))
