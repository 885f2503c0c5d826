"""The kernels of a pass as the backend launches them: what each reads and what room it takes.

It repeats the choices of cuda/backend/projector.cc and cuda/kernels (tests/python/test_gpu_model.py
compares both); step_time.py says how long they should take. Models are dense Llamas, caches have
the dtype of activations, requests are chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .attention_model import ATTENTION_TILE, Attention, AttentionKernel, ceil_div, share_out

Config = dict[str, Any]  # of config.json

_BLOCK_INPUTS = 32  # kBlockInputs
_TILE_OUTPUTS = 16  # kTileOutputs
_ACT_BYTES = 2
_RECORD_BYTES = 64  # kRecordBytes
_SLICES = 8  # kNumSlices, which is warps of a block, too
_THREADS = 256  # of products
_FEW_ROWS = 16  # kFewRows
_SHARED_ROW_BYTES = 16 << 10  # kSharedRowBytes
_MANY_ROWS_TILES = 8  # kManyRowsTiles
_STAGE_BYTES = 2048  # of a warp
_PREFETCH_BYTES = 128 << 10  # kPrefetchBytes, of a block
_MOST_HEAD_DIM = 256  # kMostHeadDim
_BEST_KEY_BYTES = _SLICES * _FEW_ROWS * 8  # kBestKeyBytes
_ATTENTION_THREADS = 128
_FEW_ATTENTION_ROWS = 64  # kFewAttentionRows
_EMBED_THREADS = 128
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

# Of a thread, until a device has said: the limit in scripts/cuda_gates.txt, and what attention is
# compiled to by nvcc 13.0 for sm_90a, by padded head_dim and tiles of 16 pairs (bfloat16).
FEW_ROWS_REGISTERS = 128
_ATTENTION_REGISTERS = {
    (64, 1): 106,
    (64, 2): 117,
    (64, 4): 165,
    (128, 1): 110,
    (128, 2): 161,
    (128, 4): 247,
    (256, 1): 153,
    (256, 2): 238,
    (256, 4): 244,
}
_SMALL_REGISTERS = 64


@dataclass(frozen=True)
class Node:
    """One kernel of the graph."""

    role: str  # "qkv", "attention", "o", "gate_up", "down", "head", "embed", "rows", "join"
    name: str  # as it is launched
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int  # dynamic
    registers: int  # of a thread
    bytes: float = 0.0  # read from memory
    early_bytes: float = 0.0  # of these, asked for before it waits
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
    plans_late: bool = False  # attention: not before it has waited

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
        node.starts_early
        and not (index > 0 and node.reads_before_wait and sequence[index - 1].lets_next_early)
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
            return _FEW_ROWS * 8 + rows * self.rotary_dim * 4
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


def few_rows(product: Product, rows: int, gpu: Gpu) -> Node:
    """A product of at most 16 rows."""
    blocks, at_once = few_rows_plan(product, rows, gpu)
    source = row_source(product, rows)
    columns = 2 if rows > 8 else 1
    shared = 2 * _SLICES * at_once * columns * _TILE_OUTPUTS * 8 * 4
    if source == "shared":
        shared += rows * product.k_blocks * _RECORD_BYTES
    else:
        shared = max(shared, _head_scratch(_MOST_HEAD_DIM))
    stores = product.role in {"o", "down", "head"} and not product.finds_best
    stages = 3 if columns == 2 and stores else 4
    in_registers = stages * _STAGE_BYTES * _SLICES
    early = min(product.bytes, float(blocks * (in_registers + _PREFETCH_BYTES)))
    return Node(
        role=product.role,
        name="few_rows",
        grid=(blocks, 1, 1),
        threads=_THREADS,
        shared_bytes=shared + product.tail_bytes(rows),
        registers=FEW_ROWS_REGISTERS,
        bytes=product.bytes,
        early_bytes=early,
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
        bytes=product.bytes * row_tiles,
        lets_next_early=not product.ends_in_heads,
        flops=2.0 * row_tiles * columns * 8 * product.outputs * product.inputs,
        blocks_meet=product.ends_in_heads,
    )
    return [product_node] if is_record(product) else [rows_node(rows), product_node]


def is_record(product: Product) -> bool:
    """Whether rows are read as they lie, where they are not floats: Projector::are_records."""
    return not product.from_floats and product.inputs % _BLOCK_INPUTS == 0


def rows_node(rows: int) -> Node:
    """The kernel that makes records of rows, or normalises them."""
    return Node(
        role="rows",
        name="prepare_rows",
        grid=(rows, 1, 1),
        threads=_THREADS,
        shared_bytes=0,
        registers=_SMALL_REGISTERS,
    )


def product_nodes(product: Product, rows: int, gpu: Gpu) -> list[Node]:
    """A product of any number of rows."""
    if rows > _FEW_ROWS:
        return many_rows(product, rows, gpu)
    product_node = few_rows(product, rows, gpu)
    has_rows = product_node.rows != "records" or is_record(product)
    return [product_node] if has_rows else [rows_node(rows), product_node]


# ---- attention


def attention_kernel(attention: Attention) -> AttentionKernel:
    """Which one a batch gets, where blocks may have 160 KB: launch_attention."""
    rows = padded_count(attention.requests * attention.rows_each)
    most_rows = rows - padded_count(attention.requests) + 1
    if rows > _FEW_ATTENTION_ROWS:
        return AttentionKernel(attention.dim, 4)
    return AttentionKernel(attention.dim, 1 if most_rows * attention.group <= 16 else 2)


def attention_node(attention: Attention, gpu: Gpu) -> Node:
    """All of a batch's, with what the block that has most of it has to do."""
    kernel = attention_kernel(attention)
    blocks = kernel.multiprocessor_blocks * gpu.multiprocessors
    sharing = share_out(attention, kernel.most_columns, blocks, of_one_split=False)
    busy_blocks = min(sharing.items, blocks)
    block_items, block_tiles = sharing.busiest(blocks)
    position_bytes = attention.head_dim * 2 * _ACT_BYTES  # of a KV head
    kv_lists = attention.requests * attention.kv_heads
    all_bytes = kv_lists * position_bytes * attention.end
    # Lists of other pairs read the same.
    first_reads = busy_blocks * kv_lists / sharing.lists
    first_bytes = (kernel.stages - 1) * ATTENTION_TILE * position_bytes
    return Node(
        role="attention",
        name="attention",
        grid=(blocks, 1, 1),
        threads=_ATTENTION_THREADS,
        shared_bytes=kernel.shared_bytes(padded_count(attention.requests)),
        registers=_ATTENTION_REGISTERS[kernel.dim, kernel.columns],
        bytes=float(all_bytes),
        early_bytes=min(float(all_bytes), first_reads * first_bytes),
        lets_next_early=True,
        reads_before_wait=True,
        busy_blocks=busy_blocks,
        block_items=block_items,
        block_tiles=block_tiles,
        item_columns=kernel.most_columns,
        splits=sharing.splits,
    )


# ---- a pass


def head_dim(config: Config) -> int:
    """Of every head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def layer_products(config: Config) -> dict[str, Product]:
    """The matrices of a layer, by role."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], head_dim(config)
    queries = config["num_attention_heads"] * dim
    keys = config["num_key_value_heads"] * dim
    products = [
        Product(
            "qkv",
            queries + 2 * keys,
            hidden,
            from_floats=True,
            ends_in_heads=True,
            head_dim=dim,
            rotary_dim=dim,
        ),
        Product("o", hidden, queries),
        Product("gate_up", 2 * inner, hidden, gated=True, from_floats=True),
        Product("down", hidden, inner),
    ]
    return {product.role: product for product in products}


def output_product(config: Config) -> Product:
    """The matrix that makes logits."""
    return Product("head", config["vocab_size"], config["hidden_size"], from_floats=True)


def attention_of(config: Config, rows: int, context: int, requests: int) -> Attention:
    """Of requests that add so many rows together."""
    return Attention(
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=head_dim(config),
        requests=requests,
        rows_each=rows // requests,
        context=context,
    )


def layer_nodes(config: Config, rows: int, context: int, gpu: Gpu, requests: int) -> list[Node]:
    """The kernels of one layer."""
    products = layer_products(config)
    padded = padded_count(rows)
    nodes = product_nodes(products["qkv"], padded, gpu)
    nodes.append(attention_node(attention_of(config, rows, context, requests), gpu))
    for role in ("o", "gate_up", "down"):
        nodes += product_nodes(products[role], padded, gpu)
    return nodes


def nodes(config: Config, rows: int, context: int, gpu: Gpu, requests: int = 1) -> list[Node]:
    """The kernels of a pass over `rows` rows of `requests` requests with logits of every row."""
    padded = padded_count(rows)
    embed = Node(
        role="embed",
        name="embed",
        grid=(padded, ceil_div(ceil_div(config["hidden_size"], 2), _EMBED_THREADS), 1),
        threads=_EMBED_THREADS,
        shared_bytes=0,
        registers=_SMALL_REGISTERS,
    )
    layer = layer_nodes(config, rows, context, gpu, requests)
    head = product_nodes(output_product(config), rows, gpu)
    return [embed, *layer * config["num_hidden_layers"], *head]


def greedy_nodes(
    config: Config, rows: int, context: int, gpu: Gpu, requests: int = 1
) -> list[Node]:
    """The same pass where the likeliest token of each row is all that is wanted of it.

    Products of few rows find it themselves: Projector::finds_best.
    """
    found = nodes(config, rows, context, gpu, requests)
    head = output_product(config)
    if rows > _FEW_ROWS or row_source(head, rows) == "records":
        return found
    return [*found[:-1], few_rows(replace(head, finds_best=True), rows, gpu)]


def weight_bytes(config: Config) -> float:
    """Of the matrices that a pass reads."""
    of_layer = sum(product.bytes for product in layer_products(config).values())
    num_layers = int(config["num_hidden_layers"])
    return num_layers * of_layer + output_product(config).bytes
