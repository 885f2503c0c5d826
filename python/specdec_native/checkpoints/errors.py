"""Errors of finding, fetching and converting checkpoints. Each message says what to do next."""

from __future__ import annotations

from os import PathLike, fspath

from specdec_native import _core


class CheckpointError(_core.CheckpointError):
    """A checkpoint is malformed or of a kind this package cannot use (also a ValueError).

    `file` is the path at fault, or the empty string where there is none.
    """

    def __init__(self, message: str, file: str | PathLike[str] = "") -> None:
        self.file = fspath(file)
        super().__init__(f"{self.file}: {message}" if self.file else message)


class ModelNotFoundError(CheckpointError, FileNotFoundError):
    """No such file, directory, known model or repository."""


class DownloadError(_core.Error):
    """A download failed, or what arrived is not what was pinned."""


class MissingDependencyError(ImportError):
    """An optional package is needed; the message names the extra that installs it."""

    def __init__(self, package: str, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}: pip install 'specdec-native[{extra}]'",
            name=package,
        )
