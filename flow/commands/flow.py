"""``nanok3 flow``: a preset's chip, or a unit of it, from Verilog to a signed-off layout."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from flow import pipeline
from flow.commands.common import CommandError, console
from flow.design import Design, make
from flow.nangate45.library import LibraryMissing, locate
from flow.settings import UTILISATION, UTILISATION_OF, FlowSettings
from flow.steps.openroad import OpenRoad, OpenRoadError, OpenRoadMissing, find
from flow.steps.step import StepFailed

NUMBER = r"[0-9]+(?:\.[0-9]+)?"
CHANNELS = (5.0, 1000.0)  # um
DIE_SIDES = (5.0, 33_000.0)  # um: a few rows of cells; the longer side of a reticle


@dataclass(frozen=True)
class Options:
    """The command's options, as given."""

    config: str
    unit: str | None = None
    to: str | None = None
    openroad: Path | None = None
    container: bool = False
    lib_slow: Path | None = None
    lib_fast: Path | None = None
    rcx_rules: Path | None = None
    utilisation: float | None = None
    die: str | None = None
    flat: bool = False
    channel: str | None = None
    routability: bool = True

    def files(self) -> dict[str, Path]:
        """Files that were given, by their option."""
        named = {"--lib-slow": self.lib_slow, "--lib-fast": self.lib_fast, "--rcx-rules": self.rcx_rules}
        return {option: file for option, file in named.items() if file is not None}


def run(options: Options) -> None:
    """Run the steps; prints the path of the design's report.json on stdout."""
    common = _settings(options)
    die, channel = _die(options.die), _channel(options.channel)
    try:
        tool = _openroad(options)
        made = make(options.config, options.unit, flat=options.flat)

        def settings(each: Design) -> FlowSettings:
            """What was asked for is for the design; its blocks have the usual settings."""
            usual = UTILISATION_OF.get(each.top, UTILISATION[each.level])
            if each is not made:
                return replace(common, utilisation=usual)
            own = replace(common, die_um=die, block_channel_um=channel, routability=options.routability)
            return replace(own, utilisation=options.utilisation or usual)

        folders = pipeline.lay_out(
            made, settings, tool, options.to, command=lambda each: command_line(options, made, each)
        )
    except (StepFailed, OpenRoadError, LibraryMissing) as problem:
        raise CommandError(str(problem), 1) from None
    print(folders[-1] / pipeline.REPORT)


def _settings(options: Options) -> FlowSettings:
    """Settings that all designs of a run share; refuses steps and files that do not exist."""
    if options.to is not None and options.to not in pipeline.names():
        raise CommandError(f"there is no step {options.to}: they are {', '.join(pipeline.names())}")
    given = options.files()
    for option, file in given.items():
        if not file.is_file():
            raise CommandError(f"{option}: no file {file}")
    found = {option: file.resolve() for option, file in given.items()}
    return FlowSettings(slow=found.get("--lib-slow"), fast=found.get("--lib-fast"), rcx_rules=found.get("--rcx-rules"))


def _openroad(options: Options) -> OpenRoad | None:
    """OpenROAD where a step needs it; None, with one line, where it is not installed and was not asked for."""
    if options.to == "synth":
        return None
    try:
        folders = (Path.cwd(), locate().liberty.parent, *(file.resolve().parent for file in options.files().values()))
        return find(options.openroad, container=options.container, mounts=folders)
    except OpenRoadMissing as missing:
        if options.openroad is not None or options.container:
            raise CommandError(str(missing)) from None
        console.print(f"[yellow]stops after synthesis, results are pre-layout: {missing}", soft_wrap=True)
        return None


def command_line(options: Options, made: Design, each: Design) -> str:
    """The command that lays out a design, or one of its blocks, again; files by their names."""
    words = ["nanok3", "flow", "--config", options.config]
    words += ["--unit", each.unit] if each.unit else []
    if each is made:
        words += ["--to", options.to] if options.to else []
        words += ["--utilisation", f"{options.utilisation:g}"] if options.utilisation else []
        words += ["--die", options.die] if options.die else []
        words += ["--channel", options.channel] if options.channel else []
        words += [] if options.routability else ["--no-routability"]
        words += ["--flat"] if options.flat else []
    for option, file in options.files().items():
        words += [option, file.name]
    return shlex.join(words)


def _die(text: str | None) -> tuple[float, float] | None:
    """``500x400`` in um."""
    if text is None:
        return None
    sides = _pair(text)
    if sides is None:
        raise CommandError(f"--die takes width and height in um, such as 500x400, not {text!r}")
    return _within(sides, DIE_SIDES, "--die: sides are", text)


def _channel(text: str | None) -> tuple[float, float]:
    """``120``, or ``250x90``: between columns and in them, in um."""
    if text is None:
        return FlowSettings.block_channel_um
    apart = _pair(text if "x" in text else f"{text}x{text}")
    if apart is None:
        raise CommandError(f"--channel takes um, such as 120, or 250x90 between columns and in them, not {text!r}")
    return _within(apart, CHANNELS, "--channel:", text)


def _pair(text: str) -> tuple[float, float] | None:
    """Two numbers with an ``x`` between."""
    match = re.fullmatch(rf"({NUMBER})x({NUMBER})", text)
    return (float(match.group(1)), float(match.group(2))) if match else None


def _within(pair: tuple[float, float], limits: tuple[float, float], what: str, text: str) -> tuple[float, float]:
    """The pair, both of it within limits; ``what`` begins the line that refuses it."""
    least, most = limits
    if not least <= min(pair) <= max(pair) <= most:
        raise CommandError(f"{what} {least:g} to {most:g} um, not {text}")
    return pair
