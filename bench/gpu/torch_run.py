"""torch's products and prompt attention at the shapes of Llama-3.1-8B, bfloat16.

python -m bench.gpu.torch_run --json=FILE. Products run in CUDA graphs over as many weights as the
L2 cache cannot hold; seconds are medians of one operation, between events of the device.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from .steps import Data, write_json

PRODUCTS = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def random(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16)


def seconds(body: Callable[[], object]) -> float:
    """Seconds of the body in a CUDA graph."""
    body()  # chooses kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    event: Any = torch.cuda.Event
    times: list[float] = []
    for _ in range(10):
        begin, end = (event(enable_timing=True) for _ in range(2))
        graph.replay()  # the device is busy when `begin` is queued
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e-3 * begin.elapsed_time(end))
    return statistics.median(times)


def attention(tokens: int) -> float:
    """Seconds of a prompt's causal attention."""
    q, k, v = (random(1, num_heads, tokens, 128) for num_heads in (32, 8, 8))
    return seconds(lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


def product(outputs: int, inputs: int, rows: int) -> float:
    """One product with weights that come from memory."""
    weights = [random(outputs, inputs) for _ in range(1 + (128 << 20) // (outputs * inputs))]
    x = random(rows, inputs)
    return seconds(lambda: [linear(x, weight) for weight in weights]) / len(weights)


def main() -> int:
    parser = argparse.ArgumentParser(description="torch's products and attention")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    records: list[Data] = []

    def add(kernel: str, shape: str, rows: int, measured: float) -> None:
        records.append({"kernel": kernel, "shape": shape, "rows": rows, "seconds": measured})
        print(f"torch {kernel} {shape} {rows}: {1e6 * measured:.1f} us", flush=True)
        write_json(options.json, {"version": torch.__version__, "records": records})

    with torch.inference_mode():
        for tokens in (2048, 8192):
            add("attention", f"prompt of {tokens}", tokens, attention(tokens))
        for kernel, (outputs, inputs) in PRODUCTS.items():
            for rows in ROWS:
                add(kernel, f"{outputs} x {inputs}", rows, product(outputs, inputs, rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
