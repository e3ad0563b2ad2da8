"""``nanok3 report`` and ``nanok3 check``: what a run of the flow came to, runs side by side, rules held against it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flow.commands.common import CommandError, console

COMPARISON = Path("build/flow/compare.html")


@contextmanager
def _readable() -> Iterator[None]:
    """What cannot be read ends the command in one line."""
    from flow.report.run import ReportError

    try:
        yield
    except ReportError as e:
        raise CommandError(str(e)) from None


def run(folders: Sequence[Path], out: Path | None, decode: Path | None, as_json: bool) -> None:
    """One folder: its page (and with ``out`` a folder to keep). Several: the page that compares them."""
    from flow.report import compare, derived, keep
    from flow.report.run import load

    if decode is not None and not decode.is_file():
        raise CommandError(f"--decode: no file {decode}")
    with _readable():
        found = [load(folder) for folder in folders]
        if decode is not None and all(run.unit is not None for run in found):
            raise CommandError(f"--decode: only whole chips decode, and {found[0].design} is a unit")
        runs = [derived.complete(run, decode) for run in found]
        if len(runs) == 1:
            target = keep.write(runs[0], out)
            print(json.dumps(keep.plain(runs[0])) if as_json else keep.text(runs[0]))
        else:
            names = compare.names(runs)
            target = compare.write(runs, names, out or COMPARISON)
            print(json.dumps(compare.plain(runs, names)) if as_json else compare.text(runs, names))
    console.print(f"written to {target}")


def check(folder: Path, rules: Path | None, update: bool, as_json: bool) -> int:
    """One line for each broken rule; returns 1 when an error is among them."""
    from flow import check as rules_of
    from flow.report import derived
    from flow.report.run import load

    path = rules or rules_of.RULES
    with _readable():
        found = derived.complete(load(folder))
        changed = rules_of.update(found, path) if update else []
        checked = rules_of.check(found, rules_of.read(path))
    if as_json:
        print(json.dumps({**rules_of.plain(checked), "changed": changed}))
        return 0 if checked.passed else 1
    for line in changed:
        print(line)
    for verdict in checked.broken:
        print(f"{found.design}: {verdict.line}")
    kept = len(checked.verdicts) - len(checked.broken)
    waiting = sorted({rules_of.step_of(rule.metric) or "a recorded decode" for rule in checked.unreached})
    later = f"; {len(checked.unreached)} wait for {', '.join(waiting)}" if waiting else ""
    print(f"{found.design}, {found.state}: {kept} of {len(checked.verdicts)} rules kept{later}")
    return 0 if checked.passed else 1
