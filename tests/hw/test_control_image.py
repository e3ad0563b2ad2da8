"""Images: packing, reading back, and one clear line for every way to be bad."""

import random

import pytest

from hw import image
from hw.image import HEADER_WORDS, ImageError, Section
from hw.layouts import Space
from hw.params import from_preset
from hw.program import compile_program

SIZES = {
    Space.WEIGHTS: Section(5, 70),
    Space.VECTOR: Section(3, 32),
    Space.LANE: Section(0, 64),
    Space.ROUTER: Section(2, 33),
}


def contents(seed=1):
    rng = random.Random(seed)
    return {space: [rng.getrandbits(size.width) for _ in range(size.words)] for space, size in SIZES.items()}


def test_round_trip_through_a_file(tmp_path):
    words = image.pack(contents(), 0x12345678, SIZES)
    assert len(words) == HEADER_WORDS + 5 * 3 + 3 + 2 * 2 + 1
    image.save(tmp_path / "chip.img", words)
    assert (tmp_path / "chip.img").read_bytes()[:4] == b"NK3I"
    assert image.unpack(image.load(tmp_path / "chip.img"), 0x12345678, SIZES) == contents()


def test_every_word_matters():
    """No word of an image can change unnoticed."""
    words = image.pack(contents(), 1, SIZES)
    for index in range(len(words)):
        bad = list(words)
        bad[index] ^= 1 << index % 32
        with pytest.raises(ImageError, match="^the image's [^\n]*$"):
            image.unpack(bad, 1, SIZES)


@pytest.mark.parametrize("cut", [0, 2, HEADER_WORDS, -1])
def test_cut_short(cut):
    words = image.pack(contents(), 1, SIZES)
    with pytest.raises(ImageError, match="cut short"):
        image.unpack(words[:cut], 1, SIZES)


def test_other_chip_and_files(tmp_path):
    words = image.pack(contents(), 1, SIZES)
    with pytest.raises(ImageError, match="shape hash is 0x1, this chip's is 0x2"):
        image.unpack(words, 2, SIZES)
    (tmp_path / "odd.img").write_bytes(b"NK3I12")
    with pytest.raises(ImageError, match="6 bytes: not whole words"):
        image.load(tmp_path / "odd.img")
    with pytest.raises(ImageError, match="cannot read image"):
        image.load(tmp_path / "missing.img")


def test_contents_must_fit():
    with pytest.raises(ImageError, match="VECTOR: 2 words given, the chip has 3"):
        image.pack({**contents(), Space.VECTOR: [0, 0]}, 1, SIZES)
    with pytest.raises(ImageError, match="VECTOR: word 1 does not fit 32 bits"):
        image.pack({**contents(), Space.VECTOR: [0, 1 << 32, 0]}, 1, SIZES)


def test_shape_hash_tells_chips_apart():
    chips = [from_preset(name) for name in ("nano-k3", "micro-k3")]
    programs = [compile_program(p) for p in chips]
    assert image.shape_hash(chips[0], programs[0]) == image.shape_hash(chips[0], compile_program(chips[0]))
    moved = compile_program(chips[0])
    moved.placements[3].base += 1
    hashes = {image.shape_hash(p, program) for p, program in zip(chips, programs, strict=True)}
    assert len(hashes | {image.shape_hash(chips[0], moved)}) == 3
