"""A run as a Perfetto trace (ui.perfetto.dev): a track per unit, a slice per command, one clock cycle = 10 ns.

Each position is written whole as soon as it is simulated, so that what an interrupted run leaves can be read.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from golden.files import WriteError
from hw.program import UNITS
from sim.run import Step
from sim.stages import name, operands
from sim.timing import Slice

CYCLE_NS = 10
SEQUENCE = 1  # all packets are of one writer
CHIP, TOKENS = 1, 2  # uuids of tracks; units follow
TRACKS = {unit: TOKENS + 1 + i for i, unit in enumerate(UNITS)}


class TraceFile:
    """Writes positions to ``path``; use as a context.  Raises WriteError when it cannot be written.

    ``text`` gives the text of a token, for the token track.
    """

    def __init__(self, path: Path, title: str, text: Callable[[int], str] = str) -> None:
        self.path, self.text = path, text
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "wb", buffering=0)
        except OSError as e:
            raise WriteError(f"cannot write {path}: {e.strerror}") from None
        self._begin()
        self._track(CHIP, title, None)
        self._track(TOKENS, "positions", CHIP)
        for unit, uuid in TRACKS.items():
            self._track(uuid, unit, CHIP)
        self._flush()

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, step: Step) -> None:
        """One position."""
        self._begin()
        made = "" if step.valid is None or step.token is None else f" -> {self.text(step.token)!r}"
        facts = {"position": step.position, "cycles": step.timing.end, "waited_for_token_stream": step.end - step.over}
        self._slice(TOKENS, f"position {step.position}{made}", "position", step.restart, step.end, facts)
        for one in step.timing.slices:
            self._command(step.restart, one)
        self._flush()

    def _command(self, start: int, s: Slice) -> None:
        at = name(s.step.label)
        if s.valid > s.shown:
            cause = s.cause.step.label if s.cause else "restart"
            waits = {"for": cause, "command": s.step.label}
            self._slice(TRACKS[s.unit], "waits", "stall", start + s.shown, start + s.valid, waits)
        facts = {
            "layer": -1 if at.layer is None else at.layer, "stage": at.stage, "operation": at.operation,
            "operands": operands(s), "done_cycle": start + s.done, "compute_cycles": s.split.compute,
            "dependency_stall_cycles": s.split.dependency, "memory_stall_cycles": s.split.memory,
        }  # fmt: skip
        self._slice(TRACKS[s.unit], str(at), at.stage, start + s.valid, start + s.take + 1, facts)

    # --- packets ---
    def _begin(self) -> None:
        self._buffer = io.BytesIO()
        self._builder = StreamingTraceProtoBuilder(self._buffer)

    def _flush(self) -> None:
        rest = memoryview(self._buffer.getvalue())
        try:
            while rest:  # a full disk takes a part first, and says so at the next
                rest = rest[self._file.write(rest) :]
        except OSError as e:
            raise WriteError(f"cannot write {self.path}: {e.strerror}") from None

    def _packet(self) -> TracePacket:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = SEQUENCE
        return packet

    def _track(self, uuid: int, title: str, parent: int | None) -> None:
        packet = self._packet()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.name = title
        if parent is not None:
            packet.track_descriptor.parent_uuid = parent
            packet.track_descriptor.sibling_order_rank = uuid
        else:
            packet.track_descriptor.child_ordering = packet.track_descriptor.EXPLICIT
        self._builder.write_packet(packet)

    def _slice(self, track: int, title: str, category: str, start: int, end: int, facts: dict[str, Any]) -> None:
        packet = self._packet()
        packet.timestamp = start * CYCLE_NS
        event = packet.track_event
        event.type, event.track_uuid, event.name = TrackEvent.TYPE_SLICE_BEGIN, track, title
        event.categories.append(category)
        for key, value in facts.items():
            annotation = event.debug_annotations.add()
            annotation.name = key
            if isinstance(value, int):
                annotation.int_value = value
            else:
                annotation.string_value = value
        self._builder.write_packet(packet)
        packet = self._packet()
        packet.timestamp = end * CYCLE_NS
        packet.track_event.type, packet.track_event.track_uuid = TrackEvent.TYPE_SLICE_END, track
        self._builder.write_packet(packet)
