"""Build an Amaranth component with Verilator and run cocotb benches on it (sim.verilator, from a component).

    from tests.cocotb.runner import run

    def test_router():
        run(Router(p), "router", "tests.cocotb.bench_router", parameters={"preset": "nano-k3"}, seeds=(1, 2))

``run`` is ``build`` then ``Build.simulate``; use those two to run several benches on one build.  A bench is a module
(``bench_*.py``, so that pytest does not collect it) of ``@cocotb.test()`` functions; see sim.verilator for what it can
use and when a run passes.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hw.emit import MODELS, emit_verilog
from sim import verilator
from sim.verilator import BenchFailed, Build, BuildFailed, Run, parameters, report, start

__all__ = ["BenchFailed", "Build", "BuildFailed", "Run", "build", "parameters", "report", "run", "start"]

BUILD = Path(__file__).resolve().parents[2] / "build" / "cocotb"


def run(
    component: Any,
    name: str,
    bench: str | Sequence[str],
    *,
    parameters: Mapping[str, Any] | None = None,
    seeds: Iterable[int] = (1,),
    tests: Sequence[str] | None = None,
    timeout: float = 900.0,
    **build_options: Any,
) -> list[Run]:
    """Build ``component`` as top module ``name`` and run ``bench`` on it once per seed (see build and simulate)."""
    made = build(component, name, **build_options)
    return made.simulate(bench, parameters=parameters, seeds=seeds, tests=tests, timeout=timeout)


def build(component: Any, name: str, *, ports: Any = None, extra_sources: Sequence[Path] = (), **options: Any) -> Build:
    """Compile a component, or find it compiled.

    ``component``: an Amaranth component, or the path of a Verilog file with ``sram_models.v`` beside it.
    ``ports``: as ``emit_verilog`` takes them.  ``options``: as sim.verilator.build takes them.
    """
    if not isinstance(component, Path):
        with tempfile.TemporaryDirectory() as folder:
            verilog = emit_verilog(component, name, ports, folder)
            return build(verilog, name, extra_sources=extra_sources, **options)
    models = component.parent / MODELS
    sources = [component, *([models] if models.exists() and models.read_text().strip() else []), *extra_sources]
    return verilator.build(sources, name, folder=BUILD, **options)
