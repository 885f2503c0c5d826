"""Errors of the engine. Each is also the built-in exception one would expect.

Error (RuntimeError): everything the core raises on purpose.
InvalidArgument (ValueError): an option or request field is out of range.
CheckpointError (ValueError): a checkpoint is malformed or of an unknown family.
OutOfMemory (MemoryError): weights, cache or workspace do not fit.
Unavailable (RuntimeError): a device or mode this build or machine does not have.
InternalError (RuntimeError): a bug in this library.
"""

from specdec_native._core import (
    CheckpointError,
    Error,
    InternalError,
    InvalidArgument,
    OutOfMemory,
    Unavailable,
)

__all__ = [
    "CheckpointError",
    "Error",
    "InternalError",
    "InvalidArgument",
    "OutOfMemory",
    "Unavailable",
]
