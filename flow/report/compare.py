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
    """One thing of all runs: None where a run has it not. ``changes``: relative to the first run, None without both."""

    name: str
    values: tuple[float | int | str | None, ...]

    @property
    def same(self) -> bool:
        return len(set(self.values)) == 1

    @property
    def changes(self) -> tuple[float | None, ...]:
        return tuple(_change(self.values[0], value) for value in self.values)


def _change(first: Any, value: Any) -> float | None:
    numbers = all(isinstance(x, int | float) for x in (first, value))
    return value / first - 1 if numbers and first else None


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
    head = ["", *called]
    table = [["state", *(run.state for run in runs)]]
    table += [
        [f"{line.name} ({line.unit})", *(_cell(line.shown(_number(v)), c) for v, c in _pairs(row))]
        for line, row in headlines(runs)
    ]
    differ = [row for row in rows(runs, lambda run: dict(sorted(run.metrics.items()))) if not row.same]
    table += [[row.name, *(_cell("" if v is None else page.figure(v), c) for v, c in _pairs(row))] for row in differ]
    widths = [max(len(line[i]) for line in [head, *table]) for i in range(len(head))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in [head, *table]
    )


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def _pairs(row: Row) -> Iterable[tuple[float | int | str | None, float | None]]:
    """(value, change) of a row; the first run has no change."""
    return zip(row.values, (None, *row.changes[1:]), strict=True)


def _cell(shown: str, change: float | None) -> str:
    return f"{shown or 'none'}{'' if not change else f' ({100 * change:+.1f} %)'}"


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
