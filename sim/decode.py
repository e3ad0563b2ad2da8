"""Decode on the chip's RTL in Verilator: compile, run the bench, cycles per token."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sim.verilator import Build

CLOCK_HZ = 100e6
CONTEXT = 128  # where cycles per token are stated


@dataclass(frozen=True)
class Decoded:
    """Result of one run.  ``edges``: clock edge of each token's first valid beat, counted from the start."""

    prompt: int  # tokens
    tokens: list[int]
    edges: list[int]
    counters: dict[str, Any]
    logits: list[list[int]] | None = None
    before_reset: tuple[str, ...] = ()  # random start values of some outputs

    def cycles(self) -> dict[int, int]:
        """Cycles from the token before to each token, by context: the positions that its own last one attended to."""
        steps = zip(self.edges, self.edges[1:], strict=False)
        return {self.prompt + 1 + i: later - earlier for i, (earlier, later) in enumerate(steps)}

    def cycles_per_token(self) -> dict[str, Any] | None:
        """``mean`` over all tokens but the first, and ``at_context`` 128 if the run reached it; None for one token."""
        cycles = self.cycles()
        if not cycles:
            return None
        at = {str(CONTEXT): cycles[CONTEXT]} if CONTEXT in cycles else {}
        return {"mean": sum(cycles.values()) / len(cycles), "at_context": at}

    def tokens_per_second(self) -> float | None:
        """At 100 MHz: at context 128, or from the mean on a shorter run."""
        per_token = self.cycles_per_token()
        if per_token is None:
            return None
        return CLOCK_HZ / per_token["at_context"].get(str(CONTEXT), per_token["mean"])


def decode(
    build: Build,
    image: Path,
    prompt: Sequence[int],
    count: int,
    *,
    logits: bool = False,
    seed: int = 1,
    timeout: float = 3600.0,
    on_token: Callable[[int], None] | None = None,
) -> Decoded:
    """Run the compiled chip on a prompt; ``on_token`` is called with each token while the simulation goes on."""
    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        progress = Path(folder) / "tokens"
        done = threading.Event()
        follower = thread.submit(_follow, progress, done, on_token or (lambda _: None))
        given = {"image": str(image.resolve()), "prompt": list(prompt), "count": count, "logits": logits}
        try:
            runs = build.simulate(
                "sim.decode_bench", parameters={**given, "progress": str(progress)}, seeds=[seed], timeout=timeout
            )
        finally:
            done.set()
        follower.result()  # raises what on_token did
    r = runs[0].reports
    return Decoded(len(prompt), r["tokens"], r["edges"], r["counters"], r.get("logits"), tuple(r["before_reset"]))


def _follow(progress: Path, done: threading.Event, on_token: Callable[[int], None]) -> None:
    """Call ``on_token`` for each whole line of a growing file."""
    at = 0
    while True:
        last = done.is_set()
        text = progress.read_text() if progress.exists() else ""
        lines = text[at:].split("\n")[:-1]
        for line in lines:
            at += len(line) + 1
            on_token(int(line))
        if last:
            return
        done.wait(0.1)
