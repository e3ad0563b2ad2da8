"""Names of a position's commands for a person: layer, stage, and the registers that a command reads and writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.timing import Slice

KIND = {"embed": "embed", "out": "head", "final": "head", "head": "head"}
FFN = re.compile(r"mlp|dense\d|down|router|route|z|shared(_\w+)?|expert\w*|routed|up")


@dataclass(frozen=True)
class Name:
    """``layer`` (None outside of them), ``stage`` (embed, mix, attention, ffn, head) and ``operation``."""

    layer: int | None
    stage: str
    operation: str

    def __str__(self) -> str:
        where = self.stage if self.layer is None else f"layer {self.layer} {self.stage}"
        return where if self.operation == self.stage else f"{where}: {self.operation}"


def name(label: str) -> Name:
    """Of a command's label (hw/program.py): ``layer.3.q_nope``, ``out.score0``, ``head``."""
    parts = label.split(".")
    if parts[0] != "layer":
        return Name(None, KIND[parts[0]], ".".join(parts))
    operation = ".".join(parts[2:])
    if parts[2] in ("attn", "mlp", "snap"):
        return Name(int(parts[1]), "mix", operation)
    return Name(int(parts[1]), "ffn" if FFN.fullmatch(parts[2]) else "attention", operation)


def operands(s: Slice) -> str:
    """What the command reads and writes, as ``slots 0-1 * W[24] -> T1``."""
    return {"array": _array, "vector": _vector, "kda": _kda, "mla": _mla, "router": _router}[s.unit](s.step.command)


def _span(start: int, count: int) -> str:
    return f"{start}" if count == 1 else f"{start}-{start + count - 1}"


def _array(c: Mapping[str, Any]) -> str:
    func = c["func"].name
    if func == "EMBED":
        return "token -> P"
    target = "logits" if func == "HEAD" else c["dest"].name.replace("P_ADD", "P +=")
    expert = f" of pick {c['expert']}" if c["expert"] else ""
    weights = f"W[{_span(c['base'], c['groups'] * c['blocks'])}]{expert}"
    return f"slots {_span(c['slot'], c['blocks'])} * {weights} -> {target} ({func.lower()})"


def _vector(c: Mapping[str, Any]) -> str:
    if c["op"].name == "SNAP":
        return f"P -> B{c['index']}"
    if c["op"].name == "SCORE":
        return f"{'P' if c['src'].name == 'P' else 'B' + str(c['index'])} -> score {c['index']}"
    source = c["src"].name
    if source == "MIX":
        source = f"B0-{c['n'] - 2}, P" if c["combine"].name == "RESIDUAL" else f"T0-{c['n'] - 1}, picked weights"
    steps = [] if c["norm"].name == "NONE" else [c["norm"].name.lower()]
    steps += ["weight"] * c["weight"] + [f"gate T{c['gate_reg']}"] * c["gate"]
    target = f"slots {_span(c['slot'], c['segments'])}" if c["out"].name == "SLOTS" else c["out"].name
    return f"{source} -> {target}" + (f" ({', '.join(steps)})" if steps else "")


def _kda(c: Mapping[str, Any]) -> str:
    ports = {"SCAN": "state, k, q, alpha T3 -> sums", "READ": "sums, v T1, beta T0 -> u, o", "WRITE": "u, k -> state"}
    return f"{ports[c['op'].name]} (state {c['layer']})"


def _mla(c: Mapping[str, Any]) -> str:
    return f"query T0, T3, cache {c['layer']} -> context"


def _router(c: Mapping[str, Any]) -> str:
    return f"scores T0, biases {c['layer']} -> picks"
