"""The roofline: a pass takes as long as its bytes or its operations, whichever is longer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from specdec_native._core import ModelFacts


@dataclasses.dataclass(frozen=True)
class Machine:
    """The rates that limit a pass.

    Attributes:
        bandwidth: bytes of memory read per second.
        flops: floating-point operations per second.
        overhead: further seconds per pass, such as kernel launches.
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
        """Operations per byte above which operations, not memory, limit a pass."""
        return self.flops / self.bandwidth

    def seconds(self, num_bytes: float, num_flops: float) -> float:
        """Seconds of a pass."""
        return self.overhead + max(num_bytes / self.bandwidth, num_flops / self.flops)


@dataclasses.dataclass(frozen=True)
class Point:
    """A pass on the roofline.

    Attributes:
        name: "decode", "verify" or "prompt".
        batch, num_rows, context: requests, rows in all, and tokens per request before the pass.
        num_bytes, num_flops: bytes read and operations.
        seconds: duration of the pass.
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
        """Floating-point operations per byte."""
        return self.num_flops / self.num_bytes

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.num_bytes / self.seconds

    @property
    def flops(self) -> float:
        """Floating-point operations per second."""
        return self.num_flops / self.seconds


def decoding_point(
    model: ModelFacts, batch: int, num_rows: int, context: int, seconds: float
) -> Point:
    """The target's pass for `batch` requests: decoding, or verifying with more rows."""
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
    """Operations of the pass over a prompt: each token attends to the tokens before it; only the
    last row is scored."""
    return model.pass_flops(num_rows, num_rows // 2, 1)


def observed_machine(points: Sequence[Point]) -> Machine:
    """The highest rates that passes reached: a lower bound of the machine's rates."""
    return Machine(max(p.bandwidth for p in points), max(p.flops for p in points))
