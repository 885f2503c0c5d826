"""The work of a graph's launches: bytes to read, and seconds of other work.

A benchmark records the launches of the graph that it measured, or with --list-launches those that
a GPU would get: grids, shared memory, and what work_of() of bench/common/launch_work.cc reads in
their parameters. Nothing here chooses a kernel. step_time.py puts them on a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapreplace
from itertools import pairwise
from typing import Any

Record = dict[str, Any]

_US = 1e-6
_RECORD_BYTES = 64  # 32 inputs of a row
_TILE_OUTPUTS, _BLOCK_INPUTS = 16, 32
_WARPS = 8  # of a product's block: slices of a tile
_STAGE_BYTES = 2048  # of a warp
_PREFETCH_BYTES = 128 << 10  # of a block, into L2
_STREAM_TILES = 8  # of a group
_ATTENTION_TILE = 64  # positions
# Positions of a split, and where such splits end (split_of in attention_items.cuh).
_SPLITS = ((128, 2048), (256, 16384), (1024, 1 << 62))
_SHORT_SPLIT = _SPLITS[0][0]
_RESERVED_SHARED_BYTES = 1024  # of every block, for the system
# Registers per thread, until a device has reported them: the limit in scripts/cuda_gates.txt, and
# nvcc 13.0's count for attention on sm_90a, by padded head_dim and pairs (bfloat16).
PRODUCT_REGISTERS = 128
_STREAM_REGISTERS = 96
_SMALL_REGISTERS = 64
_ATTENTION_REGISTERS = {
    (64, 16): 99,
    (64, 32): 114,
    (64, 64): 165,
    (128, 16): 111,
    (128, 32): 162,
    (128, 64): 252,
    (256, 16): 158,
    (256, 32): 242,
    (512, 16): 220,
    (512, 32): 220,
}


@dataclass(frozen=True)
class Gpu:
    """The resources that kernels divide up."""

    multiprocessors: int = 132
    registers: int = 65536  # of a multiprocessor
    shared_bytes: int = 132 << 10  # likewise, of what launches ask for: kStepSharedBytes


@dataclass(frozen=True)
class Costs:
    """Constants, in seconds, fitted to an H200 (bench/results/nvidia-h200).

    Passes of the 8B of up to 16 rows are within 5% of what was measured, single kernels within 12%;
    kernels of more rows within 25%. Experts' kernels were not measured.
    """

    read_rate: float = 4.46e12  # bytes a second
    share: float = 0.92  # of that rate within a kernel
    l2_rate: float = 4.8e12  # bytes a second from L2 to all multiprocessors, beside memory's
    flop_rate: float = 350e12  # of mma instructions
    gap: float = 3.6 * _US  # between kernels that do not run beside each other
    wait: float = 3.4 * _US  # from the end of a kernel to what waits for it
    finish: float = 2.4 * _US  # from a product's last weights to its end
    finish_meeting: float = 6.9 * _US  # the same where blocks meet in L2: heads, likeliest tokens
    finish_slices: float = 9.4 * _US  # the same where partial sums meet in L2
    rows_shared: float = 1.1 * _US  # to prepare rows in every block
    rows_exchanged: float = (
        0.1 * _US
    )  # to prepare them in turns, and meet: hardly more than to wait
    rows_kernel: float = 13.0 * _US  # to prepare them in a kernel of its own
    plan: float = 2.3 * _US  # of a block of attention
    open_item: float = 2.5 * _US  # to find the rows of an item's keys
    read_item: float = 2.2 * _US  # to read what a layer before found
    query: float = 0.1 * _US
    tile: float = 2.3 * _US  # of 64 positions and 16 pairs
    join: float = 0.1 * _US  # partial results, and what each adds
    join_split: float = 0.05 * _US
    small: float = 1.0 * _US  # of a kernel that does little
    step: float = 36.0 * _US  # of a greedy step beside the pass: rows, walk, commit


ASSUMED = Costs()


@dataclass(frozen=True)
class Kernel:
    """A launch for the simulated clock; seconds count after it has waited."""

    name: str = ""
    blocks: int = 1  # that have work
    threads: int = 256  # of a block
    shared_bytes: int = 0  # likewise, dynamic
    registers: int = 0  # of a thread
    starts_early: bool = False  # before the kernel before it has ended
    lets_next_early: bool = False  # before it has waited itself
    bytes: float = 0.0  # read from memory
    early_bytes: float = 0.0  # of these, asked for before it waits
    asks: float = 0.0  # from its begin until it asks for its first bytes
    before: float = 0.0  # until it streams what it had not asked for
    work: float = 0.0  # beside the reading of memory
    after: float = 0.0  # from the last byte to its end

    def held(self, gpu: Gpu) -> tuple[int, int]:
        """Registers and bytes of shared memory of a multiprocessor that its blocks occupy."""
        each = _ceil_div(self.blocks, gpu.multiprocessors)
        registers = each * self.threads * _ceil_div(self.registers, 8) * 8
        return registers, each * (self.shared_bytes + _RESERVED_SHARED_BYTES)


def _ceil_div(count: int, unit: int) -> int:
    """The number of units that hold `count`."""
    return -(-count // unit)


def kernels_of(record: Record, costs: Costs) -> list[Kernel]:
    """The launches of a record, in order; none where it has none."""
    chosen = 0  # experts, by a row
    kinds: list[Kernel] = []
    for launch in record.get("launches", []):
        work = launch.get("work", {})
        chosen = int(work.get("chosen", chosen))
        kernel = Kernel(
            name=launch["name"],
            blocks=_blocks(launch),
            threads=launch["threads"],
            shared_bytes=launch["shared_bytes"],
            registers=_SMALL_REGISTERS,
            starts_early=launch["starts_early"],
            lets_next_early=launch["lets_next_early"],
            work=costs.rows_kernel if launch["name"] == "prepare_rows" else costs.small,
        )
        if "experts" in work:
            kernel = _experts(kernel, launch, work, chosen, costs)
        elif "tiles" in work:
            products = {"few_rows": _few_rows, "stream_rows": _stream_rows}
            product = products.get(launch["name"], _many_rows)
            kernel = product(kernel, launch, work, costs)
        elif "heads" in work:
            kernel = _attention(kernel, work, record, costs)
        kinds.append(replace(kernel, registers=launch.get("registers", kernel.registers)))
    return [kinds[index] for index in record.get("order", [])]


def _blocks(launch: Record) -> int:
    x, y, z = launch["grid"]
    return int(x * y * z)


# ---- products


def _tile_bytes(work: Record) -> float:
    return float(work["k_blocks"] * work["block_bytes"])


def _flops(work: Record, rows: float) -> float:
    weights = work["tiles"] * _TILE_OUTPUTS * work["k_blocks"] * _BLOCK_INPUTS
    return float(2.0 * rows * weights)


def _product_seconds(flops: float, l2_bytes: float, costs: Costs) -> float:
    """Seconds of its arithmetic, or of reading L2 after it has waited."""
    return max(flops / costs.flop_rate, l2_bytes / costs.l2_rate)


def _ring_piece(work: Record, stages: int) -> float:
    """Bytes of a tile's slice that a kernel of few rows has in registers before it waits."""
    return float(min(stages * _STAGE_BYTES / work["tiles_at_once"], _tile_bytes(work) / _WARPS))


def _early_block_bytes(work: Record, stages: int) -> float:
    """Bytes that a block of few rows requests before it waits.

    The first bytes of its tiles go to L2. The beginning of each slice of its first tiles goes to
    registers; a part of that lies behind the bytes for L2.
    """
    piece = _ring_piece(work, stages)
    slices = int(work["tiles_at_once"]) * _WARPS
    ends = [i * _tile_bytes(work) / _WARPS + piece for i in range(slices)]
    return _PREFETCH_BYTES + sum(min(piece, max(0.0, end - _PREFETCH_BYTES)) for end in ends)


def few_rows_l2_bytes(launch: Record, work: Record) -> float:
    """Bytes that multiprocessors read from L2 after they have waited.

    Unless every block keeps its own copy of the rows, they are read once per tile or two tiles.
    """
    blocks = _blocks(launch)
    block_tiles = _ceil_div(int(work["tiles"]), blocks)
    reads = 0 if work["shares_rows"] else blocks * _ceil_div(block_tiles, work["tiles_at_once"])
    in_registers = blocks * work["tiles_at_once"] * _WARPS * _ring_piece(work, _stages(work))
    weights = max(0.0, work["tiles"] * _tile_bytes(work) - in_registers)
    return float(weights + reads * work["rows"] * work["k_blocks"] * _RECORD_BYTES)


def _stages(work: Record) -> int:
    return 3 if work["rows"] > 8 and work["stores"] else 4


def _few_rows(kernel: Kernel, launch: Record, work: Record, costs: Costs) -> Kernel:
    weights = work["tiles"] * _tile_bytes(work)
    shared, exchanged = work["shares_rows"], work["exchanges_rows"]
    return replace(
        kernel,
        bytes=weights,
        early_bytes=min(weights, _blocks(launch) * _early_block_bytes(work, _stages(work))),
        before=costs.rows_shared * shared + costs.rows_exchanged * exchanged,
        work=_product_seconds(_flops(work, work["rows"]), few_rows_l2_bytes(launch, work), costs),
        after=costs.finish_meeting if work["meets"] else costs.finish,
        registers=PRODUCT_REGISTERS,
    )


def _many_rows(kernel: Kernel, launch: Record, work: Record, costs: Costs) -> Kernel:
    weights = work["tiles"] * _tile_bytes(work)
    row_tiles, tile_blocks, slices = launch["grid"]
    # Row tiles are neighbours, so all but the first find the weights in L2.
    row_bytes = work["rows"] * work["k_blocks"] * _RECORD_BYTES
    l2_bytes = row_tiles * weights + tile_blocks * row_bytes
    after = costs.finish_meeting if work["meets"] else costs.finish
    return replace(
        kernel,
        bytes=weights,
        work=_product_seconds(_flops(work, row_tiles * work["column_tiles"] * 8), l2_bytes, costs),
        after=max(after, costs.finish_slices) if slices > 1 else after,
        registers=PRODUCT_REGISTERS,
    )


def _stream_rows(kernel: Kernel, launch: Record, work: Record, costs: Costs) -> Kernel:
    weights = work["tiles"] * _tile_bytes(work)
    row_bytes = work["rows"] * work["k_blocks"] * _RECORD_BYTES
    l2_bytes = weights + _ceil_div(int(work["tiles"]), _STREAM_TILES) * row_bytes
    return replace(
        kernel,
        bytes=weights,
        early_bytes=min(weights, _blocks(launch) * (launch["shared_bytes"] + _PREFETCH_BYTES)),
        work=_product_seconds(_flops(work, work["rows"]), l2_bytes, costs),
        after=max(costs.finish_slices, costs.finish_meeting if work["meets"] else costs.finish),
        registers=_STREAM_REGISTERS,
    )


def experts_read(count: int, chosen: int, rows: int) -> float:
    """Different experts that `rows` rows choose on average if all are equally likely."""
    return count * (1.0 - (1.0 - chosen / count) ** rows)


def _experts(kernel: Kernel, launch: Record, work: Record, chosen: int, costs: Costs) -> Kernel:
    rows = int(work["rows"])
    weights = work["tiles"] * _tile_bytes(work)  # of one
    read = experts_read(int(work["experts"]), chosen, rows)
    row_bytes = rows * chosen * work["k_blocks"] * _RECORD_BYTES
    busy = max(1, round(read))
    early = 0.0
    if launch["name"] == "moe: many rows":
        blocks = launch["grid"][1]
        l2_bytes = max(read, rows * chosen / 32) * weights + blocks * row_bytes
    else:
        blocks = launch["grid"][0]
        one_tile = work | {"tiles_at_once": 1}
        in_registers = 0.0
        if work["knows_rows"]:  # before it waits
            early = min(read * weights, busy * blocks * _early_block_bytes(one_tile, 4))
            in_registers = busy * blocks * _WARPS * _ring_piece(one_tile, 4)
        pairs = _ceil_div(_ceil_div(int(work["tiles"]), blocks), 2)
        l2_bytes = max(0.0, read * weights - in_registers) + blocks * pairs * row_bytes
    return replace(
        kernel,
        bytes=read * weights,
        early_bytes=early,
        work=_product_seconds(_flops(work, rows * chosen), l2_bytes, costs),
        after=costs.finish,
        blocks=busy * blocks,
        registers=PRODUCT_REGISTERS,
    )


# ---- attention


def _whole_splits(positions: int) -> int:
    unit = next(unit for unit, end in _SPLITS if positions <= end)
    return _ceil_div(positions, unit) * unit


def _num_splits(positions: int) -> int:
    begins = [0, *(end for _, end in _SPLITS)]
    return sum(
        _ceil_div(max(0, min(positions, end) - begin), unit)
        for begin, (unit, end) in zip(begins, _SPLITS, strict=False)
    )


def attention_items(lists: int, end: int, blocks: int) -> tuple[list[int], int]:
    """How lists of `end` positions are divided: tiles of a list's items, and joined splits.

    A list is a set of (row, head) pairs that a block computes together over all positions. An item
    is a run of a list's splits of about a block's share.
    """
    limit = _whole_splits(end)
    splits = _num_splits(end)
    if splits == 1 or blocks <= 2 * lists:
        return [_ceil_div(end, _ATTENTION_TILE)], 0
    share = _ceil_div(lists * limit // _ATTENTION_TILE, blocks) * _ATTENTION_TILE
    run = _ceil_div(share, _SHORT_SPLIT) * _SHORT_SPLIT
    bounds = [min(_whole_splits(begin), end) for begin in [*range(0, limit, run), limit]]
    return [_ceil_div(end - begin, _ATTENTION_TILE) for begin, end in pairwise(bounds)], splits


def _busiest(lists: int, item_tiles: list[int], blocks: int) -> tuple[int, int]:
    """Tiles and items of the block that has most to do; blocks take items in turn."""
    done = [(0, 0)] * blocks
    for tiles in item_tiles:
        for _ in range(lists):
            heapreplace(done, (done[0][0] + tiles, done[0][1] + 1))
    return max(done)


def _attention(kernel: Kernel, work: Record, record: Record, costs: Costs) -> Kernel:
    """All requests have as many rows and positions; a tree's keys are nearly the context's."""
    requests, context = int(record["batch"]), int(record["context"])
    rows_each = int(record["rows"]) // requests
    pairs, blocks = int(kernel.name.split()[1]), kernel.blocks
    dim = next(dim for dim in (64, 128, 256, 512) if work["head_dim"] <= dim)
    end = context + rows_each
    kv_lists = requests * work["kv_heads"]
    lists = kv_lists * _ceil_div(int(rows_each * work["heads"] / work["kv_heads"]), pairs)
    item_tiles, splits = attention_items(int(lists), end, blocks)
    block_tiles, block_items = _busiest(int(lists), item_tiles, blocks)
    busy_blocks = min(int(lists) * len(item_tiles), blocks)
    # Lists of other pairs read the same keys again, from L2: that is not counted.
    all_bytes = kv_lists * work["position_bytes"] * end
    stages = 3 if pairs <= 32 and dim <= 128 else 2
    tile = _ATTENTION_TILE if dim <= 256 else _ATTENTION_TILE // 2
    first_bytes = (stages - 1) * tile * work["position_bytes"]
    open_item = costs.read_item if work["reads_plan"] else costs.open_item
    return replace(
        kernel,
        bytes=all_bytes,
        early_bytes=min(all_bytes, busy_blocks * kv_lists / lists * first_bytes),
        asks=open_item if work["reads_plan"] else costs.plan + open_item,
        before=costs.query,
        work=(block_items - 1) * open_item + block_tiles * pairs / 16 * costs.tile,
        after=costs.join + splits * costs.join_split if splits > 1 else 0.0,
        blocks=busy_blocks,
        registers=_ATTENTION_REGISTERS[dim, pairs],
    )
