"""The integer twin: what the chip computes, to the bit (numpy int64, batched over leading axes)."""
