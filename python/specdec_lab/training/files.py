"""Writes files atomically: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from specdec_lab.training.errors import TrainingError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes the file `path`: `write` fills a file of another name, which is then renamed.

    Raises TrainingError where the disk is full; an earlier file of that name stays intact.
    """
    with write_errors(path), replacing(path) as part:
        write(part)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields an empty file beside `path`, which is renamed to `path` at the end of the block.

    Where the block raises, an earlier file of that name stays intact. The new file's permissions
    follow the umask, even if the block made a private file in its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)  # left by a killed process
        part.touch()
        mode = part.stat().st_mode
        yield part
        part.chmod(mode)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turns an OSError from writing `path` into a TrainingError."""
    try:
        yield
    except OSError as fault:
        is_full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if is_full else fault.strerror or str(fault)
        raise TrainingError(
            f"cannot be written ({reason}); free some space or make the directory writable, and "
            "run the same command again, which goes on from what was written before",
            path,
        ) from fault
