"""How many files and connections the process may have."""

from __future__ import annotations

import contextlib
import resource


def raise_file_limit() -> None:
    """Lets the process have as many connections as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
