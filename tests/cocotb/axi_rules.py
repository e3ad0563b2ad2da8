"""What every AXI channel promises, watched while a bench runs."""

from cocotb.triggers import RisingEdge


async def stays(dut, channel, *payload, excused=lambda: False):
    """A valid beat of ``channel`` (its signals' common prefix) stays as it is until it is taken.

    ``excused()`` is true in a cycle in which it may go: a reset.
    """
    valid, ready = (getattr(dut, f"{channel}{name}") for name in ("valid", "ready"))
    signals = [getattr(dut, f"{channel}{name}") for name in payload]
    waiting = None
    while True:
        if waiting is None and not int(valid.value):
            await RisingEdge(valid)
        await RisingEdge(dut.clk)
        beat = [int(signal.value) for signal in signals] if int(valid.value) else None
        assert waiting is None or beat == waiting or excused(), f"{channel}*: a waiting beat fell or changed"
        waiting = beat if not int(ready.value) and not excused() else None
