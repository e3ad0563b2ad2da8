"""The project as a whole: imports point one way, versions are pinned, documents and commands agree."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from flow import cli
from golden.config import preset_names

ROOT = Path(__file__).parents[1]
ORDER = ("golden", "hw", "sim", "flow")  # a package may import those before it
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()


def imports(file):
    """First parts of every module that a file imports, at the top or inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", ORDER)
def test_imports_point_one_way(package):
    later = {*ORDER[ORDER.index(package) + 1 :], "tests"}
    files = list((ROOT / package).rglob("*.py"))
    assert files
    bad = [f"{f.relative_to(ROOT)}: {name}" for f in files for name in imports(f) if name in later]
    assert not bad


def test_the_simulator_does_not_import_rtl():
    """sim may know the chip's registers and parameters, not its units, control or top."""
    allowed = re.compile(
        r"hw(\.params|\.timing|\.image|\.program|\.layouts|\.control\.registers|\.memory\.(views|macro_model))?$"
    )
    bad = []
    for file in (ROOT / "sim").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            bad += [f"{file.name}: {n}" for n in names if n.split(".")[0] == "hw" and not allowed.match(n)]
    assert not bad


def test_configuration_imports_without_torch():
    code = "import sys, golden.config, hw.params; assert 'torch' not in sys.modules and 'amaranth' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_dependency_is_pinned_and_installed_as_pinned():
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        name, _, version = line.partition("==")
        assert version, line
        assert importlib.metadata.version(name).split("+")[0] == version, line


def test_presets_ship_with_the_package():
    assert set(preset_names()) == {"micro-k3", "nano-k3", "nano-kpu"}


def test_readme_lists_every_command_and_target():
    commands = set(typer.main.get_command(cli.app).commands)
    table = set(re.findall(r"^\| `nanok3 (\w+)", README, re.M))
    assert table == commands
    targets = set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split())
    assert targets <= set(re.findall(r"`make (\w+)`", README))


def test_readme_names_no_file_that_is_not_there():
    for path in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / path).exists(), path


def test_ci_runs_the_tests():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK) and re.search(r"^make test$", script.read_text(), re.M)


def test_no_tracked_file_is_larger_than_two_mebibytes():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert not [f.name for f in files if f.is_file() and f.stat().st_size > 2 << 20]


def test_committed_checkpoints_are_of_their_presets():
    """Each loads, fits its preset and the chip's formats, and is under 2 MB in all."""
    from golden.checkpoint import CHECKPOINTS, CONFIG, load_preset_model
    from golden.fixed.weights import chip_weights

    folders = [f for f in CHECKPOINTS.iterdir() if (f / CONFIG).is_file()]
    for folder in folders:
        loaded = load_preset_model(folder.name)
        assert loaded.source == f"checkpoint {folder.name}" and loaded.tokenizer is not None
        chip_weights(loaded.cfg, loaded.state)
        assert sum(f.stat().st_size for f in folder.iterdir()) < 2_000_000
