"""The functional machine as a compiled executor, bound through ctypes: the same tokens as ``sim.machine``, faster."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from golden.fixed.numbers import Fixed, Ints, ints
from hw.params import BLOCK, Params
from hw.program import Program
from sim.fast.block import Image, parameter_block
from sim.fast.build import compiled

CHUNK = 16  # tokens between two returns to Python: Ctrl-C is seen and whoever follows gets them
ERROR_BYTES = 512

CHIP, SIZE, ARRAY = ctypes.c_void_p, ctypes.c_int64, np.ctypeslib.ndpointer(np.int64, flags="C_CONTIGUOUS")
NAMES = ctypes.POINTER(ctypes.c_char_p)
POINTERS = ctypes.POINTER(ctypes.c_void_p)
SIZES = ctypes.POINTER(ctypes.c_size_t)
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {  # of api.cpp: result, arguments
    "new": (CHIP, [NAMES, POINTERS, SIZES, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]),
    "free": (None, [CHIP]),
    "reset": (None, [CHIP]),
    "position": (SIZE, [CHIP]),
    "logits": (None, [CHIP, ARRAY]),
    "feed": (SIZE, [CHIP, ARRAY, SIZE]),
    "decode": (None, [CHIP, SIZE, SIZE, ARRAY]),
    "sigmoid": (None, [CHIP, ARRAY, SIZE, ARRAY]),
    "exp2_neg": (None, [CHIP, ARRAY, SIZE, ARRAY]),
    "recip": (None, [CHIP, ARRAY, SIZE, ARRAY, ARRAY]),
    "rsqrt": (None, [CHIP, ARRAY, SIZE, SIZE, ARRAY, ARRAY]),
    "quantise": (None, [CHIP, ARRAY, SIZE, ARRAY, ARRAY]),
}


@cache
def library() -> ctypes.CDLL:
    """The compiled executor with its functions' types; raises CompilerError."""
    loaded = ctypes.CDLL(str(compiled().resolve()))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(loaded, f"nanok3_{name}")
        function.restype, function.argtypes = result, arguments
    return loaded


def _new(block: Mapping[str, Ints]) -> int:
    """A chip in the executor; raises ValueError with the executor's reason."""
    names = (ctypes.c_char_p * len(block))(*(name.encode() for name in block))
    data = (ctypes.c_void_p * len(block))(*(values.ctypes.data for values in block.values()))
    sizes = (ctypes.c_size_t * len(block))(*(values.size for values in block.values()))
    reason = ctypes.create_string_buffer(ERROR_BYTES)
    chip = library().nanok3_new(names, data, sizes, len(block), reason, ERROR_BYTES)
    if not chip:
        raise ValueError(reason.value.decode())
    return int(chip)


class FastMachine:
    """Executes a compiled program on a loaded image, token by token, with the twin's arithmetic.

    ``image``: the words of every memory (``Program.image`` or ``hw.image.unpack``).  Raises ImageError for an image of
    another size, RuntimeError for a program that deadlocks, ValueError for commands that leave the chip's memories and
    CompilerError where the executor cannot be compiled.
    """

    def __init__(self, p: Params, program: Program, image: Image) -> None:
        self.p = p
        self._library = library()
        self._chip = _new(parameter_block(p, program, image))
        weakref.finalize(self, self._library.nanok3_free, self._chip)
        self.reset()

    @property
    def position(self) -> int:
        """Tokens taken since the start."""
        return int(self._library.nanok3_position(self._chip))

    def reset(self) -> None:
        """Position 0 comes next."""
        self._library.nanok3_reset(self._chip)

    def step(self, token: int) -> int:
        """Take one token; returns the best next one (the lowest index of the largest logit)."""
        return self.feed([token])

    def feed(self, tokens: Sequence[int]) -> int:
        """Take tokens as the chip takes a prompt, logits for the last alone; returns the best next token."""
        self._check(tokens, len(tokens))
        return int(self._library.nanok3_feed(self._chip, ints(tokens), len(tokens)))

    def logits(self) -> Ints:
        """Logits [vocab] (VEC) of the last token whose logits were computed."""
        out = np.empty(self.p.model.vocab_size, np.int64)
        self._library.nanok3_logits(self._chip, out)
        return out

    def decode(self, prompt: Sequence[int], count: int) -> Iterator[int]:
        """From position 0: take the prompt, then yield ``count`` tokens, each fed back but the last.

        Tokens are computed some at a time, so the machine may be ahead of what has been yielded.
        """
        self.reset()
        self._check(prompt, len(prompt) + count - 1)
        return self._decode(prompt, count)

    def _decode(self, prompt: Sequence[int], count: int) -> Iterator[int]:
        if count > 0:
            yield (token := self.feed(prompt))
        for made in range(1, count, CHUNK):
            out = np.empty(min(CHUNK, count - made), np.int64)
            self._library.nanok3_decode(self._chip, token, len(out), out)
            yield from out.tolist()
            token = int(out[-1])

    def _check(self, tokens: Sequence[int], positions: int) -> None:
        """Refuse tokens that the chip cannot take, and more positions than are left."""
        m = self.p.model
        if not len(tokens):
            raise ValueError("give at least one token")
        for token in tokens:
            if not 0 <= token < m.vocab_size:
                raise ValueError(f"token {token} is not in the vocabulary, 0 to {m.vocab_size - 1}")
        if self.position + positions > m.max_positions:
            raise ValueError(f"{positions} more tokens do not fit: {self.position} of {m.max_positions} are taken")

    # --- single functions, to compare with golden.fixed ---
    def sigmoid(self, x: Ints) -> Ints:
        """golden.fixed.functions.sigmoid of a vector."""
        y = np.empty_like(x)
        self._library.nanok3_sigmoid(self._chip, x, x.size, y)
        return y

    def exp2_neg(self, t: Ints) -> Ints:
        """golden.fixed.functions.exp2_neg of a vector."""
        y = np.empty_like(t)
        self._library.nanok3_exp2_neg(self._chip, t, t.size, y)
        return y

    def recip(self, v: Ints) -> tuple[Ints, Ints]:
        """golden.fixed.functions.recip of a vector."""
        mantissa, exponent = np.empty_like(v), np.empty_like(v)
        self._library.nanok3_recip(self._chip, v, v.size, mantissa, exponent)
        return mantissa, exponent

    def rsqrt(self, v: Ints, frac: int) -> tuple[Ints, Ints]:
        """golden.fixed.functions.rsqrt of a vector."""
        mantissa, exponent = np.empty_like(v), np.empty_like(v)
        self._library.nanok3_rsqrt(self._chip, v, v.size, frac, mantissa, exponent)
        return mantissa, exponent

    def quantise(self, x: Ints, fmt: Fixed) -> tuple[Ints, int]:
        """golden.fixed.mx.quantise of one block [32]: elements in units of 2**-9, scale code."""
        units, scale = np.empty(BLOCK, np.int64), np.empty(1, np.int64)
        self._library.nanok3_quantise(self._chip, x, fmt.frac, units, scale)
        return units, int(scale[0])
