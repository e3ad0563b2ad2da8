"""RTL of a chip and its image: emitted once per design, written with a manifest that says all that a host needs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flow.commands.common import CommandError, console
from golden.files import replaced_file, replaced_folder

if TYPE_CHECKING:
    from golden.checkpoint import LoadedModel
    from hw.params import Params
    from hw.top import Nanok3
    from sim.verilator import Build

TOP = "nanok3"
VERILOG, IMAGE, MANIFEST = f"{TOP}.v", "image.bin", "manifest.json"
MANIFEST_VERSION = 1
CACHE = Path("build/rtl")
SIMULATIONS = Path("build/sim")


def parameters(config: str | None, checkpoint: Path | None, loaded: LoadedModel) -> Params:
    """Parameters of the preset's chip, or of the default hardware for a checkpoint without a preset."""
    from flow.commands.common import DEFAULT, on_chip
    from hw.params import Params, from_preset

    if config is None and checkpoint is not None:
        return Params(on_chip(loaded))
    return from_preset(config or DEFAULT)


def make(p: Params) -> Nanok3:
    """The chip (imports all of its units)."""
    from amaranth.hdl import UnusedElaboratable

    # a chip that was emitted before is made for its parameters and never elaborated
    warnings.filterwarnings("ignore", category=UnusedElaboratable)
    from hw.top import Nanok3

    return Nanok3(p)


def emitted(chip: Nanok3, cache: Path = CACHE) -> Path:
    """Folder with a chip's Verilog and macro files; emitted when neither parameters nor sources are known."""
    from hw.emit import emit_verilog

    folder = cache / _key(chip)
    if not (folder / VERILOG).is_file():
        with console.status(f"generating the Verilog of {chip.p.model.name}"):
            with replaced_folder(folder, lambda file: True) as work:
                emit_verilog(chip, TOP, None, work)
    return folder


def _key(chip: Nanok3) -> str:
    """Name of a chip: hash of its parameters, of every source it is made from and of the tools."""
    import golden.fixed
    import hw

    digest = hashlib.sha256(json.dumps(chip.p.to_dict(), sort_keys=True).encode())
    for package in (hw, golden.fixed):
        root = Path(package.__path__[0])
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    for tool in ("amaranth", "pyosys"):
        digest.update(importlib.metadata.version(tool).encode())
    return f"{chip.p.model.name}-{digest.hexdigest()[:16]}"


def sources(folder: Path) -> list[Path]:
    """Files of an emitted chip that a simulator compiles."""
    from hw.emit import MODELS

    return [folder / VERILOG, folder / MODELS]


def compiled(chip: Nanok3) -> Build:
    """The chip's simulation, compiled once per design (also behind ``generate --on rtl`` and the tests)."""
    from sim.verilator import build

    return build(sources(emitted(chip)), TOP, folder=SIMULATIONS, compile_flags="-O1")


def image_words(chip: Nanok3, loaded: LoadedModel) -> list[int]:
    """The weights as the chip's loader takes them."""
    from golden.fixed.weights import chip_weights
    from hw import image

    contents = chip.program.image(chip_weights(chip.p.model, loaded.state))
    return image.pack(contents, chip.shape, chip.sizes)


def sha256(file: Path) -> str:
    """Hash of a file, as the manifest and the results state it."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def manifest(chip: Nanok3, loaded: LoadedModel, hashes: dict[str, str]) -> dict[str, Any]:
    """Formats, address map, image layout and hashes of a written chip."""
    from golden.fixed.numbers import FORMATS
    from hw import image
    from hw.control import registers
    from hw.program import UNITS

    at = image.HEADER_WORDS
    sections = {}
    for space, size in chip.sizes.items():
        sections[space.name] = {"word": at, "words": size.words, "width": size.width, "parts": size.parts}
        at += size.words * size.parts
    units = {
        f"{unit}_{kind}": registers.Register.UNITS + registers.UNIT_STRIDE * i + 4 * k
        for i, unit in enumerate(UNITS)
        for k, kind in enumerate(("busy", "stalled", "idle"))
    }

    def codes(kind: Any) -> dict[str, int]:
        return {name: int(member.value) for name, member in kind.__members__.items()}

    return {
        "manifest_version": MANIFEST_VERSION,
        "top": TOP,
        "preset": chip.p.model.name,
        "weights": loaded.source,
        "parameters": chip.p.to_dict(),
        "formats": {
            "fixed_point": {
                f.name: {"width": f.width, "fraction": f.frac, "signed": f.signed} for f in FORMATS.values()
            },
            "rounding": "half up, then saturation",
            "matrices": "MXFP4: E2M1 elements, one E8M0 scale for 32 along the fan-in, scale rule floor",
            "matrix_inputs": "MXFP8: E4M3 elements, one E8M0 scale for 32, scale rule floor, round to nearest even",
            "streams": "32-bit beats: image words, token ids, logits (vec, sign-extended)",
        },
        "registers": codes(registers.Register) | units,
        "codes": {
            name: codes(getattr(registers, name)) for name in ("Command", "Flag", "Status", "Error", "LoadError")
        },
        "image": {
            "file": IMAGE,
            "byte_order": "little-endian 32-bit words",
            "magic": image.MAGIC,
            "version": image.VERSION,
            "shape_hash": chip.shape,
            "sections": sections,
            "placements": [
                {"memory": pl.space.name, "address": pl.base, "words": pl.words, "holds": pl.label}
                for pl in chip.program.placements
            ],
            "checksum": "CRC-32 of all words before it, in the last word",
        },
        "sha256": hashes,
        "tools": {tool: importlib.metadata.version(tool) for tool in ("amaranth", "pyosys")},
    }


def write(config: str | None, checkpoint: Path | None, folder: Path) -> None:
    """``nanok3 rtl``: Verilog, macro views, image and manifest in one folder, whole or not at all."""
    from flow.commands import common
    from hw import image

    loaded = common.load(config, checkpoint)
    p = parameters(config, checkpoint, loaded)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise CommandError(f"{folder} holds something else: give a new or empty folder")
    chip = make(p)
    words = image_words(chip, loaded)
    with replaced_folder(folder, lambda file: True) as work:
        common.announce(loaded)
        for file in emitted(chip).iterdir():
            if file.suffix in (".v", ".lib", ".lef", ".json"):
                (work / file.name).write_bytes(file.read_bytes())
        image.save(work / IMAGE, words)
        hashes = {file.name: sha256(file) for file in sorted(work.iterdir())}
        (work / MANIFEST).write_text(json.dumps(manifest(chip, loaded, hashes), indent=1) + "\n")
    console.print(f"{folder}: {VERILOG} {hashes[VERILOG][:12]}, {IMAGE} {4 * len(words):,} bytes, {MANIFEST}")


def record(file: Path, verilog: str, **parts: Any) -> None:
    """Keep measured figures of a design; figures of an older Verilog are dropped."""
    old = json.loads(file.read_text()) if file.is_file() else {}
    kept = old if old.get("verilog_sha256") == verilog else {}
    with replaced_file(file) as temporary:
        temporary.write_text(json.dumps({**kept, "verilog_sha256": verilog, **parts}, indent=1) + "\n")
