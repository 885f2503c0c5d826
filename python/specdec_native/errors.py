"""Errors of the engine. Each is also the built-in exception one would expect.

Error (RuntimeError): everything the core raises on purpose.
InvalidArgument (ValueError): an option or request field is out of range.
CheckpointError (ValueError): a checkpoint is malformed or of an unknown family.
OutOfMemory (MemoryError): weights, cache or workspace do not fit.
Unavailable (RuntimeError): a device or mode this build or machine does not have.
EngineFailed (RuntimeError): an error that is no request's own has ended the engine; make a new one.
InternalError (RuntimeError): a bug in this library.
ModelNotFoundError (ValueError, FileNotFoundError): no such file, directory, model or repository.
DownloadError (RuntimeError): a download failed, or what arrived is not what was pinned.
MissingDependencyError (ImportError): an optional package is needed.
"""

from specdec_native._core import (
    CheckpointError,
    EngineFailed,
    Error,
    InternalError,
    InvalidArgument,
    OutOfMemory,
    Unavailable,
)
from specdec_native.checkpoints.errors import (
    DownloadError,
    MissingDependencyError,
    ModelNotFoundError,
)

__all__ = [
    "CheckpointError",
    "DownloadError",
    "EngineFailed",
    "Error",
    "InternalError",
    "InvalidArgument",
    "MissingDependencyError",
    "ModelNotFoundError",
    "OutOfMemory",
    "Unavailable",
]
