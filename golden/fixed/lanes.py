"""Lane functions: what a matmul row does to its sum (VEC) before it is written back."""

from __future__ import annotations

import math

import numpy as np

from golden.fixed.functions import exp2_neg, sigmoid
from golden.fixed.numbers import CONST, RATE, SIG, VEC, Ints, round_shift, saturate

TANH_SCALE_FRAC = 20  # fraction bits of the constant 2 / beta_linear


def gate(x: Ints) -> Ints:
    """sigmoid(x) of VEC as SIG (output gates, beta, router scores)."""
    return sigmoid(x << 1)


def silu(x: Ints) -> Ints:
    """x sigmoid(x) of VEC as VEC."""
    return round_shift(x * sigmoid(x << 1), SIG.frac)


def conv(window: Ints, taps: Ints) -> Ints:
    """Depthwise causal convolution: window [..., n, 4] VEC oldest first, taps [n, 4] CONST (last = newest), VEC out."""
    return saturate(round_shift((window * taps).sum(axis=-1), CONST.frac), VEC)


def situ(g: Ints, u: Ints, beta: float, linear_beta: float) -> Ints:
    """SiTU-GLU: beta tanh(g/beta) sigmoid(g) * linear_beta tanh(u/linear_beta), VEC to VEC.

    tanh(x) = 2 sigmoid(2x) - 1.  beta must be 4 (a shift); linear_beta an integer up to 31.
    """
    assert beta == 4.0 and float(linear_beta).is_integer() and 1 <= linear_beta <= 31
    one = 1 << SIG.frac
    tanh_g = 2 * sigmoid(g) - one  # g (13 fraction bits) read with 14 is g/2 = 2 (g/4)
    phi = round_shift(tanh_g * sigmoid(g << 1), 2 * SIG.frac - 2 - 16)  # times 4, 16 fraction bits
    return round_shift(phi * situ_linear(u, linear_beta), 16 + 16 - VEC.frac)


def situ_linear(u: Ints, linear_beta: float) -> Ints:
    """linear_beta tanh(u / linear_beta) of VEC with 16 fraction bits."""
    factor = math.floor(2.0 / linear_beta * 2**TANH_SCALE_FRAC + 0.5)
    tanh_u = 2 * sigmoid(round_shift(u * factor, TANH_SCALE_FRAC - 1)) - (1 << SIG.frac)
    return round_shift(int(linear_beta) * tanh_u, SIG.frac - 16)


def decay(f: Ints, dt_bias: Ints, rate: Ints, lower_bound: float) -> Ints:
    """alpha = exp(lower_bound * sigmoid(rate * (f + dt_bias))) as UNIT: f VEC, dt_bias DTB, rate RATE = exp(A_log)."""
    z = saturate(round_shift((f + (dt_bias << 2)) * rate, RATE.frac), VEC)
    factor = decay_factor(lower_bound)
    return exp2_neg(round_shift(sigmoid(z << 1) * factor, SIG.frac + 16 - 16))


def decay_factor(lower_bound: float) -> int:
    """-lower_bound * log2(e) with 16 fraction bits."""
    return math.floor(-lower_bound * math.log2(math.e) * 2**16 + 0.5)


def argmax(logits: Ints) -> Ints:
    """Lowest index of the largest logit, over the last axis."""
    return np.argmax(logits, axis=-1)
