"""Write a run's page, and keep a run: report.json, page and layout picture in a folder of its own."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from flow.report import page
from flow.report.headline import Line, headline
from flow.report.page import PICTURE
from flow.report.run import REPORT, ReportError, Run
from golden.files import replaced_file, replaced_folder

PAGE = "report.html"


def plain(run: Run) -> dict[str, Any]:
    """The run's report with its headline, as JSON values."""
    return {**run.data, "headline": [line.plain() for line in headline(run)]}


def write(run: Run, out: Path | None) -> Path:
    """Write the page beside report.json, or page, report.json and picture to the folder ``out``; returns the page.

    A kept run has its page already, and no longer what it takes to make it.
    """
    if run.kept:
        if out is not None:
            raise ReportError(f"{run.folder} is a kept run: give the folder that the flow wrote")
        return run.folder / PAGE
    text = page.html(run)
    if out is None:
        with replaced_file(run.folder / PAGE) as temporary:
            temporary.write_text(text)
        return run.folder / PAGE
    with replaced_folder(out, lambda file: file.name in (PAGE, PICTURE, REPORT)) as work:
        (work / PAGE).write_text(text)
        (work / REPORT).write_text(json.dumps(plain(run), indent=1) + "\n")
        picture = page.layout(run).picture
        if picture is not None:
            (work / PICTURE).write_bytes(base64.b64decode(picture.uri.partition(",")[2]))
    return out / PAGE


def text(run: Run) -> str:
    """The headline as lines of text, beside the announced chip's for a chip."""
    lines = headline(run)
    width = max(len(line.name) for line in lines)
    head = f"{run.design}, {run.state}"
    return "\n".join([head, *(_text(line, width, run.unit is None) for line in lines)])


def _text(line: Line, width: int, chip: bool) -> str:
    ours = f"{line.name:{width}} {line.ours or 'none':>12}"
    theirs = f" {line.theirs or 'none':>12}" if chip else ""
    return f"{ours}{theirs} {line.unit:9} {line.note}"
