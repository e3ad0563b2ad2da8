"""cocotb bench behind ``nanok3 compare ... rtl``: a teacher-forced run that reads the chip's registers (sim.taps).

Parameters: ``image`` (file), ``tokens``, ``lengths`` (commands per unit and token), ``readings`` (sim.taps.Reading),
``out`` (.npz file to write: the raw lanes of reading r at position t as ``t:name:part``).  Reports: ``chosen``, the
tokens put out.

The sequencer's counts of completed commands say when a result is complete: a command whose ``done`` was in the cycle
before is counted in this one, where its result is visible and cannot have been overwritten yet.  Values are read at the
clock edge that ends the cycle.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge

from golden.fixed.numbers import CACHE, KEY, NRM, SCORE, STATE
from hw.control.registers import Flag
from hw.layouts import EXPERT_BITS, EXPERT_WEIGHT_BITS
from hw.params import HEAD
from sim.host import Host
from sim.verilator import parameters, report, start

LATE = {"expert_weights": 2}  # cycles after the command's completion


def children(parent: Any, pattern: str) -> list[Any]:
    """Instances or signals ``pattern`` with 0, 1, ... in it, as many as there are (at least one)."""
    found: list[Any] = []
    while hasattr(parent, name := pattern.format(len(found))):
        found.append(getattr(parent, name))
    assert found, f"{parent._path} has no {pattern.format(0)}"
    return found


def words(handle: Any, width: int) -> list[int]:
    """A signal as unsigned words of ``width`` bits, low bits first."""
    value = handle.value
    bits, size = int(value), len(value)
    return [bits >> at & (1 << width) - 1 for at in range(0, size, width)]


class Memory:
    """Contents of one SRAM wrapper, whose banks lie side by side."""

    def __init__(self, sram: Any) -> None:
        self.banks = [bank.mem for bank in children(sram, "bank_{}")]

    def word(self, address: int) -> int:
        """Bits of a word."""
        value, at = 0, 0
        for bank in self.banks:
            part = bank[address].value
            value |= int(part) << at
            at += len(part)
        return value

    def split(self, address: int, width: int, count: int) -> list[int]:
        """The first ``count`` fields of a word."""
        value = self.word(address)
        return [value >> width * i & (1 << width) - 1 for i in range(count)]


class Registers:
    """A reader per ``sim.taps.Place``: raw lanes, as unsigned integers."""

    def __init__(self, dut: Any) -> None:
        self.array, self.router = dut.array, dut.router
        self.rows = children(dut.array, "row_{}")
        groups = len(children(self.rows[0], "p_{}"))
        self.t = [[[getattr(row, f"t{r}_{g}") for row in self.rows] for g in range(groups)] for r in range(4)]
        self.p = [[getattr(row, f"p_{g}") for row in self.rows] for g in range(groups)]
        self.square = dut.vector.state_square
        segments = range(len(children(dut.vector, "tile{}_0")))
        tiles = [tile for s in segments for tile in children(dut.vector, f"tile{s}_{{}}")]
        self.working = [lane for tile in tiles for lane in children(tile, "work{}")]
        self.keys = children(dut.kda, "keys_{}")
        self.lanes = [tile for h in range(len(self.keys)) for tile in children(dut.kda, f"tile_{h}_{{}}")]
        self.kda_state = Memory(dut.kda.memory)
        self.cache = [Memory(bank) for bank in children(dut.mla, "bank_{}")]
        self.score_memory = Memory(dut.mla.scores)
        self.queries = self._queries(dut.mla)
        self.position = 0
        self.groups: dict[int, list[int]] = {}  # row group -> sums that passed
        self.mixed: list[int] = []

    @staticmethod
    def _queries(mla: Any) -> list[list[Any]]:
        """Rounded queries [head][lane] in front of the lane groups, latent lanes first."""
        size = len(children(mla.lanes_0, "query_0_{}"))
        groups: list[Any] = []
        while hasattr(mla, name := f"lanes_{size * len(groups)}"):
            groups.append(getattr(mla, name))
        heads = range(len(children(mla.lanes_0, "query_{}_0")))
        return [[lane for group in groups for lane in children(group, f"query_{h}_{{}}")] for h in heads]

    def follow(self) -> None:
        """Keep what passes in this cycle: a row group's sums, a weighted sum."""
        if int(self.array.w2_valid.value) and int(self.array.w2_last.value):
            self.groups[int(self.array.w2_group.value)] = [int(row.y.value) for row in self.rows]
        if int(self.square.value):
            self.mixed = self.work()

    def read(self, reading: dict[str, Any]) -> list[int]:
        """Raw lanes of a reading."""
        part = {key: reading[key] for key in ("register", "first", "size")}
        lanes: list[int] = getattr(self, reading["place"])(**part)
        return lanes

    def vector(self, register: int, first: int, size: int) -> list[int]:
        lanes = [cell for group in self.t[register] for cell in group]
        return [int(cell.value) for cell in lanes[first : first + size]]

    def prefix(self, **_: int) -> list[int]:
        return [int(cell.value) for group in self.p for cell in group]

    def sums(self, **_: int) -> list[int]:
        return [y for group in sorted(self.groups) for y in self.groups[group]]

    def mixture(self, **_: int) -> list[int]:
        return self.mixed

    def work(self, **_: int) -> list[int]:
        return [int(lane.value) for lane in self.working]

    def key(self, **_: int) -> list[int]:
        return [word for keys in self.keys for word in words(keys.k, KEY.width)]

    def query(self, **_: int) -> list[int]:
        return [word for keys in self.keys for word in words(keys.q, KEY.width)]

    def beta(self, **_: int) -> list[int]:
        return [int(keys.kept_beta.value) for keys in self.keys]

    def read_out(self, **_: int) -> list[int]:
        return [word for tile in self.lanes for word in words(tile.o, NRM.width)]

    def state(self, first: int, size: int, **_: int) -> list[int]:
        lanes = HEAD * len(self.keys)
        return [value for row in range(first, first + size) for value in self.kda_state.split(row, STATE.width, lanes)]

    def _entry(self, first: int) -> list[int]:
        """This position's entry in the cache: latent and shared key."""
        group, bank = divmod(self.position, len(self.cache))
        return self.cache[bank].split(first + group, CACHE.width, len(self.queries[0]))

    def latent(self, first: int, **_: int) -> list[int]:
        return self._entry(first)[:HEAD]

    def shared_key(self, first: int, **_: int) -> list[int]:
        return self._entry(first)[HEAD:]

    def query_absorbed(self, **_: int) -> list[int]:
        return [int(lane.value) for head in self.queries for lane in head[:HEAD]]

    def query_rope(self, **_: int) -> list[int]:
        return [int(lane.value) for head in self.queries for lane in head[HEAD:]]

    def scores(self, **_: int) -> list[int]:
        """Of positions 0 to this one, heads of a position together."""
        heads, banks = len(self.queries), len(self.cache)
        last = self.position // banks
        found = [s for group in range(last + 1) for s in self.score_memory.split(group, SCORE.width, heads * banks)]
        return found[: heads * (self.position + 1)]

    def experts(self, **_: int) -> list[int]:
        return words(self.router.expert, EXPERT_BITS)

    def expert_weights(self, **_: int) -> list[int]:
        return words(self.router.expert_weight, EXPERT_WEIGHT_BITS)


class Watch:
    """Follows the counts of completed commands and takes every reading when it is due."""

    def __init__(self, dut: Any, lengths: dict[str, int], readings: list[dict[str, Any]]) -> None:
        self.clock = dut.clk
        self.registers = Registers(dut)
        self.counts = {unit: getattr(dut.sequencer, f"counts_{unit}") for unit in lengths}
        self.lengths = lengths
        self.due: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        for reading in readings:
            self.due[reading["unit"], reading["count"]].append(reading)
        self.taken: dict[str, np.ndarray] = {}

    async def run(self, positions: int) -> dict[str, np.ndarray]:
        """Raw lanes of all readings of the next ``positions`` positions, named ``position:tap:part``."""
        counts = dict.fromkeys(self.lengths, 0)
        waiting: list[tuple[int, dict[str, Any]]] = []  # (cycles to go, reading)
        while self.registers.position < positions or waiting:
            await RisingEdge(self.clock)
            self.registers.follow()
            before, counts = counts, {unit: int(handle.value) for unit, handle in self.counts.items()}
            completed = [(unit, counts[unit]) for unit in counts if counts[unit] > before[unit]]
            waiting += [(LATE.get(r["place"], 0), r) for key in completed for r in self.due[key]]
            for _, reading in (entry for entry in waiting if entry[0] == 0):
                self._take(reading)
            waiting = [(cycles - 1, reading) for cycles, reading in waiting if cycles]
            if completed and counts == self.lengths:
                self.registers.position += 1
        return self.taken

    def _take(self, reading: dict[str, Any]) -> None:
        """Read and keep."""
        name = f"{self.registers.position}:{reading['name']}:{reading['part']}"
        assert name not in self.taken, f"{name} is complete twice"
        self.taken[name] = np.array(self.registers.read(reading), np.int64)


@cocotb.test()
async def taps(dut: Any) -> None:
    """Load, run over the tokens, write what was read."""
    given = parameters()
    host = Host(dut)
    await start(dut)
    raw = Path(given["image"]).read_bytes()
    await host.load([int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4)])
    watch = cocotb.start_soon(Watch(dut, given["lengths"], given["readings"]).run(len(given["tokens"])))
    await host.run(given["tokens"], 0, Flag.TEACHER_FORCED)
    np.savez(given["out"], **(await watch))  # type: ignore[arg-type]  # its own options are no names of ours
    frame = await host.tokens.recv()
    report(chosen=list(frame.tdata))
