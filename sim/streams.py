"""Streams by the clock cycle: when the host's side is willing, and when a stream's beats are taken.

The bench that drives the RTL and the cycle simulator ask the same ``Pauses``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Willing = Callable[[int], bool]  # the host's side of a stream, by the cycle


@dataclass
class Pauses:
    """The host's side of a stream pauses in a seeded ``share`` of the cycles, ``burst`` cycles at a time.

    Called with a cycle, it says whether the host is willing then.
    """

    seed: int
    share: float
    burst: int = 1
    _made: list[bool] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def __call__(self, cycle: int) -> bool:
        while len(self._made) <= cycle:
            self._made += [self._random.random() >= self.share] * self.burst
        return self._made[cycle]


def always(cycle: int) -> bool:
    """The host's side of a stream that never pauses."""
    return True


def offered(beats: int, start: int, willing: Willing, ready_from: int = 0) -> list[int]:
    """Cycles in which a source's beats are taken.

    It offers the first one in the first cycle from ``start`` on in which it is willing, and each until it is taken; the
    chip takes one per cycle from ``ready_from`` on.
    """
    taken: list[int] = []
    cycle = start
    for _ in range(beats):
        while not willing(cycle):
            cycle += 1
        cycle = max(cycle, ready_from)
        taken.append(cycle)
        cycle += 1
    return taken


def taken(valid: int, willing: Willing) -> int:
    """Cycle in which a sink takes a beat that is valid from ``valid`` on."""
    while not willing(valid):
        valid += 1
    return valid
