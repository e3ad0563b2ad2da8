"""Nano K3 in Amaranth: derived parameters, units, memories, the chip and its generator."""
