"""How the backend cuts attention up: its kernels, and items of splits of positions.

It repeats cuda/kernels/attention_tiles.cuh and attention_plan.cuh for requests that are chains.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise

ATTENTION_TILE = 64  # kAttentionTile
_SHORT_SPLIT, _LONG_SPLIT, _SHORT_END = 256, 1024, 16384


def ceil_div(count: int, unit: int) -> int:
    """Units that hold so many."""
    return -(-count // unit)


@dataclass(frozen=True)
class Attention:
    """What attention is asked for: requests of equal length, in one layer."""

    heads: int
    kv_heads: int
    head_dim: int
    requests: int
    rows_each: int
    context: int  # positions that are there already

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.heads // self.kv_heads

    @property
    def dim(self) -> int:
        """Of a head, as kernels pad it."""
        return 64 if self.head_dim <= 64 else 128 if self.head_dim <= 128 else 256

    @property
    def end(self) -> int:
        """One past the last position of a request."""
        return self.context + self.rows_each


@dataclass(frozen=True)
class AttentionKernel:
    """One of the kernels: AttentionTiles. Of few rows are those of one and two columns."""

    dim: int
    columns: int  # of 16 pairs of a row and a head, in the kernel's name

    @property
    def is_few(self) -> bool:
        """Whether it leaves room for a product beside it."""
        return self.columns <= 2

    @property
    def most_columns(self) -> int:
        """Of an item."""
        return self.columns if self.dim <= 128 or self.is_few else 2

    @property
    def multiprocessor_blocks(self) -> int:
        """Blocks of the grid, a multiprocessor."""
        if self.is_few:
            return 2 if self.dim <= 64 else 1
        return 3 if self.dim <= 64 else 2 if self.dim <= 128 else 1

    @property
    def stages(self) -> int:
        """Tiles that are in shared memory or on their way."""
        return 4 if self.is_few and self.dim <= 128 else 2

    def shared_bytes(self, requests: int) -> int:
        """Dynamic shared memory of a block, without trees."""
        pairs = 16 * self.most_columns
        query = pairs * self.dim * 2
        tiles = self.stages * 2 * ATTENTION_TILE * self.dim * 2
        weights = 2 * 16 * ATTENTION_TILE * 2
        rest = 64 * 4 + self.stages * ATTENTION_TILE * 4 + 3 * pairs * 4 + 2 * requests * 4
        return query + tiles + weights + rest


def split_of(position: int) -> int:
    """The split that a position lies in: attention_plan.cuh."""
    if position < _SHORT_END:
        return position // _SHORT_SPLIT
    return _SHORT_END // _SHORT_SPLIT + (position - _SHORT_END) // _LONG_SPLIT


def split_begin(split: int) -> int:
    """Its first position."""
    short = _SHORT_END // _SHORT_SPLIT
    return split * _SHORT_SPLIT if split < short else _SHORT_END + (split - short) * _LONG_SPLIT


def split_from(position: int) -> int:
    """The first split that begins at a position or behind it."""
    split = split_of(position)
    return split + 1 if split_begin(split) < position else split


@dataclass(frozen=True)
class Sharing:
    """How a batch's work is shared out."""

    lists: int  # of pairs that a block computes together, over all positions
    item_tiles: tuple[int, ...]  # of a list's items, which every list has
    splits: int  # that are joined; 0: a list is an item

    @property
    def items(self) -> int:
        """Of all lists."""
        return self.lists * len(self.item_tiles)

    def busiest(self, blocks: int) -> tuple[int, int]:
        """Items and tiles of the block that has most to do; blocks take items in turn."""
        if self.items <= blocks:
            return 1, max(self.item_tiles)
        done = [(0, 0)] * blocks  # tiles and items
        for tiles in self.item_tiles:
            for _ in range(self.lists):
                before, items = done[0]
                heapq.heapreplace(done, (before + tiles, items + 1))
        tiles, items = max(done)
        return items, tiles


def share_out(attention: Attention, columns: int, blocks: int) -> Sharing:
    """Items, each a run of splits that is about a block's share: WorkShape."""
    pair_tiles = ceil_div(attention.rows_each * attention.group, 16 * columns)
    lists = attention.requests * attention.kv_heads * pair_tiles
    splits = split_of(attention.end - 1) + 1
    limit = split_begin(splits)
    if splits == 1 or blocks <= 2 * lists:
        return Sharing(lists, (ceil_div(attention.end, ATTENTION_TILE),), 0)
    share = ceil_div(lists * limit // ATTENTION_TILE, blocks) * ATTENTION_TILE
    run = ceil_div(share, _SHORT_SPLIT) * _SHORT_SPLIT
    begins = [min(split_begin(split_from(begin)), limit) for begin in range(0, limit, run)]
    ends = [min(begin, attention.end) for begin in [*begins, limit]]
    tiles = tuple(ceil_div(end - begin, ATTENTION_TILE) for begin, end in pairwise(ends))
    return Sharing(lists, tiles, splits)
