"""The kernels of a pass of an EAGLE-3 head, as Decoder::fuse_features and join_embedding have them.

A level of drafts is taken as a chain: keys of a tree are those of the context, nearly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .attention_model import ceil_div
from .product_model import (
    FEW_ROWS,
    Gpu,
    Node,
    Product,
    few_rows,
    padded_count,
    product_nodes,
    row_source,
    small_node,
)
from .step_model import Config, attention_of, embed_node, layer_nodes, layer_products

_COPY_THREADS = 128  # kEmbedThreads
_MASK_BYTES = 64 * 2  # of attention's shared memory, for the slots of a tree


@dataclass(frozen=True)
class HeadPass:
    """What a head of one layer is asked for."""

    config: Config  # the head's
    context: int
    requests: int
    rows_each: int
    level: int  # 0: committed tokens, whose features are the target's; else drafts
    weight_format: str = "act"
    greedy: bool = False  # the likeliest token of each row is all that is wanted

    @property
    def rows(self) -> int:
        """Of all requests."""
        return self.requests * self.rows_each

    @property
    def sampled(self) -> int:
        """Rows that are sampled: of committed tokens, the last of each request."""
        return self.requests if self.level == 0 else self.rows


def fusion_product(config: Config) -> Product:
    """Makes one row of what the tapped layers left."""
    hidden = config["hidden_size"]
    taps = len(config["eagle_aux_hidden_state_layer_ids"])
    return Product("fusion", hidden, taps * hidden, from_floats=True)


def _products(head: HeadPass) -> dict[str, Product]:
    """Of the layer; qkv reads the norms of embedding and state side by side, as they lie."""
    products = {
        role: replace(product, weight_format=head.weight_format)
        for role, product in layer_products(head.config).items()
    }
    qkv = products["qkv"]
    return products | {"qkv": replace(qkv, inputs=2 * qkv.inputs, from_floats=False)}


def _output_product(head: HeadPass) -> Product:
    """Of the tokens that the head scores."""
    config = head.config
    return Product(
        "head",
        config["draft_vocab_size"],
        config["hidden_size"],
        from_floats=True,
        weight_format=head.weight_format,
    )


def head_nodes(head: HeadPass, gpu: Gpu) -> list[Node]:
    """The kernels of the pass."""
    config = head.config
    hidden = config["hidden_size"]
    padded = padded_count(head.rows)

    def copy_node(name: str, width: int) -> Node:
        return small_node(name, (padded, ceil_div(width, _COPY_THREADS), 1), _COPY_THREADS)

    nodes = [embed_node(config, head.rows)]
    if head.level == 0:
        fusion = replace(fusion_product(config), weight_format=head.weight_format)
        nodes += [copy_node("load_rows", fusion.inputs), *product_nodes(fusion, padded, gpu)]
    else:
        nodes.append(copy_node("load_rows", hidden))
    nodes += [small_node("norm", (padded, 1, 1))] * 2
    attention = attention_of(config, head.rows, head.context, head.requests)
    for node in layer_nodes(_products(head), None, attention, gpu, is_first=True):
        has_masks = node.role == "attention" and head.level > 0
        nodes.append(replace(node, shared_bytes=node.shared_bytes + _MASK_BYTES * has_masks))
    nodes.append(copy_node("store_rows", hidden))
    output = _output_product(head)
    if head.greedy and head.sampled <= FEW_ROWS and row_source(output, head.sampled) != "records":
        return [*nodes, few_rows(replace(output, finds_best=True), head.sampled, gpu)]
    return nodes + product_nodes(output, head.sampled, gpu)


def head_bytes(head: HeadPass) -> float:
    """Of the weights that the pass reads."""
    products = [*_products(head).values(), _output_product(head)]
    if head.level == 0:
        products.append(replace(fusion_product(head.config), weight_format=head.weight_format))
    return sum(product.bytes for product in products)
