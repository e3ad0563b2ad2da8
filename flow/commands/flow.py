"""``nanok3 flow``: a preset's chip, or a unit of it, from Verilog to a signed-off layout."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flow.commands.common import CommandError, console

if TYPE_CHECKING:
    from flow.design import Design


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


def run(options: Options) -> None:
    """Run the steps; prints the design's folder on stdout."""
    from flow import design, pipeline
    from flow.nangate45.library import LibraryMissing
    from flow.settings import UTILISATION, FlowSettings
    from flow.steps.openroad import OpenRoad, OpenRoadError, OpenRoadMissing, find
    from flow.steps.step import StepFailed

    if options.to is not None and options.to not in pipeline.names():
        raise CommandError(f"there is no step {options.to}: they are {', '.join(pipeline.names())}")
    for option, file in (
        ("--lib-slow", options.lib_slow),
        ("--lib-fast", options.lib_fast),
        ("--rcx-rules", options.rcx_rules),
    ):
        if file is not None and not file.is_file():
            raise CommandError(f"{option}: no file {file}")
    die = _die(options.die)
    common = FlowSettings(
        rcx_rules=_absolute(options.rcx_rules),
        slow=_absolute(options.lib_slow),
        fast=_absolute(options.lib_fast),
    )
    tool: OpenRoad | None = None
    wanted = options.openroad is not None or options.container
    try:
        if options.to != "synth":
            tool = find(options.openroad, container=options.container, mounts=(Path.cwd(),))
    except OpenRoadMissing as missing:
        if wanted:
            raise CommandError(str(missing)) from None
        console.print(f"[yellow]stops after synthesis, results are pre-layout: {missing}", soft_wrap=True)
    made = design.make(options.config, options.unit, flat=options.flat)

    def settings(each: Design) -> FlowSettings:
        """Die and utilisation that were asked for are the design's; its blocks have their level's."""
        if each is made:
            return replace(common, utilisation=options.utilisation or UTILISATION[each.level], die_um=die)
        return replace(common, utilisation=UTILISATION[each.level])

    try:
        folders = pipeline.lay_out(
            made, settings, tool, options.to, command=lambda each: command_line(options, made, each)
        )
    except (StepFailed, OpenRoadError, LibraryMissing) as problem:
        raise CommandError(str(problem), 1) from None
    print(folders[-1] / pipeline.REPORT)


def command_line(options: Options, made: Design, each: Design) -> str:
    """The command that lays out a design, or one of its blocks, again; files by their names."""
    words = ["nanok3", "flow", "--config", options.config]
    words += ["--unit", each.unit] if each.unit else []
    if each is made:
        words += ["--to", options.to] if options.to else []
        words += ["--utilisation", f"{options.utilisation:g}"] if options.utilisation else []
        words += ["--die", options.die] if options.die else []
        words += ["--flat"] if options.flat else []
    for option, file in (
        ("--lib-slow", options.lib_slow),
        ("--lib-fast", options.lib_fast),
        ("--rcx-rules", options.rcx_rules),
    ):
        words += [option, file.name] if file else []
    return shlex.join(words)


def _absolute(file: Path | None) -> Path | None:
    return None if file is None else file.resolve()


def _die(text: str | None) -> tuple[float, float] | None:
    """``500x400`` in um."""
    if text is None:
        return None
    match = re.fullmatch(r"([\d.]+)x([\d.]+)", text)
    if match is None:
        raise CommandError(f"--die takes width and height in um, such as 500x400, not {text!r}")
    return float(match.group(1)), float(match.group(2))
