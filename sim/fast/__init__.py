"""The fast functional machine: a compiled executor of the chip's program, in C++ with golden.fixed's rooms.

``machine.py`` binds it, ``block.py`` tells it about a chip, ``header.py`` writes what both languages share, and
``build.py`` compiles it.
"""

from sim.fast.build import CompilerError
from sim.fast.machine import FastMachine

__all__ = ["CompilerError", "FastMachine"]
