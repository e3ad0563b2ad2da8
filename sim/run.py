"""A whole run of the chip, by the clock cycle: image, prompt, START, positions, tokens, logits and counters.

Cycles are counted by the host's clock (cycle c is the one that edge number c ends).  Times of the token loop and
loader are those of hw/control/token_loop.py and loader.py; positions come from sim.timing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from golden.config import positions_of
from hw.program import UNITS
from sim.streams import Willing, always, offered, taken
from sim.timing import Position, Timer


class Machine(Protocol):
    """What computes the tokens: sim.fast.FastMachine."""

    def reset(self) -> None:
        """Position 0 comes next."""

    def step(self, token: int) -> int:
        """Run one position; returns the token that its logits choose."""


class RunError(ValueError):
    """A run that the chip would refuse; one line."""


@dataclass(frozen=True)
class HostPlan:
    """What the host does, and when.

    ``image_at``, ``prompt_at``: first cycle in which it offers those beats.  ``start_at``: cycle in which address and
    data of START's register write are valid.  ``image``, ``prompt``, ``tokens``, ``logits``: the cycles in which its
    side of each stream is willing.
    """

    image_at: int = 0
    prompt_at: int = 0
    start_at: int = 0
    image: Willing = always
    prompt: Willing = always
    tokens: Willing = always
    logits: Willing = always


@dataclass(frozen=True)
class Request:
    """One run: ``prompt`` tokens; ``count`` of tokens to make (not used when ``forced``); the flags of START."""

    prompt: Sequence[int]
    count: int = 1
    logits: bool = False
    forced: bool = False

    @property
    def positions(self) -> int:
        """Positions computed."""
        return len(self.prompt) if self.forced else positions_of(len(self.prompt), self.count)

    def emits(self, position: int) -> bool:
        """The position's token is put out."""
        return self.forced or position >= len(self.prompt) - 1

    def skips_head(self, position: int) -> bool:
        """The position's logits are not needed."""
        return not self.logits and not self.emits(position)


@dataclass
class Step:
    """One position of a run: ``restart``, ``over`` (all is computed) and ``end`` (its token found room) are cycles.

    ``token``: the one it chose (None without a head, or without a machine); ``valid``, ``taken``: cycles of its beat.
    """

    position: int
    timing: Position
    restart: int
    over: int
    end: int
    token: int | None = None
    valid: int | None = None
    taken: int | None = None
    logits: int | None = None


@dataclass
class Result:
    """A run.

    ``loaded``, ``prompt_ready``: first cycles with these status bits; ``started``: cycle in which START is accepted.
    """

    request: Request
    loaded: int
    prompt_ready: int
    started: int
    steps: list[Step] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """Tokens put out (empty when only timing was simulated)."""
        return [s.token for s in self.steps if s.valid is not None and s.token is not None]

    @property
    def edges(self) -> list[int]:
        """Cycle of each output token's first valid beat."""
        return [s.valid for s in self.steps if s.valid is not None]

    @property
    def end(self) -> int:
        """Last cycle in which the chip is running."""
        return self.steps[-1].end

    def counters(self) -> dict[str, Any]:
        """The chip's counters, by the names of sim.decode."""
        cycles = self.end - self.started
        last = self.steps[-1]
        values: dict[str, Any] = {
            "cycles": cycles,
            "tokens": len(self.edges),
            "positions": len(self.steps),
            "last_cycles": last.end - last.restart,
            "token_stalls": sum(s.end - s.over for s in self.steps),
        }
        for unit in UNITS:
            totals = [step.timing.units[unit] for step in self.steps]
            busy, stalled = sum(t.busy for t in totals), sum(t.stalled for t in totals)
            values[unit] = {"busy": busy, "stalled": stalled, "idle": cycles - busy - stalled}
        return values


def check(request: Request, vocab: int, positions: int) -> None:
    """Refuse what the chip refuses (hw.control.registers.Error)."""
    if not request.prompt:
        raise RunError("the prompt is empty")
    if any(not 0 <= token < vocab for token in request.prompt):
        raise RunError(f"a prompt token is not in the vocabulary, 0 to {vocab - 1}")
    if not request.forced and request.count < 1:
        raise RunError("at least one token must be asked for")
    if request.positions > positions:
        raise RunError(f"{request.positions} positions do not fit the context of {positions}")


class Run:
    """One run, step by step: ``steps`` yields each position as it ends, and ``result`` holds what there is so far.

    ``beats``: 32-bit words of the image (0: it is in already).  ``machine``: computes the tokens; without one only
    time passes.  ``idle_from``: the chip is busy with another run until the cycle before, and takes no beats.
    ``host`` None: as early as the chip allows.
    """

    def __init__(
        self, timer: Timer, request: Request, host: HostPlan | None = None, machine: Machine | None = None, *,
        beats: int = 0, idle_from: int = 0,
    ) -> None:  # fmt: skip
        model = timer.p.model
        check(request, model.vocab_size, model.max_positions)
        self.timer, self.request, self.host, self.machine = timer, request, host or HostPlan(), machine
        loaded = offered(beats, self.host.image_at, self.host.image, idle_from)[-1] + 1 if beats else 0
        ready = offered(len(request.prompt), self.host.prompt_at, self.host.prompt, idle_from)[-1] + 1
        started = max(loaded, ready) if host is None else self.host.start_at + 1
        if started < max(loaded, ready):
            raise RunError(f"START in cycle {started} comes before image ({loaded}) and prompt ({ready}) are in")
        self.result = Result(request, loaded, ready, started)

    def steps(self) -> Iterator[Step]:
        """Run the positions."""
        loop = self.timer.t.loop
        restart = self.result.started + loop.start
        room = 0  # first cycle in which the token register is free
        token = None
        for position in range(self.request.positions):
            step = self._position(position, restart)
            if self.machine is not None:
                given = self.request.prompt[position] if position < len(self.request.prompt) else token
                assert given is not None  # from the position before
                token = step.token = self.machine.step(given)
            if self.request.emits(position):
                step.end = max(step.over, room)
                step.valid = step.end + loop.token
                step.taken = taken(step.valid, self.host.tokens)
                room = step.taken + 1
            restart = step.end
            self.result.steps.append(step)
            yield step

    def all(self) -> Result:
        """Run to the end."""
        for _ in self.steps():
            pass
        return self.result

    def _position(self, position: int, restart: int) -> Step:
        streamed = None
        if self.request.logits:
            willing = self.host.logits
            streamed = always if willing is always else lambda cycle: willing(restart + cycle)
        timing = self.timer.position(position, skip_head=self.request.skips_head(position), streamed=streamed)
        step = Step(position, timing, restart, restart + timing.end, restart + timing.end)
        step.logits = None if timing.logits is None else restart + timing.logits
        return step
