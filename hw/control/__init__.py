"""What surrounds the units: issuing commands, the token loop, loading, registers and counters, AXI."""
