"""Where the core's log goes: to `logging`, as the logger "specdec_native"."""

import logging

from specdec_native import _core

_logger = logging.getLogger("specdec_native")
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def route_core_log() -> None:
    """Hands what the core logs to `logging`."""
    _core.set_log_sink(_log)


def _log(level: str, message: str) -> None:
    _logger.log(_LEVELS.get(level, logging.INFO), "%s", message)
