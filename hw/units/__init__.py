"""The units of the chip (docs/chip.md): each executes the commands of its own program."""
