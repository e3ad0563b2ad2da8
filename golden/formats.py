"""Number formats of matrices and matmul inputs: one table, exact encoders and decoders.

Source: OCP Microscaling Formats (MX) v1.0.  A block is 32 values along the
fan-in that share one E8M0 scale 2^(code-127).  The scale rule is named
``floor``: exponent = floor(log2(amax)) - emax, clamped to E8M0's range, then
elements round to nearest even and saturate.  So a block whose amax lies in
(1.75 * 2^k, 2 * 2^k) clips to 448 * scale in E4M3; that is the rule, not a bug.

numpy functions give codes and exact float64 values (used by checkpoints, the
integer twin and the vectors); the torch function quantises and returns values
with a straight-through gradient (used by the float model and in training).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

MX_BLOCK = 32  # values that share a scale
E8M0_BIAS = 127
E8M0_NAN = 255
E8M0_MIN_EXP = -127  # code 0
E8M0_MAX_EXP = 127  # code 254
SCALE_RULE = "floor"
INT4_GROUP = 128  # nano-kpu: values that share a scale and a zero point


@dataclass(frozen=True)
class ElementFormat:
    """A small float: sign, ``exp_bits``, ``man_bits``; widths in bits, no infinities."""

    name: str
    exp_bits: int
    man_bits: int
    bias: int
    emax: int  # exponent of the largest binade, subtracted by the scale rule
    max_value: float
    nan_code: int | None  # magnitude code of NaN (both signs), if any

    @property
    def min_exp(self) -> int:
        """Exponent of the smallest normal number; subnormals share its step."""
        return 1 - self.bias

    @property
    def sign_bit(self) -> int:
        """Value of the sign bit within a code."""
        return 1 << (self.exp_bits + self.man_bits)


E2M1 = ElementFormat("E2M1", exp_bits=2, man_bits=1, bias=1, emax=2, max_value=6.0, nan_code=None)
E4M3 = ElementFormat("E4M3", exp_bits=4, man_bits=3, bias=7, emax=8, max_value=448.0, nan_code=0x7F)

#: MX formats by name: the element format used with an E8M0 scale per 32 values.
FORMATS: dict[str, ElementFormat] = {"mxfp4": E2M1, "mxfp8": E4M3}


# ---------------------------------------------------------------- elements (numpy, exact)


def element_values(fmt: ElementFormat) -> np.ndarray:
    """float64 [2^bits]: the value of every code (NaN where the code is NaN)."""
    code = np.arange(2 * fmt.sign_bit)
    mag = code & (fmt.sign_bit - 1)
    exp, man = mag >> fmt.man_bits, mag & ((1 << fmt.man_bits) - 1)
    # subnormals (exp 0) have no hidden one and share the exponent of exp 1
    significand = np.where(exp == 0, man, man + (1 << fmt.man_bits))
    value = np.ldexp(significand.astype(np.float64), np.maximum(exp, 1) - fmt.bias - fmt.man_bits)
    if fmt.nan_code is not None:
        value[mag == fmt.nan_code] = np.nan
    return np.where(code & fmt.sign_bit, -value, value)


def decode_element(codes: np.ndarray, fmt: ElementFormat) -> np.ndarray:
    """Codes (any integer dtype, any shape) -> float64 values, exact."""
    return element_values(fmt)[np.asarray(codes)]


def encode_element(x: np.ndarray, fmt: ElementFormat) -> np.ndarray:
    """Values -> uint8 codes: nearest, ties to the even code, saturating; the sign of zero is kept.

    NaN becomes the format's NaN; a format without one refuses it (ValueError).
    """
    x = np.asarray(x, dtype=np.float64)
    positive = element_values(fmt)[: fmt.sign_bit]
    positive = positive[~np.isnan(positive)]
    middles = (positive[:-1] + positive[1:]) / 2  # exact: few bits each
    mag = np.abs(x)
    below = np.searchsorted(middles, mag, side="left")  # a tie stays at the lower code ...
    tie = (below < len(middles)) & (mag == middles[np.minimum(below, len(middles) - 1)])
    code = below + (tie & (below % 2 == 1))  # ... unless that one is odd
    code = np.where(np.signbit(x), code | fmt.sign_bit, code)
    nan = np.isnan(x)
    if nan.any():
        if fmt.nan_code is None:
            raise ValueError(f"{fmt.name} has no code for NaN")
        code = np.where(nan, fmt.nan_code, code)
    return code.astype(np.uint8)


def decode_e8m0(codes: np.ndarray) -> np.ndarray:
    """E8M0 codes -> float64 scales 2^(code-127); 255 is NaN, 0 is 2^-127."""
    codes = np.asarray(codes).astype(np.int64)
    return np.where(codes == E8M0_NAN, np.nan, np.ldexp(1.0, codes - E8M0_BIAS))


def floor_log2(x: np.ndarray) -> np.ndarray:
    """floor(log2(x)) of positive finite values, exact (from the representation, not a logarithm)."""
    return np.frexp(x)[1] - 1


# ---------------------------------------------------------------- MX blocks (numpy, exact)


def _blocks(x: np.ndarray, size: int = MX_BLOCK) -> np.ndarray:
    if x.shape[-1] % size:
        raise ValueError(f"last axis of {x.shape} is not a multiple of the block, {size}")
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def scale_exponent(amax: np.ndarray, fmt: ElementFormat) -> np.ndarray:
    """Rule ``floor``: int64 exponents for block maxima (>= 0, finite), within E8M0's range.

    An all-zero block gets the smallest scale, code 0.
    """
    amax = np.asarray(amax, dtype=np.float64)
    exponent = floor_log2(np.where(amax > 0, amax, 1.0)).astype(np.int64) - fmt.emax
    exponent = np.where(amax > 0, exponent, E8M0_MIN_EXP)
    return np.clip(exponent, E8M0_MIN_EXP, E8M0_MAX_EXP)


def mx_encode(x: np.ndarray, fmt: ElementFormat) -> tuple[np.ndarray, np.ndarray]:
    """Values [..., n] -> (element codes uint8 [..., n], scale codes uint8 [..., n/32]).

    A block that holds a NaN or an infinity gets scale 255 (the whole block is NaN) and zero elements.
    """
    blocks = _blocks(np.asarray(x, dtype=np.float64))
    bad = ~np.isfinite(blocks).all(-1)
    blocks = np.where(bad[..., None], 0.0, blocks)
    exponent = scale_exponent(np.abs(blocks).max(-1), fmt)
    codes = encode_element(np.ldexp(blocks, -exponent[..., None]), fmt)
    scales = np.where(bad, E8M0_NAN, exponent + E8M0_BIAS).astype(np.uint8)
    return codes.reshape(np.shape(x)), scales


def mx_decode(codes: np.ndarray, scales: np.ndarray, fmt: ElementFormat) -> np.ndarray:
    """(codes [..., n], scale codes [..., n/32]) -> float64 values [..., n], exact."""
    values = _blocks(decode_element(codes, fmt)) * decode_e8m0(scales)[..., None]
    return values.reshape(np.shape(codes))


def pack_e2m1(codes: np.ndarray) -> np.ndarray:
    """E2M1 codes [..., n] -> bytes [..., n/2]; the low nibble is the even column (released layout)."""
    codes = np.asarray(codes, dtype=np.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_e2m1(packed: np.ndarray) -> np.ndarray:
    """Bytes [..., n/2] -> E2M1 codes [..., n]; the inverse of pack_e2m1."""
    packed = np.asarray(packed, dtype=np.uint8)
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


# ---------------------------------------------------------------- MX values (torch, straight-through)

# integer view of a float's exponent field, and its mantissa width
_FLOAT_BITS: dict[torch.dtype, tuple[torch.dtype, int, int]] = {
    torch.float32: (torch.int32, 0x7F800000, 23),
    torch.float64: (torch.int64, 0x7FF0000000000000, 52),
}


def _binade(x: torch.Tensor) -> torch.Tensor:
    """2^floor(log2|x|), by masking the exponent field (0 for zero and subnormals)."""
    int_type, mask, _ = _FLOAT_BITS[x.dtype]
    return (x.contiguous().view(int_type) & mask).view(x.dtype)


def mx_binade(x: torch.Tensor, fmt: ElementFormat) -> torch.Tensor:
    """Block maxima's binades [..., n/32]: scale * 2^emax, with the scale clamped to E8M0's range."""
    amax = x.unflatten(-1, (-1, MX_BLOCK)).abs().amax(-1)
    low, high = 2.0 ** (E8M0_MIN_EXP + fmt.emax), 2.0 ** min(E8M0_MAX_EXP + fmt.emax, 127)
    return _binade(amax).clamp_(low, high)


def mx_round(x: torch.Tensor, fmt: ElementFormat) -> torch.Tensor:
    """Nearest MX values of x [..., n] (float32 or float64), equal to mx_decode(mx_encode(x)).

    In float32 for block maxima in 2^-100 .. 2^100 (its own range ends there), in float64 for every float32.

    No scaling of elements is needed: adding and taking away 1.5 * 2^(mantissa bits) steps
    rounds to a multiple of the step, ties to even, in the float's own adder.
    """
    top = mx_binade(x, fmt).unsqueeze(-1)
    blocks = x.unflatten(-1, (-1, MX_BLOCK))
    magic_exp = _FLOAT_BITS[x.dtype][2] - fmt.man_bits
    magic = torch.maximum(_binade(blocks), top * 2.0 ** (fmt.min_exp - fmt.emax))
    magic.mul_(1.5 * 2.0**magic_exp)
    limit = top * (fmt.max_value / 2.0**fmt.emax)
    rounded = (blocks + magic).sub_(magic)
    return torch.minimum(torch.maximum(rounded, -limit, out=rounded), limit, out=rounded).flatten(-2)


class _StraightThrough(torch.autograd.Function):
    """Forward: mx_round; backward: identity."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fmt: ElementFormat) -> torch.Tensor:  # noqa: D102
        return mx_round(x, fmt)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: D102
        return grads[0], None


def mx_quantise(x: torch.Tensor, fmt: ElementFormat | str) -> torch.Tensor:
    """Fake quantisation along the last axis (a multiple of 32), straight-through gradient."""
    out: torch.Tensor = _StraightThrough.apply(x, FORMATS[fmt] if isinstance(fmt, str) else fmt)  # type: ignore[no-untyped-call]
    return out


# ---------------------------------------------------------------- int4, nano-kpu's weight format


def int4_encode(w: np.ndarray, group: int = INT4_GROUP) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Asymmetric int4: values [..., n] -> (codes 0..15 [..., n], scales [..., g], zero points 0..15 [..., g]).

    Groups of min(128, n) along the fan-in; value = (code - zero) * scale; the range always holds 0,
    so the zero point is a code. A group of zeros gets scale 1.
    """
    w = np.asarray(w, dtype=np.float64)
    blocks = _blocks(w, min(group, w.shape[-1]))
    low, high = np.minimum(blocks.min(-1), 0.0), np.maximum(blocks.max(-1), 0.0)
    scale = np.where(high > low, (high - low) / 15.0, 1.0)
    zero = np.clip(np.rint(-low / scale), 0, 15)
    codes = np.clip(np.rint(blocks / scale[..., None]) + zero[..., None], 0, 15)
    return codes.reshape(w.shape).astype(np.uint8), scale, zero.astype(np.uint8)


def int4_decode(codes: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """The inverse of int4_encode: float64 values [..., n]."""
    groups = np.asarray(scale).shape[-1]
    blocks = _blocks(np.asarray(codes, dtype=np.float64), codes.shape[-1] // groups)
    values = (blocks - np.asarray(zero, dtype=np.float64)[..., None]) * np.asarray(scale)[..., None]
    return values.reshape(codes.shape)


def int4_quantise(w: torch.Tensor) -> torch.Tensor:
    """Fake int4 group-128 quantisation of a weight, straight-through gradient."""
    exact = int4_decode(*int4_encode(w.detach().cpu().numpy()))
    return w + (torch.from_numpy(exact).to(w.dtype) - w.detach())
