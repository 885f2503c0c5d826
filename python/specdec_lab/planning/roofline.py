"""The roofline: a pass takes as long as its bytes or its operations, whichever take longer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from specdec_native._core import ModelFacts


@dataclasses.dataclass(frozen=True)
class Machine:
    """What limits a pass.

    Attributes:
        bandwidth: bytes of memory read in a second.
        flops: floating-point operations in a second.
        overhead: seconds that a pass takes beyond that, such as launches of kernels.
    """

    bandwidth: float
    flops: float
    overhead: float = 0.0

    def __post_init__(self) -> None:
        for name in ("bandwidth", "flops"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, got {getattr(self, name)}")

    @property
    def ridge(self) -> float:
        """Operations a byte from which on operations limit a pass."""
        return self.flops / self.bandwidth

    def seconds(self, num_bytes: float, num_flops: float) -> float:
        """Of a pass."""
        return self.overhead + max(num_bytes / self.bandwidth, num_flops / self.flops)


@dataclasses.dataclass(frozen=True)
class Point:
    """A pass on the roofline.

    Attributes:
        name: "decode", "verify" or "prompt".
        batch, num_rows, context: requests, rows in all, and tokens of each request before.
        num_bytes, num_flops: what it reads and computes.
        seconds: that it takes.
    """

    name: str
    batch: int
    num_rows: int
    context: int
    num_bytes: float
    num_flops: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Floating-point operations a byte."""
        return self.num_flops / self.num_bytes

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.num_bytes / self.seconds

    @property
    def flops(self) -> float:
        """Floating-point operations a second."""
        return self.num_flops / self.seconds


def decoding_point(
    model: ModelFacts, batch: int, num_rows: int, context: int, seconds: float
) -> Point:
    """A step's pass of `batch` requests: a decoding one, or a verifying one with more rows."""
    return Point(
        "decode" if num_rows == batch else "verify",
        batch,
        num_rows,
        context,
        model.pass_bytes(num_rows, batch, context),
        model.pass_flops(num_rows, context),
        seconds,
    )


def prompt_point(model: ModelFacts, num_rows: int, seconds: float) -> Point:
    """The pass over a prompt of `num_rows` tokens."""
    flops = prompt_flops(model, num_rows)
    return Point("prompt", 1, num_rows, 0, model.pass_bytes(num_rows, 1, 0), flops, seconds)


def prompt_flops(model: ModelFacts, num_rows: int) -> float:
    """Of the pass over a prompt: each token attends to those before it, the last one is scored."""
    return model.pass_flops(num_rows, num_rows // 2, 1)


def observed_machine(points: Sequence[Point]) -> Machine:
    """The highest rates that passes reached: a lower limit of what the machine can do."""
    return Machine(max(p.bandwidth for p in points), max(p.flops for p in points))
