"""What the model of a pass predicts for the records of a report, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import checkpoints
from .head_model import HeadPass, head_nodes
from .product_model import BLOCK_BYTES, Gpu, Node, padded_count, product_nodes
from .step_model import (
    Config,
    attention_node,
    attention_of,
    greedy_nodes,
    head_dim,
    layer_products,
    nodes,
    output_product,
)
from .step_time import Costs, costs_of, pass_seconds, repeated_seconds

Record = dict[str, Any]

# Of the microbenchmarks' shapes.
_CONFIGS = {
    "Llama-3.2-1B": "llama-3.2-1b",
    "Llama-3.1-8B": "llama-3.1-8b",
    "tiny": "tiny",
}
_ROLES = {"qkv": "qkv", "attention_out": "o", "gate_up": "gate_up", "down": "down"}


@dataclass(frozen=True)
class Prediction:
    """Of one record."""

    seconds: float
    differs: str = ""  # kernels that were launched otherwise than the model has them


@dataclass(frozen=True)
class Model:
    """The model with what a report has measured of its GPU."""

    gpu: Gpu
    costs: Costs

    def of_pass(self, config: Config, record: Record) -> Prediction:
        """Of a record of cuda_step_bench."""
        batch = int(record["batch"])
        rows = batch * (int(record["drafts"]) + 1)
        kernels_of = greedy_nodes if record.get("greedy") else nodes
        sequence = kernels_of(config, rows, int(record["context"]), self.gpu, batch)
        sequence, differs = with_resources(sequence, record.get("nodes", []))
        return Prediction(pass_seconds(sequence, self.gpu, self.costs), differs)

    def of_head_pass(self, config: Config, record: Record) -> Prediction | None:
        """Of a record of cuda_head_bench; None of passes of the target."""
        if record["kernel"] not in {"draft_pass", "catch_up"}:
            return None
        head = head_pass_of(config, record)
        sequence, differs = with_resources(head_nodes(head, self.gpu), record.get("nodes", []))
        return Prediction(pass_seconds(sequence, self.gpu, self.costs), differs)

    def of_kernel(self, record: Record) -> Prediction | None:
        """Of a record of cuda_kernel_bench; None where the model has nothing to say."""
        sequence = kernel_nodes(record, self.gpu)
        if sequence is None:
            return None
        sequence, differs = with_resources(sequence, record.get("nodes", []))
        return Prediction(repeated_seconds(sequence, self.gpu, self.costs), differs)


def head_pass_of(config: Config, record: Record) -> HeadPass:
    """What a record of cuda_head_bench measured."""
    level = 1 if record["kernel"] == "draft_pass" else 0
    rows_each = int(record["each"])
    return HeadPass(
        config=config,
        context=int(record["context"]),
        requests=int(record["batch"]),
        rows_each=rows_each,
        level=level,
        weight_format="int8" if record["shape"].startswith("int8") else "act",
        greedy=bool(record.get("greedy")) and (level == 0 or rows_each == 1),
    )


def model_of(report: dict[str, Any]) -> Model:
    """The constants of a report's `ceilings`, where it has them."""
    records = report["steps"].get("ceilings", {}).get("data", {}).get("records", [])
    gpu = Gpu()
    if records:
        gpu = replace(gpu, multiprocessors=int(records[0]["threads"]))
    return Model(gpu, costs_of(records))


def kernel_nodes(record: Record, gpu: Gpu) -> list[Node] | None:
    """What a record of cuda_kernel_bench launches again and again."""
    shape = record["shape"].split(" ")
    if shape[0] not in _CONFIGS or ": " in record["kernel"]:
        return None
    config = checkpoints.SHAPES[_CONFIGS[shape[0]]]
    rows = int(record["rows"])
    if record["kernel"] == "attention":
        context, requests = int(shape[2]), int(shape[3].removeprefix("x"))
        return [attention_node(attention_of(config, rows, context, requests), gpu)]
    if len(shape) != 2 or shape[1] not in BLOCK_BYTES:
        return None
    if record["kernel"] == "head":
        product = output_product(config)
    elif record["kernel"] in _ROLES:
        product = layer_products(config)[_ROLES[record["kernel"]]]
    else:
        return None
    return product_nodes(replace(product, weight_format=shape[1]), padded_count(rows), gpu)


def with_resources(sequence: Sequence[Node], launched: Sequence[Record]) -> tuple[list[Node], str]:
    """The kernels with the registers that the device says they have, and those that differ.

    Launches are found by name, grid and shared memory. Without a list of them all stay as they are.
    """
    by_launch = {launch_key(entry): entry for entry in launched}
    found = []
    differs: dict[str, None] = {}  # a set in order
    for node in sequence:
        entry = by_launch.get((node.name, node.grid, node.threads, node.shared_bytes))
        if entry is None and launched:
            differs[node.role] = None
        registers = (entry or {}).get("registers", node.registers)
        found.append(replace(node, registers=registers))
    modelled = {(node.name, node.grid, node.threads, node.shared_bytes) for node in sequence}
    differs |= {f"{key[0]} {key[1]}": None for key in by_launch if key not in modelled}
    return found, ", ".join(differs)


def launch_key(entry: Record) -> tuple[str, tuple[int, ...], int, int]:
    """Name, grid, threads and dynamic shared memory of a launch that a benchmark recorded."""
    return entry["name"], tuple(entry["grid"]), int(entry["threads"]), int(entry["shared_bytes"])


def key_bytes(config: Config, positions: int) -> float:
    """Of the keys and values of so many positions, in all layers."""
    width = int(config["num_key_value_heads"]) * head_dim(config)
    return 2.0 * 2.0 * width * int(config["num_hidden_layers"]) * positions
