"""The step runner: keys, kept results, failures, interrupts; OpenROAD's process, small programs in its place."""

import json
import stat
import time
from pathlib import Path

import pytest

from flow.design import Design
from flow.pipeline import REPORT, run_steps
from flow.settings import FlowSettings
from flow.steps import openroad, step
from flow.steps.step import Job, Outcome, Step, StepFailed


class Count(Step):
    """Writes a file with the number in its input file plus one; counts how often it ran."""

    name = "count"
    needs_openroad = False

    def __init__(self, source: Path) -> None:
        self.source = source
        self.ran = 0

    def files(self, job):
        return [self.source]

    def settings(self, job):
        return {"padding": job.settings.padding}

    def run(self, job, work):
        self.ran += 1
        value = int(self.source.read_text()) + 1
        (work / "value").write_text(f"{value}\n")
        return Outcome({"count__value": value}, ["[WARNING X-1] hello"], {"tool": "1"})


class Double(Step):
    """Doubles the number of the step before; fails or is interrupted on demand."""

    name = "double"
    after = ("count",)
    needs_openroad = False

    def __init__(self) -> None:
        self.ran = 0
        self.problem: BaseException | None = None

    def run(self, job, work):
        self.ran += 1
        (work / "begun").write_text("half\n")
        if self.problem is not None:
            raise self.problem
        return Outcome({"double__value": 2 * int((job.of("count") / "value").read_text())})


@pytest.fixture
def setup(tmp_path):
    """(job, the two steps, the input file of the first)."""
    source = tmp_path / "source"
    source.write_text("20")
    design = Design("small", None, "top", tmp_path)
    job = Job(design, FlowSettings(), None, tmp_path / "small")
    return job, (Count(source), Double()), source


def report(job):
    return json.loads((job.folder / REPORT).read_text())


def test_results_are_kept_and_merged(setup):
    """A second run does nothing; metrics, versions, warnings and states are in the report."""
    job, steps, _ = setup
    first = run_steps(job, steps, None)
    assert [result.status for result in first] == ["done", "done"]
    assert [result.status for result in run_steps(job, steps, None)] == ["cached", "cached"]
    assert (steps[0].ran, steps[1].ran) == (1, 1)
    merged = report(job)
    assert merged["metrics"] == {"count__value": 21, "double__value": 42}
    assert merged["versions"] == {"tool": "1"} and merged["design"] == "small" and merged["unit"] is None
    assert [(each["name"], each["status"]) for each in merged["steps"]] == [("count", "cached"), ("double", "cached")]
    assert merged["steps"][0]["warnings"] == ["[WARNING X-1] hello"]
    kept = json.loads((job.of("count") / step.RECORD).read_text())
    assert kept["files"] == ["value"] and kept["inputs"] == {"source": step.sha256(steps[0].source)}


def test_changes_reach_the_steps_after(setup):
    """Another input or setting runs the step and all after it; a lost file runs it again."""
    job, steps, source = setup
    run_steps(job, steps, None)
    source.write_text("30")
    assert [result.status for result in run_steps(job, steps, None)] == ["done", "done"]
    assert report(job)["metrics"]["double__value"] == 62
    changed = Job(job.design, FlowSettings(padding=2), None, job.folder)
    assert [result.status for result in run_steps(changed, steps, None)] == ["done", "done"]
    (job.of("count") / "value").unlink()
    assert [result.status for result in run_steps(changed, steps, None)] == ["done", "cached"]


def test_to_ends_the_flow(setup):
    job, steps, _ = setup
    assert [result.name for result in run_steps(job, steps, "count")] == ["count"]
    assert not job.of("double").exists()


@pytest.mark.parametrize("problem", [StepFailed("no room"), KeyboardInterrupt()])
def test_a_failed_or_interrupted_step_is_resumed(setup, problem):
    """What went before stays, the attempt is kept aside, an older result of the step survives, the next run goes on."""
    job, steps, source = setup
    run_steps(job, steps, None)
    source.write_text("40")
    steps[1].problem = problem
    with pytest.raises(type(problem)):
        run_steps(job, steps, None)
    assert (job.folder / "double.failed" / "begun").is_file()
    assert json.loads((job.of("double") / step.METRICS).read_text()) == {"double__value": 42}
    assert report(job)["metrics"] == {"count__value": 41}, "the report does not mix old and new"
    steps[1].problem = None
    assert [result.status for result in run_steps(job, steps, None)] == ["cached", "done"]
    assert report(job)["metrics"]["double__value"] == 82
    assert sorted(entry.name for entry in job.folder.iterdir()) == ["count", "double", REPORT]


def test_openroad_steps_are_left_out_without_it(setup):
    """Without OpenROAD its steps are not part of the flow; with it they are."""
    job, steps, _ = setup
    steps[1].needs_openroad = True
    assert [result.name for result in run_steps(job, steps, None)] == ["count"]
    assert report(job)["state"] == "nothing"
    tool = openroad.OpenRoad(("openroad",), "1")
    assert len(run_steps(Job(job.design, job.settings, tool, job.folder), steps, None)) == 2


def program(folder: Path, body: str) -> Path:
    """A shell script in OpenROAD's place."""
    file = folder / "openroad"
    file.write_text(f'#!/bin/sh\n[ "$1" = -version ] && echo 26Q3-test && exit 0\n{body}\n')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def run_program(tool, folder):
    (folder / "script.tcl").write_text("exit\n")
    return tool.run(folder / "script.tcl", folder / "log", folder / "metrics.json")


def test_arguments_and_warnings(tmp_path):
    """The script and the metrics file are named on the command line; warnings come back, the log is kept."""
    body = 'echo "args $*"; echo "[WARNING GRT-0043] no rules"; echo done'
    tool = openroad.find(program(tmp_path, body))
    assert tool.version == "26Q3-test"
    assert run_program(tool, tmp_path) == ["[WARNING GRT-0043] no rules"]
    line = (tmp_path / "log").read_text().splitlines()[0]
    assert f"-metrics {tmp_path / 'metrics.json'} {tmp_path / 'script.tcl'}" in line and "-exit" in line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "[ERROR GPL-0302] Use a higher -density",
            r"^the die is too small \(OpenROAD: \[ERROR GPL-0302\] Use a higher",
        ),
        ("[ERROR PPL-0024] Number of pins", "^the pins do not fit the die's edge"),
        ("[ERROR GPL-0305] RePlAce diverged.", "^placement went apart: use --no-routability, or another die"),
        ("[ERROR DPL-0036] Detailed placement failed.", "^the cells cannot be legalised"),
        ("[ERROR ORD-0001] x.lef does not exist.", r"^OpenROAD: \[ERROR ORD-0001\] x.lef does not exist.$"),
        ('invalid command name "pin_acces"', '^OpenROAD: invalid command name "pin_acces"$'),
        ("nothing said", "^OpenROAD: it ended with code 3, see the log$"),
    ],
)
def test_its_errors_are_one_line(tmp_path, line, message):
    tool = openroad.find(program(tmp_path, f"echo '{line}'; exit 3"))
    with pytest.raises(openroad.OpenRoadError, match=message) as caught:
        run_program(tool, tmp_path)
    assert "\n" not in str(caught.value)


def test_an_interrupt_stops_it_and_its_children(tmp_path):
    """The process and what it started are gone when the flow is interrupted."""
    tool = openroad.find(program(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait"))

    def watch(line):
        if (tmp_path / "child").is_file() and (tmp_path / "child").read_text().strip():
            raise KeyboardInterrupt

    (tmp_path / "script.tcl").write_text("exit\n")
    with pytest.raises(KeyboardInterrupt):
        tool.run(tmp_path / "script.tcl", tmp_path / "log", tmp_path / "metrics.json", watch=watch)
    child = int((tmp_path / "child").read_text())
    for _ in range(50):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the child is still running")


def test_a_missing_program_is_one_clear_line(tmp_path, monkeypatch):
    with pytest.raises(openroad.OpenRoadMissing, match="^no OpenROAD program at .*nowhere$"):
        openroad.find(tmp_path / "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        openroad.OpenRoadMissing, match="^no openroad on PATH: install OpenROAD, or use --openroad PATH or"
    ):
        openroad.find()
    with pytest.raises(openroad.OpenRoadMissing, match="^--container needs docker or podman"):
        openroad.find(container=True)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'libtcl.so: cannot open'; exit 127\n")
    broken.chmod(0o755)
    with pytest.raises(openroad.OpenRoadMissing, match="^OpenROAD cannot be started: libtcl.so: cannot open$"):
        openroad.find(broken)


def test_stand_ins_are_no_metrics(tmp_path):
    """What OpenROAD writes where it measured nothing is left out."""
    file = tmp_path / "m.json"
    file.write_text('{"a__ws": 1.5, "b__ws": 1e+39, "c__fmax": "N/A", "d__n": 0, "e": "1ns", "f": 1e+30, "g": -1e+30}')
    assert openroad.read_metrics(file) == {"a__ws": 1.5, "d__n": 0, "e": "1ns"}
    assert openroad.read_metrics(tmp_path / "missing.json") == {}


def test_progress_is_the_logs_last_line(tmp_path):
    log = tmp_path / "log"
    log.write_text("x" * 5000 + "\nfirst\nlast \n\n")
    assert openroad.last_line(log) == "last"
    log.write_text("")
    assert openroad.last_line(log) == ""


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (
            "[WARNING STA-1140] /home/a/rtl/x.lib line 1, library y exists.",
            "[WARNING STA-1140] x.lib line 1, library y exists.",
        ),
        (
            "[WARNING RSZ-0104] Net mac/row/_268_ only has one pin.",
            "[WARNING RSZ-0104] Net mac/row/_268_ only has one pin.",
        ),
        ("[WARNING X-1] cannot open '/a/b/c.lef' (/d/e.v)", "[WARNING X-1] cannot open 'c.lef' (e.v)"),
    ],
)
def test_warnings_are_without_folders(line, kept):
    """Files by their names; names of nets keep their hierarchy."""
    assert openroad.without_folders(line) == kept
