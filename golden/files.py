"""Files and folders that appear whole or not at all: written beside their place, then moved into it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from golden.config import ConfigError


class WriteError(ConfigError):
    """Something cannot be written where it was asked for; one line."""


def _cannot_write(path: Path, problem: OSError) -> WriteError:
    return WriteError(f"cannot write {path}: {problem.strerror}")


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A temporary file that takes the place of ``path`` when the block ends well; a link's target is replaced, not it.

    What is there and is no regular file (a device, a folder) is refused and stays as it is.
    """
    path = Path(os.path.realpath(path))
    try:
        if path.exists() and not path.is_file():
            raise WriteError(f"cannot write {path}: it is no regular file")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    except OSError as e:
        raise _cannot_write(path, e) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as e:
        raise _cannot_write(path, e) from None
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise WriteError where ``replaced_file`` would: before a long run whose results go there."""

    class Found(Exception):
        pass

    with suppress(Found), replaced_file(path):
        raise Found  # the block does not end well: what is there stays


@contextmanager
def replaced_folder(folder: Path, ours: Callable[[Path], bool]) -> Iterator[Path]:
    """A temporary folder that takes the place of ``folder`` when the block ends well.

    A folder that holds a file for which ``ours`` is false is refused and stays as it is.
    """
    try:
        if folder.exists():
            foreign = [p.name for p in folder.iterdir() if not ours(p)] if folder.is_dir() else [folder.name]
            if foreign:
                raise WriteError(f"{folder} holds {foreign[0]}: give a new or empty folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as e:
        raise _cannot_write(folder, e) from None
    old = work / "old"
    try:
        yield work
        work.chmod(0o755)
        for file in work.iterdir():
            file.chmod(0o755 if file.is_dir() else 0o644)
        if folder.exists():
            os.replace(folder, old)
        os.replace(work, folder)
        shutil.rmtree(folder / "old", ignore_errors=True)
    finally:
        if old.exists():  # the last step failed: what was there comes back
            os.replace(old, folder)
        shutil.rmtree(work, ignore_errors=True)
