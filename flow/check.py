"""Rules that a run of the flow must keep: a limit, how to compare, and how bad it is, for each metric.

``rules.json`` has two parts. ``bars`` are what is asked of a design (``*``: of every design) and are written by hand.
``recorded`` are the figures of an earlier run with a margin, written by ``update``: what is worse is a regression.
A rule is ``{"value": limit, "compare": "<=" | ">=" | "==", "level": "error" | "warning"}`` under the metric's name.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from flow.report.run import STAGE_OF, ReportError, Run, read_json
from golden.files import replaced_file

RULES = Path(__file__).parent / "nangate45" / "rules.json"
ALL = "*"
PARTS = ("bars", "recorded")
COMPARE: dict[str, Callable[[Any, Any], bool]] = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}
RULE = {"value": (float, str), "compare": str, "level": str}
LEVELS = ("error", "warning")


@dataclass(frozen=True)
class Rule:
    """``metric`` ``compare`` ``value``, or it is an error or a warning."""

    metric: str
    value: float | str
    compare: str
    level: str


@dataclass(frozen=True)
class Verdict:
    """A rule held against a run: ``measured`` None where the run should have the metric and has not."""

    rule: Rule
    measured: float | str | None

    @property
    def kept(self) -> bool:
        """Text and numbers are kept apart: a limit in the other kind is not kept."""
        if self.measured is None or isinstance(self.measured, str) != isinstance(self.rule.value, str):
            return False
        return COMPARE[self.rule.compare](self.measured, self.rule.value)

    @property
    def line(self) -> str:
        """One line that says what was asked and what there is."""
        wanted = f"must be {self.rule.compare} {_shown(self.rule.value)}"
        found = "is missing" if self.measured is None else f"is {_shown(self.measured)}"
        return f"{self.rule.level}: {self.rule.metric} {found}, {wanted}"


@dataclass(frozen=True)
class Checked:
    """All rules of a design against a run; ``unreached`` are of steps that it has not run."""

    verdicts: tuple[Verdict, ...]
    unreached: tuple[Rule, ...]

    @property
    def broken(self) -> list[Verdict]:
        """Errors first."""
        return sorted((v for v in self.verdicts if not v.kept), key=lambda v: LEVELS.index(v.rule.level))

    @property
    def passed(self) -> bool:
        """No error among them."""
        return all(v.rule.level != "error" for v in self.broken)


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"


def read(path: Path = RULES) -> dict[str, dict[str, dict[str, Rule]]]:
    """Rules by part, design and metric; raises ReportError, one line, for a file that is not of this form."""
    data = read_json(path, {f"{part}?": {str: {str: RULE}} for part in PARTS})
    if set(data) - set(PARTS):
        raise ReportError(f"{path}: rules have the parts {' and '.join(PARTS)}")
    return {
        part: {
            design: {metric: _rule(path, metric, rule) for metric, rule in rules.items()}
            for design, rules in data.get(part, {}).items()
        }
        for part in PARTS
    }


def _rule(path: Path, metric: str, rule: Mapping[str, Any]) -> Rule:
    if set(rule) != set(RULE):
        raise ReportError(f"{path}: the rule of {metric} must have value, compare and level")
    value, compare, level = rule["value"], rule["compare"], rule["level"]
    if compare not in COMPARE:
        raise ReportError(f"{path}: {metric} has compare {compare!r}; it is one of {', '.join(COMPARE)}")
    if level not in LEVELS:
        raise ReportError(f"{path}: {metric} has level {level!r}; it is one of {', '.join(LEVELS)}")
    if isinstance(value, str) and compare != "==":
        raise ReportError(f"{path}: the value of {metric} must be a number, or text with ==")
    return Rule(metric, value, compare, level)


def check(run: Run, rules: Mapping[str, Mapping[str, Mapping[str, Rule]]]) -> Checked:
    """Hold a run against the rules of all designs and of its own."""
    verdicts, unreached = [], []
    for rule in _of(run.design, rules):
        if rule.metric in run.metrics:
            verdicts.append(Verdict(rule, run.metrics[rule.metric]))
        elif _reached(run, rule.metric):
            verdicts.append(Verdict(rule, None))
        else:
            unreached.append(rule)
    return Checked(tuple(verdicts), tuple(unreached))


def _of(design: str, rules: Mapping[str, Mapping[str, Mapping[str, Rule]]]) -> Iterator[Rule]:
    for part in PARTS:
        for name in (ALL, design):
            yield from rules[part].get(name, {}).values()


def _reached(run: Run, metric: str) -> bool:
    """Whether the step has run that measures the metric."""
    step = step_of(metric)
    return step is not None and run.has(step)


def step_of(metric: str) -> str | None:
    """The step that measures a metric; None for what no step does (a decode recorded elsewhere)."""
    if metric.startswith("finish__power__"):
        return "power"
    stage = metric.split("__")[0]
    if stage == "nanok3":
        return "synth"
    return next((step for step, of in STAGE_OF.items() if of == stage), None)


@dataclass(frozen=True)
class Recipe:
    """How a limit is made of a figure: its margin is a share of the figure, of the clock period, or nothing."""

    pattern: str
    compare: str
    level: str
    share: float = 0.0
    of_period: float = 0.0


# The first that matches counts; a metric that none matches is not recorded.
RECIPES = (
    Recipe("*__timing__*__ws__source", "==", "warning"),
    Recipe("synth__timing__setup__ws", ">=", "error", of_period=0.05),
    Recipe("finish__timing__setup__ws*", ">=", "error", of_period=0.05),
    Recipe("finish__timing__hold__ws*", ">=", "warning", of_period=0.005),
    Recipe("*__timing__setup__ws", ">=", "warning", of_period=0.05),
    Recipe("*__design__instance__area__stdcell", "<=", "error", share=0.05),
    Recipe("*__design__instance__area__macros", "<=", "error", share=0.02),
    Recipe("*__design__instance__count__stdcell", "<=", "warning", share=0.05),
    Recipe("*__design__die__area", "<=", "error", share=0.02),
    Recipe("nanok3__area__macros__1mbit_per_mm2", "<=", "error"),
    Recipe("nanok3__count__flip_flops", "<=", "warning", share=0.02),
    Recipe("*__decode__cycles_per_token", "<=", "error", share=0.01),
    Recipe("*__route__wirelength", "<=", "warning", share=0.10),
    Recipe("*__route__drc_errors", "<=", "error"),
    Recipe("*__route__overflow", "<=", "error"),
    Recipe("*__timing__drv__*violation_count", "<=", "error"),
    Recipe("finish__power__total", "<=", "error", share=0.10),
)


def recorded(run: Run) -> dict[str, Rule]:
    """Rules that a run keeps with a margin, by metric; the margin is always on the side that the run has."""
    found = {}
    for metric, value in sorted(run.metrics.items()):
        recipe = next((r for r in RECIPES if fnmatchcase(metric, r.pattern)), None)
        if recipe is not None and (recipe.compare == "==" or not isinstance(value, str)):
            limit = value if isinstance(value, str) else _limit(value, recipe, run.clock_ns)
            found[metric] = Rule(metric, limit, recipe.compare, recipe.level)
    return found


def _limit(value: float, recipe: Recipe, clock_ns: float) -> float:
    margin = recipe.share * abs(value) + recipe.of_period * clock_ns
    limit = value + margin if recipe.compare == "<=" else value - margin
    return _rounded(limit, up=recipe.compare == "<=") if margin else value


def _rounded(value: float, up: bool) -> float:
    """Four significant digits, away from the figure, so that the run itself keeps the rule."""
    context = Context(prec=4, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return float(context.create_decimal(f"{value:.10g}"))


def update(run: Run, path: Path = RULES) -> list[str]:
    """Write the rules of the run's design from its figures; returns what changed, a line each. Bars stay.

    Rules of steps that the run has not reached stay too.
    """
    rules = read(path)
    old = rules["recorded"].get(run.design, {})
    kept = {metric: rule for metric, rule in old.items() if not _reached(run, metric)}
    new = {**kept, **recorded(run)}
    rules["recorded"][run.design] = new
    with replaced_file(path) as temporary:
        temporary.write_text(json.dumps(_plain(rules), indent=1) + "\n")
    return [
        f"{metric}: {_rule_text(old.get(metric))} -> {_rule_text(new.get(metric))}"
        for metric in sorted(set(old) | set(new))
        if old.get(metric) != new.get(metric)
    ]


def _rule_text(rule: Rule | None) -> str:
    return "none" if rule is None else f"{rule.compare} {_shown(rule.value)} ({rule.level})"


def plain(checked: Checked) -> dict[str, Any]:
    """JSON values."""
    return {
        "passed": checked.passed,
        "verdicts": [{**asdict(v.rule), "measured": v.measured, "kept": v.kept} for v in checked.verdicts],
        "unreached": [asdict(rule) for rule in checked.unreached],
    }


def _plain(rules: Mapping[str, Mapping[str, Mapping[str, Rule]]]) -> dict[str, Any]:
    return {
        part: {
            design: {
                metric: {"value": rule.value, "compare": rule.compare, "level": rule.level}
                for metric, rule in cast("Mapping[str, Rule]", found).items()
            }
            for design, found in designs.items()
        }
        for part, designs in rules.items()
    }
