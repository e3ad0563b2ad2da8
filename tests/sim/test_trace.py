"""Perfetto traces, as Perfetto's own trace processor reads them: every command, its facts and its cycles."""

import json
from functools import cache

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from perfetto.trace_processor import TraceProcessor

from flow import cli
from golden.files import WriteError
from hw.params import from_preset
from hw.program import UNITS, compile_program
from hw.timing import timing
from sim.run import Request, Run
from sim.stages import name, operands
from sim.timing import Timer
from sim.trace import CYCLE_NS, TraceFile
from tests.sim.trace_processor import complaints, serving

COMMANDS = """
  select track.name as unit, slice.name as name, category, ts, dur,
    extract_arg(arg_set_id, 'debug.layer') as layer, extract_arg(arg_set_id, 'debug.stage') as stage,
    extract_arg(arg_set_id, 'debug.operation') as operation, extract_arg(arg_set_id, 'debug.operands') as operands,
    extract_arg(arg_set_id, 'debug.done_cycle') as done, extract_arg(arg_set_id, 'debug.compute_cycles') as compute,
    extract_arg(arg_set_id, 'debug.dependency_stall_cycles') as dependency,
    extract_arg(arg_set_id, 'debug.memory_stall_cycles') as memory
  from slice join track on track.id = track_id where category not in ('position', 'stall')"""
WAITS = """
  select track.name as unit, ts, dur,
    extract_arg(arg_set_id, 'debug.for') as cause, extract_arg(arg_set_id, 'debug.command') as command
  from slice join track on track.id = track_id where category = 'stall'"""
POSITIONS = """
  select slice.name as name, ts, dur, extract_arg(arg_set_id, 'debug.position') as position,
    extract_arg(arg_set_id, 'debug.cycles') as cycles,
    extract_arg(arg_set_id, 'debug.waited_for_token_stream') as waited
  from slice join track on track.id = track_id where track.name = 'positions' and category = 'position'"""


@cache
def timer():
    """Of micro-k3."""
    p = from_preset("micro-k3")
    return Timer(p, compile_program(p), timing(p))


def write(file, count=2):
    """Trace of a run without tokens; gives the run's result."""
    one = Run(timer(), Request([1, 2], count=count))
    with TraceFile(file, "micro-k3") as trace:
        for step in one.steps():
            trace.add(step)
    return one.result


@pytest.fixture(scope="module")
def server():
    """Address of the trace processor."""
    with serving() as address:
        yield address


def rows(processor, sql):
    """What a query finds, as a sorted list of tuples."""
    return sorted(tuple(vars(row).values()) for row in processor.query(sql))


def commands(result):
    """The rows of COMMANDS that a run ought to give."""
    found = []
    for step in result.steps:
        for s in step.timing.slices:
            at, start = name(s.step.label), step.restart
            layer = -1 if at.layer is None else at.layer
            facts = layer, at.stage, at.operation, operands(s), start + s.done
            split = s.split.compute, s.split.dependency, s.split.memory
            found.append((s.unit, str(at), at.stage, CYCLE_NS * (start + s.valid), CYCLE_NS * s.busy, *facts, *split))
    return sorted(found)


def stalls(result):
    """The rows of WAITS that a run ought to give."""
    found = []
    for step in result.steps:
        for s in step.timing.slices:
            if s.stalled:
                cause = s.cause.step.label if s.cause else "restart"
                times = CYCLE_NS * (step.restart + s.shown), CYCLE_NS * s.stalled
                found.append((s.unit, *times, cause, s.step.label))
    return sorted(found)


def test_every_command_is_there_with_its_facts_and_cycles(server, tmp_path):
    result = write(tmp_path / "sub" / "run.pftrace")
    with TraceProcessor(remote=server, trace=str(tmp_path / "sub" / "run.pftrace")) as processor:
        assert complaints(processor) == []
        found, waits, positions = (rows(processor, sql) for sql in (COMMANDS, WAITS, POSITIONS))
        tracks = rows(
            processor, "select t.name as name, p.name as parent from track t join track p on p.id = t.parent_id"
        )
    assert found == commands(result)
    assert waits == stalls(result)
    assert positions == [
        (f"position {i}", CYCLE_NS * s.restart, CYCLE_NS * (s.end - s.restart), i, s.timing.end, s.end - s.over)
        for i, s in enumerate(result.steps)
    ]
    assert tracks == sorted((unit, "micro-k3") for unit in ("positions", *UNITS))


def test_the_commands_trace_sums_to_its_own_figures(server, tmp_path, capsys):
    file = tmp_path / "run.pftrace"
    asked = ["sim", "If", "--tokens", "4", "--config", "micro-k3", "--json", "--trace", str(file)]
    assert cli.run(asked) == 0
    told = json.loads(capsys.readouterr().out)
    metrics, counters = told["metrics"], told["counters"]
    with TraceProcessor(remote=server, trace=str(file)) as processor:
        assert complaints(processor) == []
        spent = rows(
            processor, f"select unit, sum(compute), sum(dependency), sum(memory) from ({COMMANDS}) group by unit"
        )
        busy = dict(rows(processor, f"select unit, sum(dur) from ({COMMANDS}) group by unit"))
        waited = dict(rows(processor, f"select unit, sum(dur) from ({WAITS}) group by unit"))
        positions = rows(processor, POSITIONS)
    assert sorted(busy) == sorted(UNITS)
    for unit, compute, dependency, memory in spent:
        assert compute == metrics[f"sim__cycles__compute__unit:{unit}"]
        assert dependency + waited[unit] // CYCLE_NS == metrics[f"sim__cycles__stall__dependency__unit:{unit}"]
        assert memory == metrics[f"sim__cycles__stall__memory__unit:{unit}"]
        assert busy[unit] == CYCLE_NS * counters[unit]["busy"]
        assert waited[unit] == CYCLE_NS * counters[unit]["stalled"]
    titles, starts, times, *_ = zip(*positions, strict=True)
    assert len(titles) == counters["positions"] and times[-1] == CYCLE_NS * counters["last_cycles"]
    first = starts[0] - CYCLE_NS * timer().t.loop.start  # START
    assert starts[-1] + times[-1] - first == CYCLE_NS * counters["cycles"]
    assert sum(" -> " in title for title in titles) == counters["tokens"] == 4


def test_what_an_interrupted_run_leaves_can_be_read(server, tmp_path):
    file = tmp_path / "run.pftrace"
    with pytest.raises(KeyboardInterrupt), TraceFile(file, "micro-k3") as trace:
        for step in Run(timer(), Request([1, 2], count=9)).steps():
            trace.add(step)
            if step.position == 2:
                raise KeyboardInterrupt
    with TraceProcessor(remote=server, trace=str(file)) as processor:
        assert complaints(processor) == []
        assert [row[0] for row in rows(processor, POSITIONS)] == ["position 0", "position 1", "position 2"]


# --- that the above can fail ---


def ends(trace):
    """Packets with which slices end."""
    return [p for p in trace.packet if p.track_event.type == TrackEvent.TYPE_SLICE_END]


def begins(trace):
    """Packets with which commands begin."""
    return [p for p in trace.packet if not {"position", "stall"}.issuperset(p.track_event.categories)]


def lose_an_end(trace):
    trace.packet.remove(ends(trace)[-1])


def lose_a_begin(trace):
    trace.packet.remove(begins(trace)[-1])


def end_late(trace):
    ends(trace)[1].timestamp += CYCLE_NS  # of a unit's first command


def lose_the_writer(trace):
    begins(trace)[0].ClearField("trusted_packet_sequence_id")


def take_an_unknown_clock(trace):
    begins(trace)[0].timestamp_clock_id = 99


@pytest.mark.parametrize(
    "fault,complaint",
    [
        (lose_an_end, "has no end"),
        (lose_a_begin, None),  # an end without a begin is dropped without a word
        (end_late, "begins within another"),
        (lose_the_writer, "track_event_tokenizer_errors: 1"),
        (take_an_unknown_clock, "clock_sync_failure"),
    ],
)
def test_a_broken_trace_is_noticed(fault, complaint, server, tmp_path):
    file = tmp_path / "run.pftrace"
    result = write(file, count=1)
    trace = Trace.FromString(file.read_bytes())
    fault(trace)
    file.write_bytes(trace.SerializeToString())
    with TraceProcessor(remote=server, trace=str(file)) as processor:
        assert complaint is None or any(complaint in one for one in complaints(processor))
        assert rows(processor, COMMANDS) != commands(result)


def test_a_trace_cut_short_is_noticed(server, tmp_path):
    file = tmp_path / "run.pftrace"
    write(file, count=1)
    file.write_bytes(file.read_bytes()[:-1])
    with TraceProcessor(remote=server, trace=str(file)) as processor:
        (complaint,) = complaints(processor)
    assert complaint.endswith("has no end")


# --- the file ---


def test_a_trace_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot write"):
        TraceFile(tmp_path / "file" / "run.pftrace", "micro-k3")
