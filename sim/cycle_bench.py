"""cocotb bench of the chip's clock cycles: the host of sim.run.HostPlan on the chip's ports.

Parameters: ``image`` (file) and ``runs``: per run ``prompt``, ``count``, ``flags``, ``image_at`` (None: no image),
``prompt_at``, ``start_at`` and ``pauses``, the arguments of sim.streams.Pauses by stream.  Cycle c is the one that the
c-th edge after reset ends.  Reports ``runs``: ``loaded`` and ``prompt_ready`` (cycle after the last beat was taken),
``tokens``, ``edges`` (first valid cycle of each), ``taken``, ``logits`` (cycle of each position's last beat) and
``counters``.
"""

import cocotb
from cocotb.triggers import RisingEdge

from hw.control.registers import UNIT_STRIDE, Command, Register, Status
from hw.image import load
from hw.program import UNITS
from sim.host import COUNTERS, KINDS
from sim.streams import Pauses, always
from sim.verilator import parameters, report, start


class Source:
    """Offers words on a stream, one run's after the other's, and keeps the cycles in which they are taken."""

    def __init__(self, dut, prefix):
        self.valid, self.ready, self.data, self.last = (
            getattr(dut, f"{prefix}_{name}") for name in ("tvalid", "tready", "tdata", "tlast")
        )
        self.jobs, self.words, self.offering = [], [], False

    def send(self, words, at, willing):
        """Queue words to be offered from cycle ``at`` on; returns the list of cycles that will be filled."""
        taken = []
        self.jobs.append((list(words), at, willing, taken))
        return taken

    def edge(self, cycle):
        """Cycle ``cycle`` has ended: what was taken, and what is offered next."""
        if not self.jobs:
            return
        words, at, willing, taken = self.jobs[0]
        if self.offering and int(self.ready.value):
            taken.append(cycle)
            self.offering = False
            if len(taken) == len(words):
                self.jobs.pop(0)
                self.valid.value = 0
                return self.edge(cycle)
        if not self.offering:
            self.offering = cycle + 1 >= at and willing(cycle + 1)
            self.valid.value = int(self.offering)
            if self.offering:
                self.data.value = words[len(taken)]
                self.last.value = int(len(taken) == len(words) - 1)


class Sink:
    """Takes the beats of a stream; keeps (word, first valid cycle, cycle taken, last)."""

    def __init__(self, dut, prefix):
        self.valid, self.ready, self.data, self.last = (
            getattr(dut, f"{prefix}_{name}") for name in ("tvalid", "tready", "tdata", "tlast")
        )
        self.willing, self.beats, self.since, self.open = always, [], None, False

    def edge(self, cycle):
        """Cycle ``cycle`` has ended."""
        if int(self.valid.value):
            self.since = self.since or cycle
            if self.open:
                self.beats.append((int(self.data.value), self.since, cycle, int(self.last.value)))
                self.since = None
        self.open = self.willing(cycle + 1)
        self.ready.value = int(self.open)


class ClockedHost:
    """Streams and registers, every access in a cycle that is known beforehand (sim.host.Host's is not)."""

    def __init__(self, dut):
        self.dut, self.cycle = dut, 0
        self.image, self.prompt = Source(dut, "s_axis_image"), Source(dut, "s_axis_prompt")
        self.tokens, self.logits = Sink(dut, "m_axis_tokens"), Sink(dut, "m_axis_logits")

    def quiet(self):
        """Inputs before reset."""
        for name in ("s_axil_awvalid", "s_axil_wvalid", "s_axil_arvalid", "s_axis_image_tvalid"):
            getattr(self.dut, name).value = 0
        for name in ("s_axis_prompt_tvalid", "m_axis_tokens_tready", "m_axis_logits_tready"):
            getattr(self.dut, name).value = 0
        self.dut.s_axil_bready.value = self.dut.s_axil_rready.value = 1
        self.dut.s_axil_wstrb.value = 15

    async def tick(self):
        """The rest of this cycle."""
        await RisingEdge(self.dut.clk)
        self.cycle += 1
        for stream in (self.image, self.prompt, self.tokens, self.logits):
            stream.edge(self.cycle)

    async def write(self, address, value):
        """A register write whose address and data are valid in the next cycle."""
        dut = self.dut
        dut.s_axil_awaddr.value, dut.s_axil_wdata.value = int(address), int(value)
        dut.s_axil_awvalid.value = dut.s_axil_wvalid.value = 1
        await self.tick()
        dut.s_axil_awvalid.value = dut.s_axil_wvalid.value = 0
        for _ in range(3):
            await self.tick()

    async def read(self, address):
        """A register."""
        dut = self.dut
        dut.s_axil_araddr.value, dut.s_axil_arvalid.value = int(address), 1
        await self.tick()
        dut.s_axil_arvalid.value = 0
        while True:
            await self.tick()
            if int(dut.s_axil_rvalid.value):
                value = int(dut.s_axil_rdata.value)
                await self.tick()
                return value

    async def counters(self):
        """All counters, as sim.host names them."""
        values = {name.lower(): await self.read(Register[name]) for name in COUNTERS}
        for i, unit in enumerate(UNITS):
            base = Register.UNITS + UNIT_STRIDE * i
            values[unit] = {kind: await self.read(base + 4 * k) for k, kind in enumerate(KINDS)}
        return values


def send(host, run, words):
    """Queue a run's image and prompt; returns their streams' cycles, to be filled, and the sinks' pauses."""
    willing = {name: Pauses(*arguments) for name, arguments in run["pauses"].items()}
    image = None
    if run["image_at"] is not None:
        image = host.image.send(words, run["image_at"], willing.get("image", always))
    prompt = host.prompt.send(run["prompt"], run["prompt_at"], willing.get("prompt", always))
    return image, prompt, willing


async def run_one(host, run, sent):
    """One run; returns its report."""
    image, prompt, willing = sent
    host.tokens.willing, host.logits.willing = willing.get("tokens", always), willing.get("logits", always)
    host.tokens.beats.clear(), host.logits.beats.clear()
    await host.write(Register.COUNT, run["count"])
    await host.write(Register.FLAGS, run["flags"])
    assert host.cycle < run["start_at"], f"cycle {host.cycle} is too late for START in {run['start_at']}"
    while host.cycle < run["start_at"] - 1:
        await host.tick()
    await host.write(Register.COMMAND, Command.START)
    status = await host.read(Register.STATUS)
    assert not status >> 8 & 0xF, f"the chip refused START: error {status >> 8 & 0xF}"
    while not (host.tokens.beats and host.tokens.beats[-1][3]):
        await host.tick()
    while await host.read(Register.STATUS) & Status.RUNNING:
        pass
    return {
        "loaded": image[-1] + 1 if image else None,
        "prompt_ready": prompt[-1] + 1,
        "tokens": [beat[0] for beat in host.tokens.beats],
        "edges": [beat[1] for beat in host.tokens.beats],
        "taken": [beat[2] for beat in host.tokens.beats],
        "logits": [beat[2] for beat in host.logits.beats if beat[3]],
        "counters": await host.counters(),
    }


@cocotb.test()
async def cycles(dut):
    """All runs, one after the other; what they send is queued at once and offered in its cycle."""
    given = parameters()
    host = ClockedHost(dut)
    await start(dut, before=host.quiet)
    words = load(given["image"])
    sent = [send(host, run, words) for run in given["runs"]]
    report(runs=[await run_one(host, *one) for one in zip(given["runs"], sent, strict=True)])
