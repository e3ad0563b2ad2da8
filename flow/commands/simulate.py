"""``nanok3 sim``: the chip by the clock cycle, without its RTL: tokens, cycles, where they went, and what if."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.table import Table

from flow.commands import common
from flow.commands.common import CommandError, console
from golden.files import check_writable, replaced_file

if TYPE_CHECKING:
    from golden.checkpoint import LoadedModel
    from hw.params import Params
    from sim.run import Request, Result
    from sim.whatif import Chip

TOKENS = 32  # made where --tokens is not given
BENCH_SECONDS = 1.0  # processor time that the simulator's speed is measured over, at least


@dataclass(frozen=True)
class Options:
    """The command's options, as given."""

    prompt: str | None
    tokens: int | None = None
    config: str | None = None
    checkpoint: Path | None = None
    settings: Sequence[str] = ()
    as_json: bool = False
    trace: Path | None = None
    html: Path | None = None
    what_if: Path | None = None
    timing_only: bool = False
    bench: bool = False

    @property
    def count(self) -> int:
        """Tokens to make."""
        return TOKENS if self.tokens is None else self.tokens

    def check(self) -> None:
        """Refuse options that would do nothing beside others, and two files at one place."""
        beside = {
            "a prompt": self.prompt is not None, "--tokens": self.tokens is not None, "--set": bool(self.settings),
            "--json": self.as_json, "--trace": self.trace is not None, "--html": self.html is not None,
            "--timing-only": self.timing_only, "--bench": self.bench,
        }  # fmt: skip
        if self.what_if is not None:
            _refuse("--what-if writes a table of its own chips", beside, tuple(beside))
        if self.bench:
            _refuse("--bench measures speed, with and without tokens", beside, ("--trace", "--html", "--timing-only"))
            if self.count < 2:
                raise CommandError("--bench needs at least two tokens")
        if self.what_if is None and not self.prompt:
            raise CommandError("give a prompt of at least one character")
        if self.trace is not None and self.html is not None:
            if os.path.realpath(self.trace) == os.path.realpath(self.html):
                raise CommandError(f"--trace and --html are both {self.html}: give each a file of its own")


def _refuse(why: str, given: Mapping[str, bool], without: Sequence[str]) -> None:
    """Refuse the first of some options that is given."""
    for option in without:
        if given[option]:
            raise CommandError(f"{why}: leave {option} out")


def run(options: Options) -> None:
    """Simulate; the text made (or the JSON object) goes to stdout, tables to stderr."""
    from flow import rtl
    from sim import whatif

    options.check()
    weightless = options.timing_only or options.what_if is not None
    loaded = (_sizes if weightless else common.load)(options.config, options.checkpoint)
    p = rtl.parameters(options.config, options.checkpoint, loaded)
    if options.what_if is not None:
        _what_if(p, options)
        return
    chip = whatif.apply(p, whatif.parse(options.settings, p))
    request = _request(options, loaded, chip.p)
    if options.bench and chip.projection:
        raise CommandError("--bench compares with RTL, and a projection has none")
    common.announce(loaded)
    if chip.projection:
        console.print(f"projection, no RTL can be generated: {', '.join(chip.projection)}", style="bold")
    if options.bench:
        _bench(options, loaded, chip, request)
        return
    if options.html is not None:
        check_writable(options.html)  # before a long run
    result = _simulate(options, loaded, chip, request)
    _report(options, loaded, chip, result)


def _sizes(config: str | None, checkpoint: Path | None) -> LoadedModel:
    """A model's shapes and its tokenizer; its weights are not read."""
    from golden import checkpoint as store
    from golden.config import load_preset

    if checkpoint is not None and config is None:
        cfg = store.load_config(checkpoint)
    else:
        cfg, _ = load_preset(config or common.DEFAULT)
    folder = checkpoint or store.CHECKPOINTS / common.DEFAULT
    tokenizer = store.load_tokenizer(folder / store.TOKENIZER, cfg)
    return store.LoadedModel(cfg, {}, {}, tokenizer, "timing only, no weights")


def _request(options: Options, loaded: LoadedModel, p: Params) -> Request:
    """The run; a preset without a tokenizer takes the prompt's bytes as tokens."""
    from sim.run import Request

    assert options.prompt is not None
    if loaded.tokenizer is not None:
        ids = common.encoded(loaded.tokenizer, options.prompt)
    else:
        ids = list(options.prompt.encode())
    common.check_tokens(ids, p.model, options.count)
    return Request(ids, options.count)


def _machine(loaded: LoadedModel, chip: Chip) -> Any:
    """The compiled executor with the model's weights."""
    from golden.fixed.weights import chip_weights
    from sim.fast import CompilerError, FastMachine

    if chip.p.model != common.on_chip(loaded):
        raise CommandError("the weights are of another model: add --timing-only to change its shapes")
    try:
        return FastMachine(chip.p, chip.program, chip.program.image(chip_weights(chip.p.model, loaded.state)))
    except CompilerError as e:
        raise CommandError(str(e), 1) from None


def _text(loaded: LoadedModel, tokens: list[int]) -> str | None:
    return None if loaded.tokenizer is None else loaded.tokenizer.decode(tokens)


def _simulate(options: Options, loaded: LoadedModel, chip: Chip, request: Request) -> Result:
    """Run position by position; what an interrupted run has written of the trace stays."""
    from flow.commands.generate import Shown
    from sim.run import Run

    one = Run(chip.timer(), request, machine=None if options.timing_only else _machine(loaded, chip))
    with ExitStack() as stack:
        trace = None
        if options.trace is not None:
            from sim.trace import TraceFile

            title = f"{chip.p.model.name}{' (projection)' if chip.projection else ''}"
            trace = stack.enter_context(TraceFile(options.trace, title, lambda t: _text(loaded, [t]) or str(t)))
        show = None
        if loaded.tokenizer is not None and not options.as_json and not options.timing_only:
            show = Shown(loaded.tokenizer)
        for step in one.steps():
            if trace is not None:
                trace.add(step)
            if show is not None and step.valid is not None and step.token is not None:
                show(step.token)
        if show is not None:
            show.end()
    return one.result


def decoded(result: Result) -> Any:
    """The run as the RTL's runs are kept (sim.decode), which says what cycles per token are."""
    from sim.decode import Decoded

    return Decoded(len(result.request.prompt), result.tokens, result.edges, result.counters())


def _report(options: Options, loaded: LoadedModel, chip: Chip, result: Result) -> None:
    from sim import metrics

    run = decoded(result)
    figures = metrics.metrics(chip.p, chip.t, result)
    if options.html is not None:
        _page(options.html, chip, result, run, _text(loaded, result.tokens))
    if options.as_json:
        path = metrics.critical_path(result.steps[-1].timing)
        print(
            json.dumps(
                {
                    "text": _text(loaded, result.tokens),
                    "token_ids": result.tokens,
                    "cycles_per_token": run.cycles_per_token(),
                    "tokens_per_second": run.tokens_per_second(),
                    "counters": run.counters,
                    "projection": list(chip.projection),
                    "metrics": figures,
                    "critical_path": [part.to_dict() for part in path],
                    "roofline": [r.to_dict() for r in metrics.rooflines(chip.p, chip.t, result.steps[-1].timing)],
                }
            )
        )
        return
    if loaded.tokenizer is None and result.tokens:
        print(",".join(map(str, result.tokens)))
    _tables(chip, result, run)


def _page(file: Path, chip: Chip, result: Result, run: Any, text: str | None) -> None:
    from sim.page import render

    p = chip.p
    facts: dict[str, Any] = {
        "array": f"{p.array_rows * chip.t.array.word_groups} rows", "vector lanes": p.lanes,
        "MLA positions per cycle": chip.t.mla.positions,
        "prompt tokens": len(result.request.prompt), "tokens made": len(result.edges),
    }  # fmt: skip
    per_token = run.cycles_per_token()
    if per_token:
        facts["cycles per token"] = f"{per_token['mean']:,.1f} on average"
        facts["tokens per second at 100 MHz"] = f"{run.tokens_per_second():,.0f}"
    if chip.projection:
        facts["projection: no RTL can be generated"] = ", ".join(chip.projection)
    if text is not None and result.tokens:
        facts["text made"] = text if len(text) < 80 else f"{text[:80]}..."
    page = render(f"{p.model.name} by the clock cycle", p, chip.t, result, facts)
    with replaced_file(file) as temporary:
        temporary.write_text(page)
    console.print(f"page in {file}")


def _tables(chip: Chip, result: Result, run: Any) -> None:
    """Figures for a person."""
    from sim import metrics
    from sim.page import split_table

    per_token = run.cycles_per_token()
    if per_token:
        at = "".join(f", {cycles:,} at context {context}" for context, cycles in per_token["at_context"].items())
        console.print(f"cycles per token: {per_token['mean']:,.1f} on average{at}")
        console.print(f"tokens per second at 100 MHz: {run.tokens_per_second():,.0f}")
    split = Table("cycles", "compute", "dependency", "memory", "idle", "of its peak", box=None)
    for line in split_table(result):
        counts = [f"{count:,}" for _, count, _ in line["parts"]]
        split.add_row(line["unit"], *counts, f"{100 * line['utilisation']:.1f} % of {metrics.PEAKS[line['unit']]}")
    console.print(split)
    last = result.steps[-1]
    path = metrics.critical_path(last.timing)
    stages = Table("critical path, last position", "cycles", box=None)
    for stage, count in metrics.by_stage(path).items():
        stages.add_row(stage, f"{count:,}")
    stages.add_row("all", f"{last.timing.end:,}")
    console.print(stages)
    roofs = Table("roofline", "memory", "MAC/byte", "MAC/cycle", "roof", box=None)
    for r in metrics.rooflines(chip.p, chip.t, last.timing):
        roofs.add_row(r.unit, r.memory, f"{r.intensity:.2f}", f"{r.macs / r.cycles:.1f}", f"{r.roof:.0f}")
    console.print(roofs)


def _what_if(p: Params, options: Options) -> None:
    """Write the table of what-ifs."""
    from sim.whatif_table import table

    assert options.what_if is not None
    text = table(p)
    with replaced_file(options.what_if) as temporary:
        temporary.write_text(text)
    console.print(f"table in {options.what_if}")


# --- speed ---


@contextmanager
def _one_core() -> Iterator[int]:
    """This process and those it starts run on one core."""
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})
    try:
        yield core
    finally:
        os.sched_setaffinity(0, before)


def _bench(options: Options, loaded: LoadedModel, chip: Chip, request: Request) -> None:
    """Cycles per second of RTL in Verilator, simulator, and simulator without tokens; on one core, processor time."""
    from flow import rtl
    from hw import image

    made = rtl.make(chip.p)
    words = rtl.image_words(made, loaded)
    with common.simulation():
        with console.status("compiling the simulation (some minutes, once)"):
            build = rtl.compiled(made)
        with _one_core() as core, TemporaryDirectory() as folder, console.status("RTL in Verilator"):
            file = Path(folder) / rtl.IMAGE
            image.save(file, words)
            given = {"image": str(file.resolve()), "prompt": list(request.prompt), "count": request.count}
            report = build.simulate("sim.speed_bench", parameters=given, timeout=3600)[0].reports
            slow = report["cycles"] / report["seconds"]
            machine = _machine(loaded, chip)
            fast = _speed(chip, request, machine)
            only = _speed(chip, request, None)
    figures = {
        "sim__speed__cycles_per_second__verilator": slow,
        "sim__speed__cycles_per_second__simulator": fast,
        "sim__speed__cycles_per_second__timing_only": only,
        "sim__speed__ratio__simulator": fast / slow,
        "sim__speed__ratio__timing_only": only / slow,
    }
    if options.as_json:
        print(json.dumps({"core": core, "cycles": report["cycles"], "metrics": figures}))
        return
    print(f"RTL in Verilator: {slow:,.0f} cycles/s ({report['cycles']:,} cycles, core {core})")
    print(f"simulator: {fast:,.0f} cycles/s, {fast / slow:,.0f} times")
    print(f"simulator, timing only: {only:,.0f} cycles/s, {only / slow:,.0f} times")


def _speed(chip: Chip, request: Request, machine: Any) -> float:
    """Cycles per second of processor time; every run from nothing, positions simulated before are not kept."""
    from sim.run import Run

    cycles, begin = 0, time.process_time()
    while (seconds := time.process_time() - begin) < BENCH_SECONDS:
        if machine is not None:
            machine.reset()
        result = Run(chip.timer(), request, machine=machine).all()
        cycles += result.counters()["cycles"]
    return cycles / seconds
