"""Runs a command as on a busy machine: every core also runs a busy loop, and one thread after
another of the command's processes is stopped for up to two seconds.

    scripts/under_stress.py [--seed N] COMMAND...
    scripts/under_stress.py scripts/test.sh cpp python

A test that passes alone and fails here waits for a time instead of an event. Exits as the command
does. A thread is stopped by ptrace, so that its process sees no signal; Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

LONGEST_STOP_S = 2.0
# The command's processes have this in their environment, whichever process started them.
MARK = "SPECDEC_UNDER_STRESS"

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_EVENT_STOP = 128
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, thread: int, data: int = 0) -> bool:
    return int(_libc.ptrace(request, thread, None, data)) == 0


def threads_of(mark: str) -> list[int]:
    """The ids of all threads of the processes whose environment has `mark`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found += [int(task.name) for task in (process / "task").iterdir()]
        except OSError:
            continue  # it ended meanwhile
    return found


def stop(thread: int, seconds: float) -> bool:
    """Stops a thread for a time. False if it had ended, or another process traces it."""
    if not _ptrace(_SEIZE, thread):
        return False
    _ptrace(_INTERRUPT, thread)
    _, status = os.waitpid(thread, 0x40000000)  # __WALL: a thread that we did not start
    if not os.WIFSTOPPED(status):
        return False
    time.sleep(seconds)
    # If a signal stopped the thread first, that signal still has to be delivered.
    own_stop = status >> 16 == _EVENT_STOP
    return _ptrace(_DETACH, thread, 0 if own_stop else os.WSTOPSIG(status))


def burn() -> int:
    """Starts a process that computes until it is killed, and returns its id."""
    process = os.fork()
    while process == 0:
        pass
    return process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    mark = f"{MARK}={uuid.uuid4()}"
    burners = [burn() for _ in range(os.cpu_count() or 1)]
    stops = 0
    try:
        name, _, value = mark.partition("=")
        command = subprocess.Popen(options.command, env=os.environ | {name: value})
        while command.poll() is None:
            time.sleep(chance.uniform(0, 0.5))
            # Not the command itself: its tracer would receive its exit status, too.
            if threads := [each for each in threads_of(mark) if each != command.pid]:
                stops += stop(chance.choice(threads), chance.uniform(0, LONGEST_STOP_S))
    finally:
        for burner in burners:
            os.kill(burner, signal.SIGKILL)
            os.waitpid(burner, 0)
    status = command.returncode
    print(f"under_stress: {stops} threads were stopped; the command exited with {status}")
    return status


if __name__ == "__main__":
    sys.exit(main())
