"""Runs side by side: headline, metrics, versions, settings, step times, pictures; changes are against the first run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flow.report import area, page
from flow.report.headline import ANNOUNCED, Line, headline
from flow.report.run import Run
from golden.files import replaced_file


@dataclass(frozen=True)
class Row:
    """One thing of all runs: None where a run has it not."""

    name: str
    values: tuple[float | int | str | None, ...]

    @property
    def same(self) -> bool:
        return len(set(self.values)) == 1

    @property
    def changes(self) -> tuple[str, ...]:
        """Change of each value from the first: of slacks the difference, of other numbers a share; else empty."""
        slack = "slack" in self.name or "__timing__" in self.name
        return tuple(_change(self.values[0], value, slack) for value in self.values)


def _change(first: Any, value: Any, slack: bool) -> str:
    if not all(isinstance(x, int | float) for x in (first, value)) or value == first:
        return ""
    if slack:
        return f"{value - first:+.3g}"
    return f"{100 * (value / first - 1):+.1f} %" if first else ""


def names(runs: Sequence[Run]) -> list[str]:
    """What each run is called: its design, or its folder where designs are the same."""
    count = Counter(run.design for run in runs)
    return [run.design if count[run.design] == 1 else str(run.folder) for run in runs]


def rows(runs: Sequence[Run], of: Callable[[Run], Mapping[str, Any]]) -> list[Row]:
    """What mappings of the runs hold, under each name that any has; in the order in which names appear."""
    held = [of(run) for run in runs]
    return [Row(name, tuple(one.get(name) for one in held)) for name in dict.fromkeys(n for one in held for n in one)]


def headlines(runs: Sequence[Run]) -> list[tuple[Line, Row]]:
    """Headline lines that any run has, with a line that stands for it (digits, unit, the announced chip's figure)."""
    lines = [{line.name: line for line in headline(run)} for run in runs]
    merged: dict[str, Line] = {}
    for one in lines:
        for name, line in one.items():
            if name not in merged or (merged[name].announced is None and line.announced is not None):
                merged[name] = line
    return [
        (line, Row(name, tuple(one[name].value if name in one else None for one in lines)))
        for name, line in merged.items()
    ]


def _steps(run: Run) -> dict[str, float]:
    return {step.name: step.seconds for step in run.steps}


def _settings(run: Run) -> dict[str, str]:
    return dict(page.flattened(run.settings))


def plain(runs: Sequence[Run], called: Sequence[str]) -> dict[str, Any]:
    """JSON values: under each part, name and then one value per run, in the order of ``runs``."""
    return {
        "runs": list(called),
        "states": [run.state for run in runs],
        "headline": {
            line.name: {"unit": line.unit, "values": list(row.values), "announced": line.announced}
            for line, row in headlines(runs)
        },
        "metrics": _listed(rows(runs, lambda run: dict(sorted(run.metrics.items())))),
        "versions": _listed(rows(runs, lambda run: run.versions)),
        "settings": _listed(rows(runs, _settings)),
        "seconds": _listed(rows(runs, _steps)),
    }


def _listed(found: Iterable[Row]) -> dict[str, list[Any]]:
    return {row.name: list(row.values) for row in found}


def text(runs: Sequence[Run], called: Sequence[str]) -> str:
    """The headlines as a table of text, then the metrics that differ."""
    table = [["", *called], ["state", *(run.state for run in runs)]]
    for line, row in headlines(runs):
        table.append([f"{line.name} ({line.unit})", *_cells(row, line.shown)])
    for row in rows(runs, lambda run: dict(sorted(run.metrics.items()))):
        if not row.same:
            table.append([row.name, *_cells(row, page.figure)])
    first, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
    return "\n".join(
        "  ".join([name.ljust(first), *(cell.rjust(w) for cell, w in zip(cells, widths, strict=True))]).rstrip()
        for name, *cells in table
    )


def _cells(row: Row, show: Callable[[Any], str]) -> list[str]:
    return [
        ("none" if value is None else show(value)) + (f" ({change})" if change else "")
        for value, change in zip(row.values, row.changes, strict=True)
    ]


def html(runs: Sequence[Run], called: Sequence[str]) -> str:
    """The page, pictures inside."""
    metrics = rows(runs, lambda run: dict(sorted(run.metrics.items())))
    pictures = [[page.layout(run), page.treemap(run, area.tree(run))] for run in runs]
    return (
        page.environment()
        .get_template("compare.html.j2")
        .render(
            runs=runs,
            names=called,
            announced=ANNOUNCED,
            chips=any(run.unit is None for run in runs),
            headlines=headlines(runs),
            differ=[row for row in metrics if not row.same],
            same=[row for row in metrics if row.same],
            versions=rows(runs, lambda run: run.versions),
            settings=rows(runs, _settings),
            seconds=rows(runs, _steps),
            pictures=pictures,
        )
    )


def write(runs: Sequence[Run], called: Sequence[str], out: Path) -> Path:
    """Write the page to a file; returns it."""
    made = html(runs, called)
    with replaced_file(out) as temporary:
        temporary.write_text(made)
    return out
