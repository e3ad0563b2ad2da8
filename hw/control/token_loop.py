"""The token loop: takes the prompt and commands, runs one position after the other, puts tokens out."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import enum
from amaranth.lib.wiring import In, Out

from hw.block import Block
from hw.control.axi import stream_ports
from hw.control.registers import Command, Error
from hw.memory.sram import Sram
from hw.params import Params


class State(enum.Enum, shape=2):
    """What the loop is doing."""

    IDLE = 0
    FETCH = 1  # the first prompt token is being read
    BEGIN = 2  # the first position begins
    RUN = 3  # a position is being computed


class TokenLoop(Block):
    """Prompt, commands, positions and the token stream.

    Ports
    -----
    s_axis_prompt: one token per beat, TLAST on the last. The prompt is stored as it comes, before START; no beat is
    taken while a whole prompt waits or a run uses it. Further beats of one that is too long are dropped.
    m_axis_tokens: one token per beat, TLAST on the last of the run. One token is stored; a position whose token finds
    it full waits (``token_stall``).
    command, command_valid, count, stream_logits, teacher_forced: a command from the registers, in one cycle.
    loaded: an image is in. reset_all: pulse of a soft reset, for everything that computes (this loop resets itself).
    starting: pulse in the cycle in which a START is accepted. running: from the cycle after it to the end of the run.
    restart: pulse at the start of a position. skip_head is sampled with it: the position's logits are not needed.
    head_start: restart without skip_head. token, position, first (position 0), streaming (logits are to be streamed):
    registers, from the cycle after restart on. finished: all programs are at their end. head_complete, best:
    level and token from the head, from the cycle after head_start on those of this position.
    position_end, token_out: pulses, for the counters. error, prompt_length, prompt_ready: for the registers.

    Rules. Free-running: positions 0 .. P + N - 2 for P prompt tokens and count N; the token of a position at or after
    the last prompt token is put out and is the next one's input. Teacher-forced: positions 0 .. P - 1, each position's
    token is put out. The head is skipped at prompt positions before the last of a free run that streams no logits.

    Timing: START to the first restart 2 cycles; the last ``done`` of a position in cycle c, finished in c+1, the next
    restart in that same cycle, the first commands valid in c+2. No combinational path from a stream's inputs to
    an output; ``restart`` is combinational from finished and head_complete.
    """

    def __init__(self, p: Params) -> None:
        self._p = p
        position, token = p.position_bits, p.token_bits
        super().__init__(
            {
                **stream_ports("s_axis_prompt", In),
                **stream_ports("m_axis_tokens", Out),
                "command_valid": In(1),
                "command": In(8),
                "count": In(16),
                "stream_logits": In(1),
                "teacher_forced": In(1),
                "loaded": In(1),
                "reset_all": Out(1),
                "starting": Out(1),
                "running": Out(1),
                "restart": Out(1),
                "skip_head": Out(1),
                "head_start": Out(1),
                "streaming": Out(1),
                "token": Out(token),
                "position": Out(position),
                "first": Out(1),
                "finished": In(1),
                "head_complete": In(1),
                "best": In(token),
                "position_end": Out(1),
                "token_out": Out(1),
                "token_stall": Out(1),
                "error": Out(Error),
                "prompt_length": Out(position + 1),
                "prompt_ready": Out(1),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        self._state = Signal(State)
        self._next = Signal(self._p.position_bits)  # the next position to begin
        self._forget = Signal()  # the prompt is of no more use
        self._emits = Signal(reset_less=True)  # of the current position: its token is put out
        self._skipped = Signal(reset_less=True)  # it has no head
        self._is_last = Signal(reset_less=True)  # it is the run's last
        m.submodules.prompt = self._prompt = Sram(self._p.model.max_positions, self._p.token_bits)
        too_long, bad_token = self._collect(m)
        self._command(m, too_long, bad_token)
        self._positions(m)
        self._put_out(m)
        with m.If(self.reset_all):
            m.d.sync += [self._state.eq(State.IDLE), self.m_axis_tokens_tvalid.eq(0)]
        return m

    def _collect(self, m: Module) -> tuple[Signal, Signal]:
        """Store the prompt; returns (too long, bad token)."""
        limits = self._p.model
        too_long, bad_token = Signal(), Signal()
        prompt, beat, token = self._prompt, Signal(), self.s_axis_prompt_tdata
        full = self.prompt_length == limits.max_positions
        fetch = Signal()  # read the token of the next position
        m.d.comb += [
            self.s_axis_prompt_tready.eq(~self.prompt_ready),
            beat.eq(self.s_axis_prompt_tvalid & self.s_axis_prompt_tready),
            prompt.en.eq(beat & ~full | fetch),
            prompt.we.eq(beat),
            prompt.addr.eq(Mux(beat, self.prompt_length, self._next)),
            prompt.wdata.eq(token),
        ]
        after_restart = Signal()
        m.d.sync += after_restart.eq(self.restart)
        m.d.comb += fetch.eq(after_restart | (self._state == State.FETCH))
        with m.If(beat):
            m.d.sync += [
                self.prompt_length.eq(self.prompt_length + ~full),
                too_long.eq(full),
                bad_token.eq(bad_token | (token >= limits.vocab_size)),
                self.prompt_ready.eq(self.s_axis_prompt_tlast),
            ]
        with m.If(self._forget):
            m.d.sync += [self.prompt_length.eq(0), self.prompt_ready.eq(0), too_long.eq(0), bad_token.eq(0)]
        return too_long, bad_token

    def _command(self, m: Module, too_long: Signal, bad_token: Signal) -> None:
        """Accept or refuse a command."""
        wanted = Signal(range((1 << 16) + self._p.model.max_positions + 1))  # the last token made needs no position
        reasons = (
            (self.running, Error.BUSY),
            (~self.loaded, Error.NO_IMAGE),
            (self.prompt_length == 0, Error.NO_PROMPT),
            (~self.prompt_ready, Error.PROMPT_INCOMPLETE),
            (too_long, Error.PROMPT_TOO_LONG),
            (bad_token, Error.BAD_TOKEN),
            (~self.teacher_forced & (self.count == 0), Error.BAD_COUNT),
            (~self.teacher_forced & (wanted > self._p.model.max_positions + 1), Error.PAST_END),
        )
        refusal = Signal(Error)
        m.d.comb += wanted.eq(self.prompt_length + self.count)
        for condition, error in reversed(reasons):
            with m.If(condition):
                m.d.comb += refusal.eq(error)
        with m.If(self.command_valid):
            with m.Switch(self.command):
                with m.Case(Command.START):
                    m.d.comb += self.starting.eq(refusal.as_value() == 0)
                    m.d.sync += self.error.eq(refusal)
                    with m.If((refusal == Error.PROMPT_TOO_LONG) | (refusal == Error.BAD_TOKEN)):
                        m.d.comb += self._forget.eq(1)
                with m.Case(Command.SOFT_RESET):
                    m.d.comb += [self.reset_all.eq(1), self._forget.eq(1)]
                    m.d.sync += self.error.eq(Error.NONE)
                with m.Default():
                    m.d.sync += self.error.eq(Error.UNKNOWN_COMMAND)

    def _positions(self, m: Module) -> None:
        """Begin positions, one after the other."""
        forced = Signal(reset_less=True)
        final = Signal(self._p.position_bits, reset_less=True)  # last position of the run
        last_prompt = Signal(self._p.position_bits, reset_less=True)
        emits_next = forced | (self._next >= last_prompt)
        m.d.comb += [
            self.running.eq(self._state != State.IDLE),
            self.skip_head.eq(~emits_next & ~self.streaming),
            self.head_start.eq(self.restart & ~self.skip_head),
        ]
        with m.If(self.restart):
            m.d.sync += [
                self._next.eq(self._next + 1),
                self.position.eq(self._next),
                self.first.eq(self._next == 0),
                self.token.eq(Mux(self._next <= last_prompt, self._prompt.rdata, self.best)),
                self._emits.eq(emits_next),
                self._skipped.eq(self.skip_head),
                self._is_last.eq(self._next == final),
            ]
        with m.Switch(self._state):
            with m.Case(State.IDLE):
                with m.If(self.starting):
                    m.d.sync += [
                        self._state.eq(State.FETCH),
                        self._next.eq(0),
                        self.streaming.eq(self.stream_logits),
                        forced.eq(self.teacher_forced),
                        last_prompt.eq(self.prompt_length - 1),
                        final.eq(self.prompt_length + Mux(self.teacher_forced, 0, self.count - 1) - 1),
                    ]
            with m.Case(State.FETCH):
                m.d.sync += self._state.eq(State.BEGIN)
            with m.Case(State.BEGIN):
                m.d.comb += self.restart.eq(1)
                m.d.sync += self._state.eq(State.RUN)
            with m.Case(State.RUN):
                m.d.comb += self.restart.eq(self.position_end & ~self._is_last)
                with m.If(self.position_end & self._is_last):
                    m.d.sync += self._state.eq(State.IDLE)
                    m.d.comb += self._forget.eq(1)

    def _put_out(self, m: Module) -> None:
        """The end of a position, and its token."""
        computed = Signal()
        blocked = self._emits & self.m_axis_tokens_tvalid
        m.d.comb += [
            computed.eq((self._state == State.RUN) & self.finished & (self.head_complete | self._skipped)),
            self.position_end.eq(computed & ~blocked),
            self.token_stall.eq(computed & blocked),
            self.token_out.eq(self.position_end & self._emits),
        ]
        with m.If(self.m_axis_tokens_tready):
            m.d.sync += self.m_axis_tokens_tvalid.eq(0)
        with m.If(self.token_out):
            m.d.sync += [
                self.m_axis_tokens_tvalid.eq(1),
                self.m_axis_tokens_tdata.eq(self.best),
                self.m_axis_tokens_tlast.eq(self._is_last),
            ]
