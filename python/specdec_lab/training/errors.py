"""Errors of training draft heads. Each message says what is wrong and what to do about it."""

from __future__ import annotations

from os import PathLike, fspath


class TrainingError(ValueError):
    """Data or options are not usable for training.

    `file` is the path at fault, or the empty string where there is none.
    """

    def __init__(self, message: str, file: str | PathLike[str] = "") -> None:
        self.file = fspath(file)
        super().__init__(f"{self.file}: {message}" if self.file else message)
