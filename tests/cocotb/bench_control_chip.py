"""Bench of the whole chip: images, prompts and commands through its AXI ports; tokens and logits as the twin says.

Parameters: ``image`` (file); ``runs``, each with ``prompt``, ``count``, ``flags``, ``stalls`` (names of STALLS) and
what the twin says: ``tokens`` and ``logits`` of every position; ``thorough``: more soft resets, and the bad
images that take long to send; ``vocab`` and ``positions``, the chip's limits.
"""

import random
from itertools import chain, repeat

import cocotb
from cocotb.triggers import ClockCycles, Timer
from cocotbext.axi import AxiStreamFrame

from hw.control.registers import Command, Error, Flag, LoadError, Register, Status
from hw.image import HEADER_WORDS, load
from hw.program import UNITS
from sim.host import Host, output_values
from tests.cocotb.axi_rules import stays
from tests.cocotb.runner import parameters, report, start

# share of the cycles and least length of pauses; a position takes hundreds of cycles, and one token is stored
STALLS = {"image": (0.3, 1), "prompt": (0.7, 5), "tokens": (0.6, 700), "logits": (0.5, 2), "lite": (0.5, 2)}


def memory_words(handle):
    """The first word of every memory below ``handle`` by path; none unless compiled with ``memories``."""
    found = {}
    for child in handle:
        if child._name == "mem":
            found[child._path] = str(child[0].value)
        elif hasattr(child, "__iter__") and not hasattr(child, "value"):
            found |= memory_words(child)
    return found


@cocotb.test()
async def start_values(dut):
    """Before the first clock edge: what registers and memories hold is random, by seed."""
    await Timer(1, "ns")
    report(outputs=output_values(dut), memories=memory_words(dut))


async def begin(dut):
    """A host, after reset."""
    host = Host(dut)
    await start(dut)
    return host


async def finish(host, run):
    """Results of a run that was started, whole and nothing more; returns its counters."""
    if run["flags"] & Flag.STREAM_LOGITS:
        for position, expected in enumerate(run["logits"]):
            assert await host.receive_logits() == expected, f"logits of position {position}"
    frame = await host.tokens.recv()
    assert list(frame.tdata) == run["tokens"]
    await ClockCycles(host.dut.clk, 5)
    assert await host.status() == Status.LOADED
    assert host.logits.empty() and host.tokens.empty(), "more than was asked for"
    counters = await host.counters()
    assert (counters["positions"], counters["tokens"]) == (len(run["logits"]), len(run["tokens"]))
    for unit in UNITS:
        assert sum(counters[unit].values()) == counters["cycles"]
    return counters


async def begin_run(host, run):
    """Start a run."""
    await host.run(run["prompt"], run["count"], run["flags"])


async def whole(host, run):
    """A run from its prompt to its end."""
    await begin_run(host, run)
    return await finish(host, run)


def stall(host, names, seed):
    """Random pauses on the named channels, none on the others."""
    for i, (name, (share, length)) in enumerate(STALLS.items()):
        host.stall(name, seed * len(STALLS) + i, share if name in names else 0, length)


@cocotb.test()
async def stalled_runs(dut):
    """Every run under its stalls; the image is loaded anew where its stall begins or ends."""
    host, given = await begin(dut), parameters()
    for stream in ("m_axis_tokens_t", "m_axis_logits_t"):
        cocotb.start_soon(stays(dut, stream, "data", "last"))
    cocotb.start_soon(stays(dut, "s_axil_b", "resp"))
    cocotb.start_soon(stays(dut, "s_axil_r", "resp", "data"))
    words, loaded, counted = load(given["image"]), None, []
    for i, run in enumerate(given["runs"]):
        stall(host, run["stalls"], i)
        if loaded != ("image" in run["stalls"]):
            loaded = "image" in run["stalls"]
            await host.load(words)
        counters = await whole(host, run)
        counted.append([counters["cycles"], counters["token_stalls"]])
    report(counted=counted)


async def soft_reset(host):
    """Soft reset; the outputs' beats of the run that it ends are forgotten."""
    assert await host.command(Command.SOFT_RESET) == Error.NONE
    host.forget()


async def begin_and_wait(host, run):
    """To somewhere in a run: a position takes more than 400 cycles."""
    await begin_run(host, run)
    await ClockCycles(host.dut.clk, random.randrange(350 * len(run["logits"])))
    assert Status.RUNNING in await host.status()


async def hard_reset(host):
    """Reset as at power-up."""
    host.dut.rst.value = 1
    await ClockCycles(host.dut.clk, 3)
    host.dut.rst.value = 0
    host.forget()
    await ClockCycles(host.dut.clk, 2)
    assert await host.read(Register.STATUS) == 0


@cocotb.test()
async def resets(dut):
    """A hard reset in a load, soft resets at any moment of a run, a hard reset in a run; whole runs after each."""
    host, given = await begin(dut), parameters()
    words, runs = load(given["image"]), given["runs"]
    await host.image.send(AxiStreamFrame(words))
    await ClockCycles(dut.clk, random.randrange(100, 1200))
    assert await host.status() == Status.LOADING
    await hard_reset(host)
    await host.load(words)
    for i in range(16 if given["thorough"] else 4):
        ended, after = random.sample(runs, 2)
        stall(host, {"tokens", "logits"} if i % 2 else (), i)
        await begin_and_wait(host, ended)
        await soft_reset(host)
        assert await host.status() == Status.LOADED
        stall(host, (), 0)
        await whole(host, after)
    await begin_and_wait(host, runs[0])
    await hard_reset(host)
    await host.load(words)
    await whole(host, random.choice(runs))


def bad_images(words, thorough):
    """(image, its error) of every kind; two kinds are as long as a good image."""
    short = HEADER_WORDS + 5
    wrong = {0: LoadError.BAD_MAGIC, 1: LoadError.BAD_VERSION, 2: LoadError.BAD_SHAPE}
    for at, error in {**wrong, HEADER_WORDS - 1: LoadError.BAD_SECTION}.items():
        yield [*words[:at], words[at] ^ 1 << random.randrange(32), *words[at + 1 : short]], error
    yield words[:short], LoadError.EARLY_LAST
    if thorough:
        at = random.randrange(HEADER_WORDS, len(words) - 1)
        yield [*words[:at], words[at] ^ 1 << random.randrange(32), *words[at + 1 :]], LoadError.BAD_CHECKSUM
        yield [*words, 0], LoadError.LATE_LAST


async def refuse_images(host, words):
    """Every kind of bad image has its code and leaves no image; a soft reset in a load does, too."""
    for bad, error in bad_images(words, parameters()["thorough"]):
        assert await host.send_image(bad) == error
        assert await host.status() == Status.PROMPT_READY
        assert await host.command(Command.START) == Error.NO_IMAGE
    host.image.set_pause_generator(chain([False] * 40, repeat(True)))
    await host.image.send(AxiStreamFrame(words[:45]))
    await ClockCycles(host.dut.clk, 60)
    assert await host.status() == Status.LOADING | Status.PROMPT_READY
    await soft_reset(host)
    assert (await host.status(), await host.load_error()) == (Status(0), LoadError.ABORTED)
    host.stall("image", 0, share=0)
    await host.image.wait()  # the rest has no header
    await ClockCycles(host.dut.clk, 4)
    assert await host.load_error() == LoadError.BAD_MAGIC


@cocotb.test()
async def refusals(dut):
    """Every reason to refuse an image, a command or a prompt has its code; good runs after each."""
    host, given = await begin(dut), parameters()
    words, runs, limit, vocab = load(given["image"]), given["runs"], given["positions"], given["vocab"]
    await host.send_prompt(runs[0]["prompt"])
    await refuse_images(host, words)
    await host.load(words)

    async def refused(prompt, count, error):
        assert await host.start(prompt, count, 0) == error
        if Status.PROMPT_READY in await host.status():  # a good prompt is kept until a run uses it
            await soft_reset(host)
        await whole(host, random.choice(runs))

    assert await host.command(Command.START) == Error.NO_PROMPT
    await whole(host, runs[0])
    assert await host.command(0x55) == Error.UNKNOWN_COMMAND
    await whole(host, runs[0])
    await refused([1] * (limit + 1), 1, Error.PROMPT_TOO_LONG)
    await refused([1, vocab], 1, Error.BAD_TOKEN)
    await refused([1, 1 << 31], 1, Error.BAD_TOKEN)
    await refused([1, 2], 0, Error.BAD_COUNT)
    await refused([1, 2], limit, Error.PAST_END)

    busy = next(run for run in runs if not run["flags"])
    await begin_run(host, busy)
    assert await host.command(Command.START) == Error.BUSY
    await finish(host, busy)

    host.prompt.set_pause_generator(chain([False] * 3, repeat(True)))
    await host.prompt.send(AxiStreamFrame([1] * 4))
    await ClockCycles(dut.clk, 10)
    assert 0 < await host.read(Register.PROMPT) < 4
    await host.write(Register.COUNT, 1)
    assert await host.command(Command.START) == Error.PROMPT_INCOMPLETE
    host.stall("prompt", 0, share=0)
    await host.prompt.wait()
    await soft_reset(host)
    await whole(host, busy)
