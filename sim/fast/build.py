"""Compile the executor once per source, compiler and processor; the library is found again by their hash."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from golden.files import replaced_file
from sim.fast.header import header

SOURCES = Path(__file__).parent
MAIN = SOURCES / "api.cpp"
CACHE = Path("build/fast")
COMPILER = "g++"
# exactly golden's arithmetic: integers wrap as numpy's do, and no multiply-add rounds once where numpy rounds twice
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fwrapv", "-ffp-contract=off", "-fPIC", "-shared")


class CompilerError(RuntimeError):
    """The executor cannot be compiled; one line."""


def compiled(folder: Path = CACHE) -> Path:
    """The library's file in ``folder``, compiled when none of these sources and this machine is there.

    Raises CompilerError.
    """
    generated = header()
    path = folder / f"nanok3-{_key(generated)}.so"
    if not path.is_file():
        with replaced_file(path) as temporary:
            _compile(generated, temporary)
    return path


def _key(generated: str) -> str:
    """Hash of the sources, of the compiler's version and of what it makes of this machine's processor."""
    digest = hashlib.sha256(generated.encode())
    for file in sorted([*SOURCES.glob("*.h"), MAIN]):
        digest.update(f"\0{file.name}\0".encode() + file.read_bytes())
    digest.update(_run([*FLAGS, "-E", "-###", "-x", "c++", "/dev/null"]).encode())
    return digest.hexdigest()[:16]


def _compile(generated: str, target: Path) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "generated.h").write_text(generated)
        _run([*FLAGS, f"-I{folder}", f"-I{SOURCES}", str(MAIN), "-o", str(target)])


def _run(arguments: list[str]) -> str:
    """What the compiler prints; raises CompilerError with its first complaint."""
    if shutil.which(COMPILER) is None:
        raise CompilerError(f"{COMPILER} is missing: the fast simulator is compiled with it (Debian package g++)")
    done = subprocess.run([COMPILER, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        complaints = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise CompilerError(f"{COMPILER} cannot compile the fast simulator: {(complaints or ['no reason given'])[0]}")
    return done.stdout + done.stderr
