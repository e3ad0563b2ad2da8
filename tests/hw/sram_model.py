"""What an ``Sram`` must do, one cycle at a time, and random stimulus for it."""

import random
from dataclasses import dataclass, field


@dataclass
class SramModel:
    """``step`` takes one cycle's inputs and returns the output after the clock edge, None while unknown."""

    width: int
    ports: str = "1rw"
    granularity: int = 0
    words: dict[int, int] = field(default_factory=dict)
    output: int | None = None

    def step(self, inputs: dict[str, int]) -> int | None:
        if self.ports == "1rw":
            read, write = inputs["en"] and not inputs["we"], inputs["en"] and inputs["we"]
            read_addr = write_addr = inputs["addr"]
            data = inputs["wdata"]
        else:
            read, write, read_addr, write_addr = (inputs[name] for name in ("r_en", "w_en", "r_addr", "w_addr"))
            data = inputs["w_data"]
        if read:
            self.output = self.words.get(read_addr)
        if write:
            mask = self._bits(inputs.get("wmask", 1))
            self.words[write_addr] = (self.words.get(write_addr, 0) & ~mask) | (data & mask)
        return self.output

    def _bits(self, lanes: int) -> int:
        if not self.granularity:
            return (1 << self.width) - 1
        lane = (1 << self.granularity) - 1
        return sum(lane << (i * self.granularity) for i in range(self.width // self.granularity) if lanes >> i & 1)


def stimulus(depth: int, width: int, ports: str, granularity: int, cycles: int, seed: int) -> list[dict[str, int]]:
    """Random inputs; every word is written whole first, addresses then cluster so that ports collide."""
    rng = random.Random(seed)
    lanes = width // granularity if granularity else 1
    sequence = []
    for cycle in range(depth + cycles):
        fill = cycle < depth
        near = rng.randrange(min(depth, 4))
        write = {"data": rng.getrandbits(width), "mask": (1 << lanes) - 1 if fill else rng.getrandbits(lanes)}
        if ports == "1rw":
            en, we = (1, 1) if fill else (rng.random() < 0.8, rng.random() < 0.5)
            step = {"en": int(en), "we": int(we), "addr": cycle if fill else near, "wdata": write["data"]}
        else:
            step = {
                "r_en": 0 if fill else int(rng.random() < 0.7),
                "r_addr": near if rng.random() < 0.5 else 0,
                "w_en": 1 if fill else int(rng.random() < 0.7),
                "w_addr": cycle if fill else near,
                "w_data": write["data"],
            }
        if granularity:
            step["wmask"] = write["mask"]
        sequence.append(step)
    return sequence
