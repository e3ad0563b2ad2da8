"""The image: everything the chip must be loaded with, as one sequence of 32-bit words (little-endian in a file).

word 0        magic "NK3I"
word 1        format version
word 2        shape hash of the chip (``shape_hash``)
words 3..10   per memory (``Space`` order): number of words, 32-bit parts per word
then          the words of each memory in turn, parts from the low bits up
last word     CRC-32 (IEEE 802.3, as zlib's) of all bytes before it

The chip refuses an image whose header is not exactly its own, so a section always fills its memory.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from golden.fixed.numbers import CONST
from hw.layouts import Space
from hw.params import Params
from hw.program import Program

MAGIC = int.from_bytes(b"NK3I", "little")
VERSION = 1
SPACES = tuple(Space.__members__.values())
HEADER_WORDS = 3 + 2 * len(SPACES)


class ImageError(ValueError):
    """An image that cannot be used; one line that says why."""


@dataclass(frozen=True)
class Section:
    """Size of one memory: words used, and bits per word."""

    words: int
    width: int

    @property
    def parts(self) -> int:
        """32-bit parts of a word."""
        return -(-self.width // 32)


def sections(p: Params, program: Program) -> dict[Space, Section]:
    """Sizes of all loadable memories of a chip."""
    widths = {
        Space.WEIGHTS: p.weight_width,
        Space.VECTOR: CONST.width * p.lanes,
        Space.LANE: p.lane_const_width,
        Space.ROUTER: CONST.width * p.model.num_experts,
    }
    return {space: Section(program.words(space), widths[space]) for space in SPACES}


def shape_hash(p: Params, program: Program) -> int:
    """32 bits that differ between chips of different parameters or with their contents in another order."""
    places = [
        [placement.space.name, placement.base, placement.words, placement.label] for placement in program.placements
    ]
    text = json.dumps([p.to_dict(), places], sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def header(shape: int, sizes: Mapping[Space, Section]) -> list[int]:
    """The words before the contents."""
    table = [n for space in SPACES for n in (sizes[space].words, sizes[space].parts)]
    return [MAGIC, VERSION, shape, *table]


def checksum(words: Sequence[int]) -> int:
    """CRC-32 over words."""
    return zlib.crc32(b"".join(word.to_bytes(4, "little") for word in words))


def pack(contents: Mapping[Space, Sequence[int]], shape: int, sizes: Mapping[Space, Section]) -> list[int]:
    """An image as 32-bit words, from the words of every memory."""
    words = header(shape, sizes)
    for space in SPACES:
        size, given = sizes[space], contents[space]
        if len(given) != size.words:
            raise ImageError(f"{space.name}: {len(given)} words given, the chip has {size.words}")
        for index, word in enumerate(given):
            if not 0 <= word < 1 << size.width:
                raise ImageError(f"{space.name}: word {index} does not fit {size.width} bits")
            words += [(word >> 32 * part) & 0xFFFFFFFF for part in range(size.parts)]
    return [*words, checksum(words)]


def unpack(words: Sequence[int], shape: int, sizes: Mapping[Space, Section]) -> dict[Space, list[int]]:
    """The words of every memory; raises ImageError when the image is not a whole one for this chip."""
    expected = header(shape, sizes)
    names = ["magic", "format version", "shape hash"]
    names += [f"{space.name} {what}" for space in SPACES for what in ("words", "parts per word")]
    for name, want, have in zip(names, expected, words, strict=False):
        if want != have:
            raise ImageError(f"the image's {name} is {have:#x}, this chip's is {want:#x}")
    length = HEADER_WORDS + sum(size.words * size.parts for size in sizes.values()) + 1
    if len(words) != length:
        raise ImageError(f"the image has {len(words)} words, this chip's has {length}: it is cut short or too long")
    if checksum(words[:-1]) != words[-1]:
        raise ImageError(f"the image's checksum is {words[-1]:#010x}, its contents give {checksum(words[:-1]):#010x}")
    return _contents(words, sizes)


def _contents(words: Sequence[int], sizes: Mapping[Space, Section]) -> dict[Space, list[int]]:
    """Sections of a checked image."""
    out: dict[Space, list[int]] = {}
    at = HEADER_WORDS
    for space in SPACES:
        size = sizes[space]
        out[space] = []
        for _ in range(size.words):
            out[space].append(sum(part << 32 * i for i, part in enumerate(words[at : at + size.parts])))
            at += size.parts
    return out


def save(path: Path | str, words: Sequence[int]) -> None:
    """Write an image to a file."""
    Path(path).write_bytes(b"".join(word.to_bytes(4, "little") for word in words))


def load(path: Path | str) -> list[int]:
    """Words of an image file; check them with ``unpack``."""
    try:
        raw = Path(path).read_bytes()
    except OSError as problem:
        raise ImageError(f"cannot read image {path}: {problem.strerror}") from problem
    if len(raw) % 4:
        raise ImageError(f"image {path} has {len(raw)} bytes: not whole words, it is cut short")
    return [int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4)]
