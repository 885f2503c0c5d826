"""Processes as the kernel counts them: CPU time, peak memory, stopping and going on."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Fields of /proc/stat's "cpu" line that count: user nice system idle iowait irq softirq steal.
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)


def group_members(group: int) -> Iterator[int]:
    """Process ids of a process group."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _stat_fields(int(entry.name))[2:3] == [str(group)]:
            yield int(entry.name)


def group_cpu_seconds(group: int) -> float:
    """CPU time of a process group, with that of its members' finished children."""
    ticks = 0
    for pid in group_members(group):
        fields = _stat_fields(pid)
        ticks += sum(map(int, fields[11:15]))  # utime stime cutime cstime
    return ticks / _TICKS_PER_SECOND


def group_peak_bytes(group: int, *, leader: bool = True) -> int:
    """The most memory each member of a group has held at a time, added up."""
    return sum(_peak_bytes(pid) for pid in group_members(group) if leader or pid != group)


def machine_cpu_seconds() -> float:
    """CPU time of the whole machine, with what a hypervisor took."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    return sum(int(fields[i]) for i in _BUSY_FIELDS) / _TICKS_PER_SECOND


@dataclasses.dataclass
class ForeignLoad:
    """Measures how many cores other processes use while a process group works."""

    group: int

    def __post_init__(self) -> None:
        self._start = self._sample()

    def _sample(self) -> tuple[float, float]:
        own = group_cpu_seconds(self.group) + time.process_time()
        return time.monotonic(), machine_cpu_seconds() - own

    def cores(self) -> float:
        """Cores that others kept busy since the start, on average; never negative."""
        (start, before), (end, after) = self._start, self._sample()
        return max(0.0, after - before) / max(end - start, 1e-9)


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; none for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _peak_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    lines = (line.split() for line in text.splitlines())
    return next((int(line[1]) << 10 for line in lines if line[:1] == ["VmHWM:"]), 0)
