"""What software sees through AXI4-Lite: addresses, commands, bits, error codes.

Byte addresses, 32-bit registers. Reading a write-only register or writing a read-only one answers SLVERR; an
address that is not here answers DECERR. A write takes only the bytes whose strobe is set.

A run: load an image, send the prompt (it is kept until a START uses it), write COUNT and FLAGS, write START to
COMMAND, take the tokens; the run is over when STATUS.running is 0. A START that is refused changes nothing but
STATUS.error, except that a prompt with a bad token or of too many tokens is thrown away.
"""

import enum as plain

from amaranth.lib import enum

IDENTITY = 0x334B4E01  # "NK3" and the version of this register map


class Register(plain.IntEnum):
    """Byte addresses of the registers."""

    IDENTITY = 0x00  # RO
    SHAPE = 0x04  # RO shape hash: images must have the same one
    LIMITS = 0x08  # RO max_positions [15:0], vocab_size [31:16]
    COMMAND = 0x10  # WO [7:0] Command
    COUNT = 0x14  # RW [15:0] tokens to generate; not used by a teacher-forced run
    FLAGS = 0x18  # RW Flag bits; taken when the run starts
    STATUS = 0x20  # RO Status bits
    POSITION = 0x24  # RO position being computed (or the last one)
    PROMPT = 0x28  # RO tokens of the prompt received so far
    CYCLES = 0x40  # RO cycles running; this and all that follow are cleared at START
    TOKENS = 0x44  # RO tokens put out
    POSITIONS = 0x48  # RO positions completed
    LAST_CYCLES = 0x4C  # RO cycles from the start of the last completed position to its end
    TOKEN_STALLS = 0x50  # RO cycles spent waiting because the token stream was not read
    UNITS = 0x80  # RO per unit at 0x80 + 16 u: busy, stalled, idle


UNIT_STRIDE = 0x10


class Command(plain.IntEnum):
    """Values for COMMAND."""

    START = 1
    SOFT_RESET = 2  # ends a run or a load, throws the prompt and output beats away; a loaded image stays


class Flag(plain.IntFlag):
    """Bits of FLAGS."""

    STREAM_LOGITS = 1  # every position's logits on the logits stream
    TEACHER_FORCED = 2  # run over the prompt only, put out the argmax of every position


class Status(plain.IntFlag):
    """Bits of STATUS; error is in [15:8], load_error in [23:16]."""

    RUNNING = 1
    LOADED = 2  # a whole image with the right checksum is in
    LOADING = 4
    PROMPT_READY = 8  # a whole prompt is waiting


class Error(enum.Enum, shape=4):
    """Why the last command was refused; 0 again after one that was not."""

    NONE = 0
    UNKNOWN_COMMAND = 1
    BUSY = 2  # START while running
    NO_IMAGE = 3  # START without a loaded image
    NO_PROMPT = 4  # START with no prompt token received
    PROMPT_INCOMPLETE = 5  # START before the prompt's last token (TLAST)
    PROMPT_TOO_LONG = 6  # more than max_positions tokens
    BAD_TOKEN = 7  # a prompt token is not below vocab_size
    BAD_COUNT = 8  # COUNT is 0
    PAST_END = 9  # prompt + COUNT - 1 is more than max_positions (the last token made is not fed)


class LoadError(enum.Enum, shape=4):
    """How the last image ended."""

    NONE = 0
    BAD_MAGIC = 1
    BAD_VERSION = 2
    BAD_SHAPE = 3  # made for another chip
    BAD_SECTION = 4  # section table is not this chip's
    BAD_CHECKSUM = 5
    EARLY_LAST = 6  # TLAST before the checksum: image cut short
    LATE_LAST = 7  # no TLAST on the checksum: image too long
    ABORTED = 8  # soft reset during the load
