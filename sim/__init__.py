"""Simulators of the chip: a functional machine that executes the program, and the cycle model."""
