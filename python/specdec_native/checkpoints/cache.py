"""The cache of converted checkpoints: where it is, how entries are named and published."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from specdec_native.checkpoints.errors import CheckpointError

CONVERTER_VERSION = 2
"""Part of every key. Raise it whenever a conversion's output changes."""

STAGING_PREFIX = ".staging-"
"""Prefix of cache directories that hold work in progress; abandoned ones are removed later."""

_STAGING_LIFETIME_S = 24 * 3600.0


def cache_root() -> Path:
    """`$SPECDEC_HOME`, or `~/.cache/specdec_native`. The only place the variable is read."""
    home = os.environ.get("SPECDEC_HOME", "")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "specdec_native"


def source_key(files: list[Path], **options: object) -> str:
    """Identity of a conversion: paths, sizes and modification times of its sources, and options."""
    identity: dict[str, object] = {"converter": CONVERTER_VERSION, "options": options}
    for file in files:
        status = file.stat()
        identity[str(file.resolve())] = [status.st_size, status.st_mtime_ns]
    canonical = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:20]


def cached_directory(name: str, build: Callable[[Path], None]) -> Path:
    """The cache entry `name`, built by `build(empty_directory)` unless it is already there.

    The entry is built beside its final place and renamed into it, so a reader sees all of it or
    nothing, whoever is interrupted and however many processes build the same entry at once: the
    first to finish wins and the others use its result.
    """
    final = cache_root() / name
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale_staging(final.parent)
    staging = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=final.parent))
    try:
        build(staging)
        staging.chmod(0o755)
        try:
            staging.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return final


def require_free_space(directory: Path, num_bytes: int) -> None:
    """Raises CheckpointError when `num_bytes` more do not fit on the disk of `directory`."""
    free = shutil.disk_usage(directory).free
    if free < num_bytes:
        raise CheckpointError(
            f"{num_bytes / 2**20:.0f} MiB are needed and {free / 2**20:.0f} MiB are free; "
            "free some space or point SPECDEC_HOME at another disk",
            directory,
        )


def _remove_stale_staging(parent: Path) -> None:
    """Drops what a killed process left behind; a day is longer than any conversion takes."""
    oldest = time.time() - _STAGING_LIFETIME_S
    for entry in parent.glob(f"{STAGING_PREFIX}*"):
        try:
            if entry.stat().st_mtime < oldest:
                shutil.rmtree(entry, ignore_errors=True)
        except OSError:
            continue  # another process removed it first
