"""Combinational arithmetic: the integer operations of golden.fixed as Amaranth expressions.

Each function has the name and the result of its golden counterpart.  Functions that need tables take the module
``m`` and add combinational logic to it; none has state.
"""
