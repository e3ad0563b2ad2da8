"""Rules held against runs: what is an error, what is only said, what waits; and how rules are made of a run."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow import check
from flow.check import Recipe, Rule, Verdict
from flow.cli import run as nanok3
from flow.report.run import load
from tests.flow import made_run


@pytest.fixture
def whole(tmp_path):
    return made_run.make(tmp_path / "micro-k3")


@pytest.fixture
def rules(tmp_path):
    """A rules file: one bar for all, one for the design, one for another."""
    file = tmp_path / "rules.json"
    bars = {
        "*": {"finish__timing__hold__ws": {"value": 0, "compare": ">=", "level": "error"}},
        "micro-k3": {"floorplan__design__die__area": {"value": 40000, "compare": "<=", "level": "error"}},
        "nano-k3": {"floorplan__design__die__area": {"value": 1, "compare": "<=", "level": "error"}},
    }
    made_run.write(file, {"bars": bars, "recorded": {}})
    return file


def held(folder, rules):
    return check.check(load(folder), check.read(rules))


@pytest.mark.parametrize(
    ("measured", "compare", "value", "kept"),
    [
        (1.0, "<=", 1.0, True),
        (1.0001, "<=", 1.0, False),
        (1.0, ">=", 1.0, True),
        (0.9999, ">=", 1.0, False),
        (0, "==", 0.0, True),
        (1e-9, "==", 0, False),
        ("a", "==", "a", True),
        ("a", "==", "b", False),
        ("1", "==", 1, False),
        ("1", "<=", 2, False),
        (None, "<=", 2, False),
    ],
)
def test_verdicts(measured, compare, value, kept):
    assert Verdict(Rule("m", value, compare, "error"), measured).kept is kept


def test_a_run_that_keeps_its_rules(whole, rules, capsys):
    assert nanok3(["check", str(whole), "--rules", str(rules)]) == 0
    assert capsys.readouterr().out == "micro-k3, signed off: 2 of 2 rules kept\n"


def test_a_broken_rule_is_one_line_and_fails(whole, rules, capsys):
    made_run.measure(whole, finish__timing__hold__ws=-0.013, floorplan__design__die__area=40000.5)
    assert nanok3(["check", str(whole), "--rules", str(rules)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "micro-k3: error: finish__timing__hold__ws is -0.013, must be >= 0",
        "micro-k3: error: floorplan__design__die__area is 40000.5, must be <= 40000",
        "micro-k3, signed off: 0 of 2 rules kept",
    ]


def test_a_warning_does_not_fail(whole, rules, capsys):
    made_run.measure(whole, finish__timing__hold__ws=-0.013)
    rules.write_text(rules.read_text().replace("error", "warning"))
    assert nanok3(["check", str(whole), "--rules", str(rules)]) == 0
    assert "warning: finish__timing__hold__ws" in capsys.readouterr().out


def test_a_missing_metric_of_a_step_that_ran_fails(whole, rules):
    made_run.measure(whole, finish__timing__hold__ws=None)
    (broken,) = held(whole, rules).broken
    assert broken.line == "error: finish__timing__hold__ws is missing, must be >= 0"


def test_rules_of_steps_that_did_not_run_wait(tmp_path, rules, capsys):
    folder = made_run.make(tmp_path / "a", to="placement")
    assert nanok3(["check", str(folder), "--rules", str(rules)]) == 0
    assert capsys.readouterr().out == "micro-k3, placed: 1 of 1 rules kept; 1 wait for signoff\n"


def test_power_waits_for_its_own_step(tmp_path):
    """It shares its stage with sign-off."""
    to_signoff = load(made_run.make(tmp_path / "a", to="signoff"))
    rule = {"bars": {"*": {"finish__power__total": Rule("finish__power__total", 1, "<=", "error")}}, "recorded": {}}
    assert check.check(to_signoff, rule).unreached and not check.check(to_signoff, rule).verdicts


def test_json(whole, rules, capsys):
    made_run.measure(whole, finish__timing__hold__ws=-0.013)
    assert nanok3(["check", str(whole), "--rules", str(rules), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is False
    assert found["verdicts"][0] == {
        "metric": "finish__timing__hold__ws",
        "value": 0,
        "compare": ">=",
        "level": "error",
        "measured": -0.013,
        "kept": False,
    }


def test_the_shipped_rules_hold_what_is_asked_of_the_chip(tmp_path):
    rules = check.read()
    bars = rules["bars"]["*"] | rules["bars"]["nano-k3"]
    for metric, compare, value in (
        ("floorplan__design__die__area", "<=", 4e6),
        ("globalroute__route__overflow", "==", 0),
        ("detailedroute__route__drc_errors", "==", 0),
        ("finish__timing__setup__ws", ">=", 0),
        ("finish__timing__hold__ws", ">=", 0),
        ("finish__power__activity__annotated__share", ">=", 0.95),
    ):
        assert bars[metric] == Rule(metric, value, compare, "error")
    assert check.check(load(made_run.make(tmp_path / "nano-k3", design="nano-k3")), rules).verdicts


def test_update_records_a_run_that_then_keeps_its_rules(whole, rules, capsys):
    before = check.read(rules)["bars"]
    assert nanok3(["check", str(whole), "--rules", str(rules), "--update"]) == 0
    assert "finish__timing__setup__ws: none -> >= 1.25 (error)" in capsys.readouterr().out
    assert check.read(rules)["bars"] == before
    recorded = check.read(rules)["recorded"]["micro-k3"]
    assert recorded["finish__power__total"] == Rule("finish__power__total", 0.01375, "<=", "error")
    assert recorded["detailedroute__route__drc_errors"].value == 0
    assert recorded["synth__timing__setup__ws__source"].compare == "=="
    assert nanok3(["check", str(whole), "--rules", str(rules), "--update"]) == 0
    assert "->" not in capsys.readouterr().out  # nothing left to change


def test_update_with_json_is_one_document(whole, rules, capsys):
    for changed in (True, False):  # the second time nothing is left to change
        assert nanok3(["check", str(whole), "--rules", str(rules), "--update", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert ("finish__timing__setup__ws: none -> >= 1.25 (error)" in found["changed"]) is changed
        assert bool(found["changed"]) is changed and found["passed"]


@pytest.mark.parametrize(
    ("metric", "worse"),
    [
        ("finish__timing__setup__ws", 1.2),
        ("finish__design__instance__area__stdcell", 19200 * 1.06),
        ("detailedroute__route__drc_errors", 1),
        ("finish__power__total", 0.0125 * 1.11),
        ("finish__timing__setup__ws", None),
    ],
)
def test_a_regression_fails(whole, rules, metric, worse, capsys):
    assert nanok3(["check", str(whole), "--rules", str(rules), "--update"]) == 0
    made_run.measure(whole, **{metric: worse})
    capsys.readouterr()
    assert nanok3(["check", str(whole), "--rules", str(rules)]) == 1
    assert f"error: {metric} is " in capsys.readouterr().out


def test_update_keeps_rules_of_steps_that_the_run_has_not_reached(tmp_path, rules):
    check.update(load(made_run.make(tmp_path / "a")), rules)
    before = check.read(rules)["recorded"]["micro-k3"]
    shorter = made_run.make(tmp_path / "b", to="placement")
    made_run.measure(shorter, synth__timing__setup__ws=3.0)
    assert check.update(load(shorter), rules) == [
        "synth__timing__setup__ws: >= 2 (error) -> >= 2.5 (error)",
    ]
    assert set(check.read(rules)["recorded"]["micro-k3"]) == set(before)


@given(
    st.floats(-1e9, 1e9, allow_nan=False),
    st.sampled_from(["<=", ">="]),
    st.sampled_from([(0.0, 0.0), (0.05, 0.0), (0.0, 0.05)]),
)
def test_a_run_always_keeps_the_rule_made_of_it(value, compare, margins):
    limit = check._limit(value, Recipe("m", compare, "error", *margins), 10.0)
    assert Verdict(Rule("m", limit, compare, "error"), value).kept
    margin = margins[0] * abs(value) + margins[1] * 10.0
    assert abs(limit - value) <= margin + 0.0011 * abs(value) + 0.0011 * margin + 1e-9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "cannot be read"),
        ("[]", "the whole must be keys and values"),
        ('{"rules": {}}', "rules have the parts"),
        ('{"bars": {"*": [1]}}', "bars.* must be keys and values"),
        ('{"bars": {"*": {"m": {"value": 1, "compare": "<="}}}}', "bars.*.m.level is missing"),
        ('{"bars": {"*": {"m": {"value": 1, "compare": "<", "level": "error"}}}}', "m has compare '<'"),
        ('{"bars": {"*": {"m": {"value": 1, "compare": [], "level": "error"}}}}', "bars.*.m.compare must be text"),
        ('{"bars": {"*": {"m": {"value": 1, "compare": "<=", "level": "error", "x": 1}}}}', "the rule of m must have"),
        ('{"bars": []}', "bars must be keys and values"),
        ("[" * 100_000, "cannot be read"),
        ('{"bars": {"*": {"m": {"value": 1, "compare": "<=", "level": "bad"}}}}', "m has level 'bad'"),
        ('{"bars": {"*": {"m": {"value": "a", "compare": "<=", "level": "error"}}}}', "the value of m must be"),
        (
            '{"bars": {"*": {"m": {"value": NaN, "compare": "<=", "level": "error"}}}}',
            "bars.*.m.value must be a number or text",
        ),
        (
            '{"bars": {"*": {"m": {"value": true, "compare": "==", "level": "error"}}}}',
            "bars.*.m.value must be a number or text",
        ),
    ],
)
def test_rules_that_are_none_are_refused_in_one_line(whole, tmp_path, text, message, capsys):
    file = tmp_path / "broken.json"
    file.write_text(text)
    for more in ([], ["--update"]):
        assert nanok3(["check", str(whole), "--rules", str(file), *more]) == 2
        errors = capsys.readouterr().err.splitlines()
        assert len(errors) == 1 and message in errors[0]
        assert file.read_text() == text


def test_missing_files_are_one_line(whole, tmp_path, capsys):
    for arguments in ([str(tmp_path / "nowhere")], [str(whole), "--rules", str(tmp_path / "nowhere.json")]):
        assert nanok3(["check", *arguments]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
