"""Errors of the engine. Each is also the built-in exception one would expect.

- Error (RuntimeError): everything the core raises on purpose.
- InvalidArgument (ValueError): an option or request field is out of range.
- CheckpointError (ValueError): a checkpoint is malformed or of an unknown family.
- OutOfMemory (MemoryError): weights, cache or workspace do not fit.
- Unavailable (RuntimeError): a device or mode this build or machine does not have.
- EngineFailed (RuntimeError): an error that concerns no single request has ended the engine; make
  another one.
- RankFailure (EngineFailed): a rank of an engine on several devices is gone, has failed or did
  not answer in time.
- InternalError (RuntimeError): a bug in this library.
- ModelNotFoundError (ValueError, FileNotFoundError): no such file, directory, model or repository.
- DownloadError (RuntimeError): a download failed, or what arrived is not what was pinned.
- MissingDependencyError (ImportError): an optional package is needed.
- RequestError (RuntimeError): requests of one generate() call failed; its `outputs` hold the
  outputs of the others.
"""

from collections.abc import Mapping, Sequence

from specdec_native._core import (
    CheckpointError,
    EngineFailed,
    Error,
    InternalError,
    InvalidArgument,
    OutOfMemory,
    RankFailure,
    Unavailable,
)
from specdec_native.checkpoints.errors import (
    DownloadError,
    MissingDependencyError,
    ModelNotFoundError,
)
from specdec_native.requests.outputs import RequestOutput

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
    "RankFailure",
    "RequestError",
    "Unavailable",
]


class RequestError(RuntimeError):
    """Requests of one generate() or chat() call failed; the others ran to their end.

    Attributes:
        outputs: the output of every request, in order. A failed request has the output up to its
            failure, with finish_reason "error".
        errors: the error that ended each failed request, by its index in `outputs`.
    """

    def __init__(
        self, outputs: Sequence[RequestOutput], errors: Mapping[int, BaseException]
    ) -> None:
        index, first = next(iter(errors.items()))
        others = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        super().__init__(f"prompts[{index}] failed: {first}{others}")
        self.outputs = list(outputs)
        self.errors = dict(errors)
        self.__cause__ = first
