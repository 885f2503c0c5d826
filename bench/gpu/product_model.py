"""Kernels of a graph, and the products among them: what each reads and what room it takes.

It repeats the choices of cuda/backend/projector.cc and cuda/kernels/projection_*.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .attention_model import ceil_div

_BLOCK_INPUTS = 32  # kBlockInputs
_TILE_OUTPUTS = 16  # kTileOutputs
_RECORD_BYTES = 64  # kRecordBytes
_SLICES = 8  # kNumSlices, which is warps of a block, too
_THREADS = 256  # of products
FEW_ROWS = 16  # kFewRows
_SHARED_ROW_BYTES = 16 << 10  # kSharedRowBytes
_MANY_ROWS_TILES = 8  # kManyRowsTiles
_STAGE_BYTES = 2048  # of a warp
_PREFETCH_BYTES = 128 << 10  # kPrefetchBytes, of a block
_MOST_HEAD_DIM = 256  # kMostHeadDim
_BEST_KEY_BYTES = _SLICES * FEW_ROWS * 8  # kBestKeyBytes
_RESERVED_SHARED_BYTES = 1024  # of every block, for the system

# Bytes of a block of 16 outputs and 32 inputs by weight format.
BLOCK_BYTES = {"act": 1024, "int8": 512, "int4_grouped": 288}


@dataclass(frozen=True)
class Gpu:
    """What kernels share out."""

    multiprocessors: int = 132
    registers: int = 65536  # of a multiprocessor
    shared_bytes: int = 228 << 10  # likewise


H200 = Gpu()

# Of a thread, until a device has said: the limit in scripts/cuda_gates.txt.
FEW_ROWS_REGISTERS = 128
SMALL_REGISTERS = 64


@dataclass(frozen=True)
class Node:
    """One kernel of the graph."""

    role: str  # "qkv", "attention", "o", "gate_up", "down", "head", "rows", or "small"
    name: str  # as it is launched
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int  # dynamic
    registers: int  # of a thread
    bytes: float = 0.0  # read from memory
    early_bytes: float = 0.0  # of these, asked for before it waits
    l2_bytes: float = 0.0  # that multiprocessors read from L2 when it has waited, of products
    starts_early: bool = True
    lets_next_early: bool = False  # before it has waited itself
    reads_before_wait: bool = False  # what kernels before the one before it wrote
    rows: str = "records"  # where a product has its rows from: "records", "shared", "exchanged"
    flops: float = 0.0
    blocks_meet: bool = False  # in L2, when a product's sums are there
    finds_best: bool = False  # the likeliest token of each row
    busy_blocks: int = 0  # that have work; 0: all
    block_items: int = 0  # of attention, of the block that has most to do
    block_tiles: int = 0  # likewise, of positions, one after another
    item_columns: int = 1  # of 16 pairs of a row and a head
    splits: int = 0  # that are joined
    reads_plan: bool = False  # that a layer before it in the pass has made

    @property
    def blocks(self) -> int:
        """Of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    def held(self, gpu: Gpu) -> tuple[int, int]:
        """Registers and bytes of shared memory of a multiprocessor that those with work take."""
        each = ceil_div(self.busy_blocks or self.blocks, gpu.multiprocessors)
        registers = each * self.threads * ceil_div(self.registers, 8) * 8
        return registers, each * (self.shared_bytes + _RESERVED_SHARED_BYTES)


def fit_together(first: Node, second: Node, gpu: Gpu) -> bool:
    """Whether a multiprocessor has room for the blocks of both."""
    (registers, shared_bytes), (more, more_bytes) = first.held(gpu), second.held(gpu)
    return registers + more <= gpu.registers and shared_bytes + more_bytes <= gpu.shared_bytes


def early_starts(sequence: Sequence[Node]) -> list[bool]:
    """Which kernels are launched to start before the one before them has ended: StartRule."""
    return [
        index > 0
        and node.starts_early
        and not (node.reads_before_wait and sequence[index - 1].lets_next_early)
        for index, node in enumerate(sequence)
    ]


def padded_count(count: int) -> int:
    """Rows or requests of a recorded batch: padded_count of staged_batch.cc."""
    if count <= 2:
        return count
    return ceil_div(count, 4) * 4 if count <= 16 else 1 << (count - 1).bit_length()


# ---- products


@dataclass(frozen=True)
class Product:
    """A product with a weight matrix, as a layer has it."""

    role: str
    outputs: int
    inputs: int
    gated: bool = False
    from_floats: bool = False  # rows are normalised on their way in
    ends_in_heads: bool = False
    head_dim: int = 0
    rotary_dim: int = 0
    finds_best: bool = False  # the likeliest token of each row, in place of its outputs
    weight_format: str = "act"

    @property
    def tiles(self) -> int:
        """Of 16 outputs."""
        if self.gated:
            return 2 * ceil_div(self.outputs // 2, 8) * 8 // _TILE_OUTPUTS
        return ceil_div(self.outputs, _TILE_OUTPUTS)

    @property
    def k_blocks(self) -> int:
        """Of 32 inputs."""
        return ceil_div(self.inputs, _BLOCK_INPUTS)

    @property
    def bytes(self) -> float:
        """Of its weights."""
        return float(self.tiles * self.k_blocks * BLOCK_BYTES[self.weight_format])

    def tail_bytes(self, rows: int) -> int:
        """Shared memory behind the rows, of few: rotations and slots, or the best keys."""
        if self.ends_in_heads:
            return FEW_ROWS * 8 + rows * self.rotary_dim * 4
        return _BEST_KEY_BYTES if self.finds_best else 0


def _head_scratch(dim: int) -> int:
    """Shared memory in which heads are finished."""
    return _SLICES * (dim + 1) * 4


def row_source(product: Product, rows: int) -> str:
    """Where few rows come from: Projector::plan_of."""
    if not product.from_floats or product.inputs % 4 != 0:
        return "records"
    fits = rows <= 8 and rows * product.k_blocks * _RECORD_BYTES <= _SHARED_ROW_BYTES
    return "shared" if fits else "exchanged"


def has_pairs(product: Product, rows: int) -> bool:
    """Whether a kernel with two tiles a warp was compiled: product_of_columns."""
    if product.ends_in_heads or product.weight_format != "act":
        return False
    return not product.gated or row_source(product, rows) != "records"


def few_rows_plan(product: Product, rows: int, gpu: Gpu) -> tuple[int, int]:
    """Blocks and tiles that a warp works on at once: Projector::plan_few_rows."""
    block_tiles = ceil_div(product.tiles, gpu.multiprocessors)
    shares_rows = row_source(product, rows) == "shared" or rows > 4
    in_pairs = block_tiles % 2 == 0 or block_tiles > 8
    at_once = 2 if shares_rows and in_pairs and has_pairs(product, rows) else 1
    return ceil_div(product.tiles, block_tiles), at_once


def ring_piece(product: Product, stages: int, at_once: int = 1) -> float:
    """What a kernel of few rows has in registers of a slice of a tile before it waits."""
    tile = product.k_blocks * BLOCK_BYTES[product.weight_format]
    return min(stages * _STAGE_BYTES / at_once, tile / _SLICES)


def early_block_bytes(product: Product, stages: int, at_once: int = 1) -> float:
    """What a block of few rows asks for before it waits.

    The first bytes of its tiles go to L2. Into registers goes the beginning of each slice of its
    first tiles, of which some lies behind those bytes.
    """
    tile = product.k_blocks * BLOCK_BYTES[product.weight_format]
    piece = ring_piece(product, stages, at_once)
    ends = [i * tile / _SLICES + piece for i in range(at_once * _SLICES)]
    return _PREFETCH_BYTES + sum(min(piece, max(0.0, end - _PREFETCH_BYTES)) for end in ends)


def few_rows(product: Product, rows: int, gpu: Gpu) -> Node:
    """A product of at most 16 rows."""
    blocks, at_once = few_rows_plan(product, rows, gpu)
    source = row_source(product, rows)
    columns = 2 if rows > 8 else 1
    row_bytes = rows * product.k_blocks * _RECORD_BYTES
    # Rows that every block does not keep for itself are read for each tile, or for each two. Costs
    # has what it takes to prepare them.
    reads = blocks * ceil_div(ceil_div(product.tiles, blocks), at_once) if source != "shared" else 0
    shared = 2 * _SLICES * at_once * columns * _TILE_OUTPUTS * 8 * 4
    if source == "shared":
        shared += row_bytes
    else:
        shared = max(shared, _head_scratch(_MOST_HEAD_DIM))
    stores = not (product.gated or product.ends_in_heads) and not product.finds_best
    stages = 3 if columns == 2 and stores else 4
    in_registers = blocks * at_once * _SLICES * ring_piece(product, stages, at_once)
    return Node(
        role=product.role,
        name="few_rows",
        grid=(blocks, 1, 1),
        threads=_THREADS,
        shared_bytes=shared + product.tail_bytes(rows),
        registers=FEW_ROWS_REGISTERS,
        bytes=product.bytes,
        early_bytes=min(product.bytes, float(blocks * early_block_bytes(product, stages, at_once))),
        l2_bytes=max(0.0, product.bytes - in_registers) + reads * row_bytes,
        lets_next_early=not product.ends_in_heads,
        rows=source,
        flops=2.0 * rows * product.outputs * product.inputs,
        blocks_meet=product.ends_in_heads or product.finds_best,
        finds_best=product.finds_best,
    )


def many_rows(product: Product, rows: int, gpu: Gpu) -> list[Node]:
    """A product of more rows, with the node that prepares them where they are floats."""
    columns = 4 if rows <= 32 else 8
    row_tiles = ceil_div(rows, columns * 8)
    tile_blocks = ceil_div(product.tiles, _MANY_ROWS_TILES)
    split = row_tiles * tile_blocks <= gpu.multiprocessors
    # 3 stages of 4 k blocks of rows; sums of all tiles take their place where slices are not split.
    shared = 3 * 4 * columns * 8 * _RECORD_BYTES
    if product.ends_in_heads:
        shared = max(shared, _head_scratch(product.head_dim))
    product_node = Node(
        role=product.role,
        name="many_rows",
        grid=(row_tiles, tile_blocks, _SLICES if split else 1),
        threads=_THREADS,
        shared_bytes=shared,
        registers=FEW_ROWS_REGISTERS,
        bytes=product.bytes,
        # Row tiles are neighbours, so all but the first find the weights in L2.
        l2_bytes=row_tiles * product.bytes
        + float(tile_blocks * rows * product.k_blocks * _RECORD_BYTES),
        lets_next_early=not product.ends_in_heads,
        flops=2.0 * row_tiles * columns * 8 * product.outputs * product.inputs,
        blocks_meet=product.ends_in_heads,
    )
    return [product_node] if is_record(product) else [rows_node(rows), product_node]


def is_record(product: Product) -> bool:
    """Whether rows are read as they lie, where they are not floats: Projector::are_records."""
    return not product.from_floats and product.inputs % _BLOCK_INPUTS == 0


def small_node(name: str, grid: tuple[int, int, int], threads: int = _THREADS) -> Node:
    """A kernel that does little."""
    return Node("small", name, grid, threads, 0, SMALL_REGISTERS)


def rows_node(rows: int) -> Node:
    """The kernel that makes records of rows, or normalises them."""
    return Node(
        role="rows",
        name="prepare_rows",
        grid=(rows, 1, 1),
        threads=_THREADS,
        shared_bytes=0,
        registers=SMALL_REGISTERS,
    )


def product_nodes(product: Product, rows: int, gpu: Gpu) -> list[Node]:
    """A product of any number of rows."""
    if rows > FEW_ROWS:
        return many_rows(product, rows, gpu)
    product_node = few_rows(product, rows, gpu)
    has_rows = product_node.rows != "records" or is_record(product)
    return [product_node] if has_rows else [rows_node(rows), product_node]


# ---- experts


@dataclass(frozen=True)
class Experts:
    """Of a layer, whose rows choose some of them."""

    count: int
    chosen: int  # by a row
    hidden: int
    inner: int

    @property
    def gate_up(self) -> Product:
        """Of one of them."""
        return Product("experts_in", 2 * self.inner, self.hidden, gated=True)

    @property
    def down(self) -> Product:
        """Of one of them."""
        return Product("experts_out", self.hidden, self.inner)

    def read(self, rows: int) -> float:
        """How many different ones so many rows choose, where each is as likely as another."""
        return self.count * (1.0 - (1.0 - self.chosen / self.count) ** rows)

    def bytes(self, rows: int) -> float:
        """Of the weights of these."""
        return self.read(rows) * (self.gate_up.bytes + self.down.bytes)


def _product_of_experts(experts: Experts, product: Product, rows: int, gpu: Gpu) -> Node:
    """Of all experts with the rows that chose them, which are known from the second product on."""
    padded = padded_count(rows)
    are_known = product.role == "experts_out"
    read = experts.read(rows)
    flops = 2.0 * rows * experts.chosen * product.outputs * product.inputs
    row_bytes = rows * experts.chosen * product.k_blocks * _RECORD_BYTES
    if padded > FEW_ROWS:
        tile_blocks = ceil_div(product.tiles, _MANY_ROWS_TILES)
        return Node(
            role=product.role,
            name="moe: many rows",
            grid=(ceil_div(padded, 32), tile_blocks, experts.count),
            threads=_THREADS,
            shared_bytes=3 * 4 * 4 * 8 * _RECORD_BYTES,
            registers=FEW_ROWS_REGISTERS,
            bytes=read * product.bytes,
            l2_bytes=max(read, rows * experts.chosen / 32) * product.bytes
            + tile_blocks * row_bytes,
            flops=flops,
            busy_blocks=max(1, round(read)) * tile_blocks,
        )
    most_with_rows = min(experts.count, padded * experts.chosen)
    block_tiles = ceil_div(product.tiles, max(1, gpu.multiprocessors // most_with_rows))
    blocks = ceil_div(product.tiles, block_tiles)
    busy_blocks = max(1, round(read)) * blocks
    early = min(read * product.bytes, float(busy_blocks * early_block_bytes(product, 4)))
    in_registers = busy_blocks * _SLICES * ring_piece(product, 4) if are_known else 0.0
    return Node(
        role=product.role,
        name="moe: few rows",
        grid=(blocks, ceil_div(padded, 8), most_with_rows),
        threads=_THREADS,
        shared_bytes=2 * _SLICES * 2 * _TILE_OUTPUTS * 8 * 4,
        registers=FEW_ROWS_REGISTERS,
        bytes=read * product.bytes,
        early_bytes=early if are_known else 0.0,
        l2_bytes=max(0.0, read * product.bytes - in_registers)
        + blocks * ceil_div(block_tiles, 2) * row_bytes,
        lets_next_early=are_known,
        reads_before_wait=are_known,
        flops=flops,
        busy_blocks=busy_blocks,
    )


def expert_nodes(experts: Experts, rows: int, gpu: Gpu) -> list[Node]:
    """The second half of a layer: ExpertMixer, behind Decoder::add_experts."""
    padded = padded_count(rows)
    choices = padded * experts.chosen
    router = Product("router", experts.count, experts.hidden)
    nodes = [
        small_node("norm", (padded, 1, 1)),
        *product_nodes(router, padded, gpu),
        small_node("moe: route", (ceil_div(padded, _SLICES), 1, 1)),
        small_node("moe: group", (experts.count, 1, 1)),
    ]
    # Rows are gathered for the kernel of many rows, and what experts make of them is in that order.
    is_gathered = padded > FEW_ROWS
    if is_gathered or not is_record(experts.gate_up):
        nodes.append(rows_node(choices if is_gathered else padded))
    nodes.append(_product_of_experts(experts, experts.gate_up, rows, gpu))
    if not is_record(experts.down):
        nodes.append(rows_node(choices))
    nodes.append(_product_of_experts(experts, experts.down, rows, gpu))
    return [*nodes, small_node("moe: combine", (padded, ceil_div(experts.hidden, _THREADS), 1))]
