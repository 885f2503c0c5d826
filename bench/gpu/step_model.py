"""The kernels of a pass as the backend launches them: what each reads and what room it takes.

It repeats the choices of cuda/backend and cuda/kernels (test_gpu_model.py compares both);
step_time.py says how long they should take. Models are Llamas, dense or with experts, caches
have the dtype of activations, requests are chains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .attention_model import ATTENTION_TILE, Attention, AttentionKernel, ceil_div, share_out
from .product_model import (
    FEW_ROWS,
    Experts,
    Gpu,
    Node,
    Product,
    expert_nodes,
    few_rows,
    padded_count,
    product_nodes,
    row_source,
    small_node,
)

Config = dict[str, Any]  # of config.json

_ACT_BYTES = 2
_ATTENTION_THREADS = 128
_FEW_ATTENTION_ROWS = 64  # kFewAttentionRows
_EMBED_THREADS = 128
# Of a thread of attention, until a device has said: what nvcc 13.0 makes of it for sm_90a, by
# padded head_dim and tiles of 16 pairs (bfloat16).
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

# ---- attention


def attention_kernel(attention: Attention) -> AttentionKernel:
    """Which one a batch gets, where blocks may have 160 KB: launch_attention."""
    rows = padded_count(attention.requests * attention.rows_each)
    most_rows = rows - padded_count(attention.requests) + 1
    if rows > _FEW_ATTENTION_ROWS:
        return AttentionKernel(attention.dim, 4)
    return AttentionKernel(attention.dim, 1 if most_rows * attention.group <= 16 else 2)


def attention_node(attention: Attention, gpu: Gpu, is_first: bool = False) -> Node:
    """All of a batch's, with what the block that has most of it has to do.

    Lists of other pairs of a head read the same keys again, from L2: that is not counted.
    The first layer of a pass plans for all, where rows are few.
    """
    kernel = attention_kernel(attention)
    blocks = kernel.multiprocessor_blocks * gpu.multiprocessors
    sharing = share_out(attention, kernel.most_columns, blocks)
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
        reads_plan=kernel.is_few and not is_first,
    )


# ---- a pass


def head_dim(config: Config) -> int:
    """Of every head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def experts_of(config: Config) -> Experts | None:
    """Of every layer, as Mixtral and Qwen-MoE name them; None: layers are dense."""
    count = config.get("num_local_experts") or config.get("num_experts")
    if not count:
        return None
    return Experts(
        count=count,
        chosen=config["num_experts_per_tok"],
        hidden=config["hidden_size"],
        inner=config.get("moe_intermediate_size") or config["intermediate_size"],
    )


def layer_products(config: Config) -> dict[str, Product]:
    """The matrices of a layer, by role; those of experts are experts_of()."""
    hidden, dim = config["hidden_size"], head_dim(config)
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
    ]
    if experts_of(config) is None:
        inner = config["intermediate_size"]
        products += [
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


def layer_nodes(
    products: dict[str, Product],
    experts: Experts | None,
    attention: Attention,
    gpu: Gpu,
    is_first: bool = False,
) -> list[Node]:
    """The kernels of one layer."""
    rows = attention.requests * attention.rows_each
    padded = padded_count(rows)
    nodes = product_nodes(products["qkv"], padded, gpu)
    nodes.append(attention_node(attention, gpu, is_first))
    for role in ("o", "gate_up", "down"):
        nodes += product_nodes(products[role], padded, gpu) if role in products else []
    return nodes if experts is None else nodes + expert_nodes(experts, rows, gpu)


def embed_node(config: Config, rows: int) -> Node:
    """Looks up the embeddings of rows."""
    pieces = ceil_div(ceil_div(config["hidden_size"], 2), _EMBED_THREADS)
    return small_node("embed", (padded_count(rows), pieces, 1), _EMBED_THREADS)


def nodes(config: Config, rows: int, context: int, gpu: Gpu, requests: int = 1) -> list[Node]:
    """The kernels of a pass over `rows` rows of `requests` requests with logits of every row."""
    attention = attention_of(config, rows, context, requests)
    parts = layer_products(config), experts_of(config), attention, gpu
    layers = [*layer_nodes(*parts, is_first=True)]
    layers += layer_nodes(*parts) * (int(config["num_hidden_layers"]) - 1)
    head = product_nodes(output_product(config), rows, gpu)
    return [embed_node(config, rows), *layers, *head]


def greedy_nodes(
    config: Config, rows: int, context: int, gpu: Gpu, requests: int = 1
) -> list[Node]:
    """The same pass where the likeliest token of each row is all that is wanted of it.

    Products of few rows find it themselves: Projector::finds_best.
    """
    found = nodes(config, rows, context, gpu, requests)
    head = output_product(config)
    if rows > FEW_ROWS or row_source(head, rows) == "records":
        return found
    return [*found[:-1], few_rows(replace(head, finds_best=True), rows, gpu)]


def weight_bytes(config: Config, rows: int = 1) -> float:
    """Of the matrices that a pass over so many rows reads; experts as each is as likely to be."""
    of_layer = sum(product.bytes for product in layer_products(config).values())
    if (experts := experts_of(config)) is not None:
        router = Product("router", experts.count, experts.hidden)
        of_layer += router.bytes + experts.bytes(rows)
    num_layers = int(config["num_hidden_layers"])
    return num_layers * of_layer + output_product(config).bytes
