"""The same runs on the chip's RTL and in the cycle simulator: every cycle of theirs that a host can see, compared.

``plan`` fixes when the host does what; ``on_rtl`` and the simulator's results follow that plan, and ``differences``
names each cycle, token and counter that is not the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hw.control.registers import Flag
from hw.image import save
from sim.run import HostPlan, Machine, Request, Result, Run
from sim.streams import Pauses
from sim.timing import Timer
from sim.verilator import Build

SETTLE = 400  # cycles in which the bench writes and reads registers
FIRST = 2  # first cycle in which the bench can offer a beat


@dataclass(frozen=True)
class Trial:
    """One run.  ``pauses``: arguments of sim.streams.Pauses by stream; ``reload``: the image is sent again.

    ``early``: prompt and image are offered while the run before is still going on.
    """

    request: Request
    pauses: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    reload: bool = False
    early: bool = False


@dataclass
class Planned:
    """A trial, the host's cycles, and what the simulator says."""

    trial: Trial
    host: HostPlan
    with_image: bool
    result: Result


def plan(timer: Timer, trials: Iterable[Trial], machine: Machine, beats: int) -> list[Planned]:
    """Simulate trials one after the other; the first one's START comes in the first cycle that the chip accepts it.

    ``machine`` computes the tokens and is reset for each; ``beats``: 32-bit words of the image.
    """
    planned: list[Planned] = []
    begin, idle_from, offer = FIRST, 0, FIRST
    for trial in trials:
        with_image = trial.reload or not planned
        streams = {name: Pauses(*arguments) for name, arguments in trial.pauses.items()}
        at = offer if trial.early else begin
        host = HostPlan(at, at, 1 << 40, **streams)  # START later than all else
        sent = beats if with_image else 0
        inputs = Run(timer, trial.request, host, beats=sent, idle_from=idle_from).result
        start = max(inputs.loaded, inputs.prompt_ready, begin + SETTLE) - 1
        host = HostPlan(at, at, start, **streams)
        machine.reset()
        result = Run(timer, trial.request, host, machine, beats=sent, idle_from=idle_from).all()
        planned.append(Planned(trial, host, with_image, result))
        idle_from = result.end + 1
        offer = start + 1  # from here on the chip is running
        begin = max(idle_from, result.steps[-1].taken or 0) + SETTLE
    return planned


def on_rtl(build: Build, words: Sequence[int], planned: Sequence[Planned], timeout: float = 3600.0) -> list[Any]:
    """The same on a compiled chip (sim.cycle_bench); its report of every run."""
    runs = []
    for one in planned:
        request = one.trial.request
        flags = Flag.STREAM_LOGITS * request.logits | Flag.TEACHER_FORCED * request.forced
        runs.append(
            {
                "prompt": list(request.prompt),
                "count": 0 if request.forced else request.count,
                "flags": int(flags),
                "image_at": one.host.image_at if one.with_image else None,
                "prompt_at": one.host.prompt_at,
                "start_at": one.host.start_at,
                "pauses": {name: list(arguments) for name, arguments in one.trial.pauses.items()},
            }
        )
    with TemporaryDirectory() as folder:
        image = Path(folder) / "image.bin"
        save(image, words)
        given = {"image": str(image), "runs": runs}
        return list(build.simulate("sim.cycle_bench", parameters=given, timeout=timeout)[0].reports["runs"])


def seen(one: Planned) -> dict[str, Any]:
    """What the simulator says of a run, as the bench reports it."""
    result = one.result
    return {
        "loaded": result.loaded if one.with_image else None,
        "prompt_ready": result.prompt_ready,
        "tokens": result.tokens,
        "edges": result.edges,
        "taken": [step.taken for step in result.steps if step.taken is not None],
        "logits": [step.logits for step in result.steps if step.logits is not None],
        "counters": result.counters(),
    }


def differences(planned: Sequence[Planned], reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for everything that differs."""
    lines = []
    for number, (one, rtl) in enumerate(zip(planned, reports, strict=True)):
        mine = seen(one)
        lines += [
            f"run {number}: {name}: simulator {mine[name]}, RTL {rtl[name]}" for name in mine if mine[name] != rtl[name]
        ]
    return lines
