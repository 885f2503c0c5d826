"""The processes that train one head together, started by torchrun; or a single process."""

from __future__ import annotations

import datetime
import importlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from specdec_lab.training.errors import TrainingError

T = TypeVar("T")

# One rank may ask a target for data for hours while the others wait.
_PATIENCE = datetime.timedelta(days=30)


class Ranks:
    """The processes of a training.

    Attributes:
        rank: number of this process.
        size: number of processes.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @property
    def is_first(self) -> bool:
        """Whether this process makes data, writes files and reports."""
        return self.rank == 0

    def part(self, items: Sequence[T]) -> list[T]:
        """This process' part of `items`, which may be empty."""
        return list(items[self.rank :: self.size])

    def sum(self, values: Tensor) -> Tensor:
        """The sums over all processes, on the host in float64: every process gets the same."""
        total = values.detach().double().cpu()
        if self.size > 1:
            total = self._on_device(total)
            dist.all_reduce(total)
        return total.cpu()

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces gradients by their sums over all processes; a missing one counts as zeros."""
        if self.size == 1:
            return
        parameters = list(parameters)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        start = 0
        for grad in grads:
            grad.copy_(flat[start : start + grad.numel()].view_as(grad))
            start += grad.numel()

    def wait(self) -> None:
        """Returns once all processes have called it."""
        if self.size > 1:
            dist.barrier()

    def from_first(self, value: T) -> T:
        """The first process' value, which must be small and picklable."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    @staticmethod
    def _on_device(values: Tensor) -> Tensor:
        return values.cuda() if dist.get_backend() == "nccl" else values


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The processes that torchrun has started with this one; without torchrun, this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks()
        return
    # Optimizers import torch._dynamo, whose functions hold the current process group as a default
    # argument. If that came later, the group and its threads would live until the interpreter ends,
    # and the threads sometimes abort the process then.
    importlib.import_module("torch._dynamo")
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=_PATIENCE)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def local_device(name: str) -> torch.device:
    """The device that `name` means in this process: with torchrun, each has a GPU of its own.

    Raises TrainingError for one that is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
        raise TrainingError(f'device: must be "auto", "cpu", "cuda" or "cuda:1", got {name!r}')
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise TrainingError(
            f"device: torch finds {torch.cuda.device_count()} GPUs, so {name!r} is not there; give "
            "--device cpu, or install a torch for this machine's GPUs"
        )
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
