"""The command ``nanok3``: argument lists here, work in flow.commands (imported when needed)."""

from __future__ import annotations

import enum
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="nanok3",
    help="An open accelerator that decodes a nano Kimi K3: golden model, RTL, synthesis, layout.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

INTERRUPTED = 130  # what typer returns after Ctrl-C, too


class Level(enum.StrEnum):
    """Where a token sequence is decoded."""

    FLOAT = "float"
    TWIN = "twin"
    RTL = "rtl"


class Model(enum.StrEnum):
    """Levels that need no simulator."""

    FLOAT = "float"
    TWIN = "twin"


class Compared(enum.StrEnum):
    """Levels that can be compared stage by stage."""

    FLOAT = "float"
    QUANTISED = "quantised"
    TWIN = "twin"
    RTL = "rtl"


class Dtype(enum.StrEnum):
    """Arithmetic of the float model."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


Config = Annotated[str | None, typer.Option("--config", help="Preset name or .yaml path (default nano-k3).")]
Preset = Annotated[str, typer.Option("--config", help="Preset name or .yaml path.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="Checkpoint folder; without --config, its config.json is the model."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Record = Annotated[
    Path | None, typer.Option("--record", help="Also keep the figures in this file, under the Verilog's hash.")
]
IDS = "Token ids, such as 5,17,300."


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="How many tokens to make.")] = 32,
    on: Annotated[Level, typer.Option("--on", help="float model, integer twin, or the chip in RTL simulation.")] = (
        Level.TWIN
    ),
    config: Config = None,
    checkpoint: Checkpoint = None,
    quantise: Annotated[bool, typer.Option("--quantise", help="float only: MXFP4 matrices, MXFP8 inputs.")] = False,
    as_json: AsJson = False,
    record: Record = None,
) -> None:
    """Continue PROMPT greedily; the text made is printed on stdout.

    JSON keys: text and token_ids (of the tokens made), cycles_per_token, tokens_per_second, counters (null unless rtl).
    """
    from flow.commands import generate as command

    command.run(prompt, tokens, str(on), config, checkpoint, quantise, as_json, record)


@app.command()
def sim(
    prompt: Annotated[str | None, typer.Argument(help="Text to continue.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="How many tokens to make (default 32).")] = None,
    config: Config = None,
    checkpoint: Checkpoint = None,
    as_json: AsJson = False,
    trace: Annotated[Path | None, typer.Option("--trace", help="Perfetto trace to write.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Page to write: timeline of a token.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Replace a parameter: array.rows=32 (again for more).")
    ] = None,
    timing_only: Annotated[bool, typer.Option("--timing-only", help="No weights, no tokens: cycles alone.")] = False,
    bench: Annotated[bool, typer.Option("--bench", help="Cycles per second of RTL in Verilator and of this.")] = False,
    what_if: Annotated[
        Path | None, typer.Option("--what-if", help="Write a table of changed chips instead; takes no prompt.")
    ] = None,
) -> None:
    """The chip by the clock cycle, without its RTL: text, cycles per token, and where they went.

    JSON keys: those of 'generate', projection (settings that no RTL can be generated for), metrics, critical_path and
    roofline of the last position.
    """
    from flow.commands import simulate as command

    command.run(
        command.Options(
            prompt, tokens, config, checkpoint, settings or [], as_json, trace, html, what_if, timing_only, bench
        )
    )


@app.command()
def logits(
    tokens: Annotated[str, typer.Option("--tokens", help=IDS)],
    out: Annotated[Path, typer.Option("-o", "--out", help=".npz file to write.")],
    checkpoint: Checkpoint = None,
    config: Config = None,
    on: Annotated[Model, typer.Option("--on", help="float model or integer twin.")] = Model.FLOAT,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="float only.")] = Dtype.FLOAT32,
    quantise: Annotated[bool, typer.Option("--quantise", help="float only: MXFP4 matrices, MXFP8 inputs.")] = False,
) -> None:
    """Write logits [T, V] and trace [T, L, d] (the running prefix after each layer) of given tokens."""
    from flow.commands import logits as command

    command.write(tokens, out, str(on), config, checkpoint, str(dtype), quantise)


@app.command()
def compare(
    left: Annotated[Compared, typer.Argument(help="The level that is trusted.")],
    right: Annotated[Compared, typer.Argument(help="The level that is checked.")],
    tokens: Annotated[str | None, typer.Option("--tokens", help=f"{IDS[:-1]} (default: eight of them).")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Text in place of --tokens.")] = None,
    config: Config = None,
    checkpoint: Checkpoint = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="Allowed difference, as a share of the stage's RMS.")
    ] = 0.0,
    show_all: Annotated[bool, typer.Option("--all", help="Also the largest difference of every stage.")] = False,
) -> None:
    """Run two levels on the same tokens; print the first stage that differs and by how much (exit code 1).

    rtl reads the registers of the chip in a simulation of its own, compiled once per design.
    """
    from flow.commands import compare as command

    raise typer.Exit(command.run(str(left), str(right), tokens, prompt, config, checkpoint, tolerance, show_all))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def train(context: typer.Context) -> None:
    """Train nano-k3 with quantisation in the loop; 'nanok3 train --help' lists the options."""
    from flow.commands import training as command

    command.train(context.args)


@app.command()
def export(
    weights: Annotated[Path, typer.Argument(help="The trainer's .safetensors file.")],
    folder: Annotated[Path, typer.Argument(help="Checkpoint folder to write.")],
    config: Preset = "nano-k3",
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="tokenizer.json (default: nano-k3's if it fits).")
    ] = None,
) -> None:
    """Write trained weights as a checkpoint in the released layout, rounded to the chip's formats."""
    from flow.commands import training as command

    command.export(weights, folder, config, tokenizer)


@app.command("eval")
def evaluate(
    config: Config = None,
    checkpoint: Checkpoint = None,
    windows: Annotated[
        int | None,
        typer.Option("--windows", min=1, help="Score this many windows, spread over the text (default all)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Held-out bits per byte of float, quantised float and twin, beside a 3-byte model and xz; 1 if a bar is missed."""
    from flow.commands import training as command

    raise typer.Exit(command.evaluate(config, checkpoint, windows, as_json))


@app.command()
def rtl(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder to write.")],
    config: Config = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write a chip: nanok3.v (top nanok3), macro views, image.bin, manifest.json (formats, addresses, hashes).

    The folder appears whole or not at all.
    """
    from flow import rtl as command

    command.write(config, checkpoint, out)


@app.command()
def synth(
    config: Preset = "nano-k3",
    as_json: AsJson = False,
    record: Record = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Modules mapped at once.")] = 2,
) -> None:
    """Synthesise a preset's chip to Nangate 45: area, worst slack at 10 ns, paths from and to macros (cached)."""
    from flow.commands import synth as command

    command.run(config, as_json, record, workers)


@app.command()
def flow(
    config: Preset = "nano-k3",
    unit: Annotated[str | None, typer.Option("--unit", help="One unit or tile (default: the whole chip).")] = None,
    to: Annotated[str | None, typer.Option("--to", help="The last step to run.")] = None,
    openroad: Annotated[Path | None, typer.Option("--openroad", help="OpenROAD's program (default: on PATH).")] = None,
    container: Annotated[bool, typer.Option("--container", help="OpenROAD of the image openroad/orfs.")] = False,
    lib_slow: Annotated[Path | None, typer.Option("--lib-slow", help="Liberty of the slow corner.")] = None,
    lib_fast: Annotated[Path | None, typer.Option("--lib-fast", help="Liberty of the fast corner.")] = None,
    rcx_rules: Annotated[Path | None, typer.Option("--rcx-rules", help="OpenRCX rules for extraction.")] = None,
    utilisation: Annotated[
        float | None, typer.Option("--utilisation", min=0.05, max=1.0, help="Cells and macros over the core's area.")
    ] = None,
    die: Annotated[str | None, typer.Option("--die", help="Width and height in um, such as 500x400.")] = None,
    flat: Annotated[bool, typer.Option("--flat", help="Without blocks: everything is placed at once.")] = False,
    channel: Annotated[
        str | None,
        typer.Option("--channel", help="Between blocks in um (default: 40), or 250x90: between columns and in them."),
    ] = None,
    routability: Annotated[
        bool, typer.Option(help="Place cells further apart where their wires would not fit.")
    ] = True,
) -> None:
    """Lay out a preset's chip, or a unit of it, on Nangate 45 with OpenROAD; steps are kept and resumed.

    Results are in build/flow/<design> (docs/flow.md); the path of report.json is printed.
    """
    from flow.commands import flow as command

    command.run(
        command.Options(
            config,
            unit,
            to,
            openroad,
            container,
            lib_slow,
            lib_fast,
            rcx_rules,
            utilisation,
            die,
            flat,
            channel,
            routability,
        )
    )


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders that 'nanok3 flow' wrote.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="One run: folder to keep it in. Several: page to write."),
    ] = None,
    decode: Annotated[
        Path | None,
        typer.Option("--decode", help="What 'nanok3 generate --record' wrote (default: the preset's in results/)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's page, DIR/report.html, and print its headline; several runs are compared side by side.

    The page stands alone: pictures are inside, nothing is loaded from elsewhere.
    """
    from flow.commands import report as command

    command.run(folders, out, decode, as_json)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that 'nanok3 flow' wrote.")],
    rules: Annotated[Path | None, typer.Option("--rules", help="Rules (default: flow/nangate45/rules.json).")] = None,
    update: Annotated[
        bool, typer.Option("--update", help="First make this run's figures, with a margin, the recorded limits.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Hold a run against the rules: one line for each that is broken, exit code 1 when an error is among them.

    JSON keys: passed, verdicts, unreached, changed (limits that --update recorded anew, a line each).
    """
    from flow.commands import report as command

    raise typer.Exit(command.check(folder, rules, update, as_json))


@app.command()
def presets() -> None:
    """List the presets that ship with the project."""
    from flow.commands import presets as command

    command.show()


def main() -> None:
    """Entry point: every refusal is one line on stderr; exit codes 2 (bad input), 1 (failure), 130 (Ctrl-C)."""
    if sys.stdout is None:
        sys.exit(_say("stdout is closed", 1))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = Stdout(sys.stdout)
    sys.exit(run(sys.argv[1:]))


class StdoutError(Exception):
    """Stdout cannot be written; no OSError, which libraries take for a terminal that they need not care about."""


class Stdout(io.TextIOWrapper):
    """Takes the place of stdout: characters that its encoding has not are question marks, failures are StdoutError."""

    def __init__(self, plain: io.TextIOWrapper) -> None:
        how = {"encoding": plain.encoding, "line_buffering": plain.line_buffering, "write_through": plain.write_through}
        errors = "replace" if plain.errors == "strict" else plain.errors
        super().__init__(plain.detach(), errors=errors, **how)  # type: ignore[arg-type]

    def write(self, text: str) -> int:
        """Write text."""
        with _stdout_failures():
            return super().write(text)

    def flush(self) -> None:
        """Write what is held."""
        with _stdout_failures():
            super().flush()


@contextmanager
def _stdout_failures() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # nobody reads on: that is no failure to speak of
        raise
    except OSError as e:
        raise StdoutError(f"cannot write to stdout: {e.strerror}") from None


def run(arguments: list[str]) -> int:
    """Run one command; returns the exit code."""
    from flow.commands.common import CommandError
    from golden.config import ConfigError

    try:
        code = _called(arguments)
        sys.stdout.flush()  # here, where a full disk can still be said
        return code if code != INTERRUPTED else _say("stopped", code)
    except typer.TyperException as e:
        return _say(e.format_message(), 2)
    except ConfigError as e:
        return _say(str(e), 2)
    except CommandError as e:
        return _say(str(e), e.code)
    except KeyboardInterrupt:
        return _say("stopped", INTERRUPTED)
    except BrokenPipeError:
        _discard_stdout()
        return 1
    except StdoutError as e:
        _discard_stdout()
        return _say(str(e), 1)


def _called(arguments: list[str]) -> int:
    """The exit code of typer's command, or of the trainer's own command line, which exits by itself."""
    try:
        return app(args=arguments, prog_name="nanok3", standalone_mode=False) or 0
    except SystemExit as end:
        if isinstance(end.code, str):
            return _say(end.code, 1)
        return end.code or 0


def _discard_stdout() -> None:
    """What stdout still holds goes nowhere, or Python would try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str, code: int) -> int:
    if message:  # empty after the help that a bare "nanok3" prints
        print(f"nanok3: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
