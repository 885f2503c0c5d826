"""What a step costs where several devices share the models: from the bytes and operations of each
rank's share, and from the link between them.

Ranks share layers as the engine does: heads, an MLP's inner values and the vocabulary are cut,
everything else is everybody's. Sums are exchanged as float32 planes that every rank reads from all
others.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

from specdec_lab.planning.costs import Passes, rows_of_passes
from specdec_lab.planning.roofline import Machine
from specdec_lab.planning.shapes import ModelShape

MAX_TENSOR_PARALLEL = 8
_NUM_SLICES = 8  # of the sums that ranks share
_SLICE_UNIT = 64
_MOST_UNEVEN = 1.25  # a largest share of so many equal ones is refused
_FLOAT_BYTES = 4
_VOCABULARIES = ("vocab_size", "draft_vocab_size", "truncated_vocab_size")
_INNER_SIZES = ("moe_intermediate_size", "ffn_dim", "intermediate_size")
_NORMS_ALL_HEADS = ("olmo2",)  # families whose norms of q and k need the heads of all ranks
_TIED = ("opt", "gemma")  # beginnings of families whose embedding is the head unless they say so

ShapeMaker = Callable[[Mapping[str, Any]], ModelShape]
"""The sizes of a model, from what its config.json holds."""


@dataclasses.dataclass(frozen=True)
class Link:
    """Between devices.

    Attributes:
        latency: seconds until a message of a few bytes is there.
        rate: bytes that a device receives in a second, from all others together.
    """

    latency: float
    rate: float

    def seconds(self, num_bytes: float) -> float:
        """Until all of it is there."""
        return self.latency + num_bytes / self.rate


@dataclasses.dataclass(frozen=True)
class _Cut:
    """How ranks share the inputs of a sum: the largest share, and the planes of all ranks."""

    largest: int
    num_planes: int


@dataclasses.dataclass(frozen=True)
class SharedModel:
    """A model whose layers `size` ranks share.

    Attributes:
        share: what the rank with the largest share computes, of all layers.
        size: number of ranks.
        hidden_size, num_tokens: of a row, and of the vocabulary that is scored.
        is_tied: whether the embedding is the output head, and so shared.
        num_planes: that a rank receives in the two exchanges of a layer, both together.
        norm_floats: of q and k that a rank receives for a row in a layer that normalises all heads
            together, in an exchange of their own.
    """

    share: ModelShape
    size: int
    hidden_size: int
    num_tokens: float
    is_tied: bool
    num_planes: int
    norm_floats: float = 0.0

    def num_exchanges(self, stage: int = 0, num_stages: int = 1) -> int:
        """In a pass of a stage."""
        if self.size == 1:
            return 0
        ends = (stage == 0 and self.is_tied) + (stage == num_stages - 1)
        of_layer = 3 if self.norm_floats else 2
        return of_layer * self._num_layers(stage, num_stages) + ends

    def seconds(
        self,
        machine: Machine,
        link: Link,
        rows: tuple[int, int, int],
        stage: int = 0,
        num_stages: int = 1,
    ) -> float:
        """Of a pass of one stage. `rows` are those of all requests, requests, and the tokens that
        each has before."""
        num_rows, batch, context = rows
        part = self._part(stage, num_stages)
        computing = machine.seconds(
            part.pass_bytes(num_rows, batch, context), part.pass_flops(num_rows, context)
        )
        return computing + self._exchange_seconds(link, num_rows, stage, num_stages)

    def _exchange_seconds(self, link: Link, num_rows: int, stage: int, num_stages: int) -> float:
        if self.size == 1:
            return 0.0
        others = (self.size - 1) / self.size
        of_layer = self.num_planes * self.hidden_size + self.norm_floats
        floats: float = self._num_layers(stage, num_stages) * of_layer
        if stage == 0 and self.is_tied:
            floats += others * self.hidden_size
        if stage == num_stages - 1:
            floats += others * self.num_tokens
        received = _FLOAT_BYTES * num_rows * floats
        return self.num_exchanges(stage, num_stages) * link.latency + received / link.rate

    def memory_bytes(self, tokens: int, stage: int = 0, num_stages: int = 1) -> float:
        """What the rank holds of a stage: weights, and the keys and values of `tokens` tokens."""
        part = self._part(stage, num_stages)
        layer = part.layer_weights + part.num_experts * part.expert_weights
        weights = part.num_layers * layer * part.weight_bytes + part.head_weights * part.head_bytes
        if stage == 0 and not self.is_tied:
            weights += self.num_tokens * self.hidden_size * part.head_bytes
        elif stage == 0 and num_stages > 1:
            weights += self.share.head_weights * part.head_bytes
        token = 2 * part.num_layers * part.num_kv_heads * part.head_dim * part.kv_bytes
        return weights + tokens * token

    def _num_layers(self, stage: int, num_stages: int) -> int:
        layers = self.share.num_layers
        return layers * (stage + 1) // num_stages - layers * stage // num_stages

    def _part(self, stage: int, num_stages: int) -> ModelShape:
        is_last = stage == num_stages - 1
        return dataclasses.replace(
            self.share,
            num_layers=self._num_layers(stage, num_stages),
            head_weights=self.share.head_weights if is_last else 0.0,
        )


def share_model(config: Mapping[str, Any], make_shape: ShapeMaker, size: int) -> SharedModel | None:
    """What a rank of `size` has of a model; None where so many cannot share it."""
    whole = make_shape(config)
    hidden = int(config["hidden_size"])
    family = str(config.get("model_type", ""))
    is_tied = bool(config.get("tie_word_embeddings", family.startswith(_TIED)))
    model = SharedModel(whole, size, hidden, whole.head_weights / hidden, is_tied, 0)
    if size == 1:
        return model
    group = whole.num_heads // whole.num_kv_heads
    attention = _cut_attention(whole, group, size)
    inner_key = next((key for key in _INNER_SIZES if config.get(key)), "intermediate_size")
    inner = _cut(int(config.get(inner_key) or hidden), _SLICE_UNIT, size, lambda *_: True)
    if attention is None or inner is None:
        return None
    heads = attention.largest // whole.head_dim
    share = make_shape(
        {
            **config,
            **{key: -(-config[key] // size) for key in _VOCABULARIES if config.get(key)},
            "head_dim": whole.head_dim,
            "num_attention_heads": heads,
            "num_key_value_heads": -(-heads // group),
            inner_key: inner.largest,
        }
    )
    # A rank has one plane of its own at least.
    planes = attention.num_planes + inner.num_planes - 2
    norm_floats = 0.0
    if family in _NORMS_ALL_HEADS:
        q_and_k = (whole.num_heads + whole.num_kv_heads) * whole.head_dim
        norm_floats = q_and_k * (size - 1) / size
    return dataclasses.replace(model, share=share, num_planes=planes, norm_floats=norm_floats)


def tensor_parallel_sizes(config: Mapping[str, Any], make_shape: ShapeMaker) -> list[int]:
    """The sizes that can share a model, the smallest first."""
    sizes = range(1, MAX_TENSOR_PARALLEL + 1)
    return [size for size in sizes if share_model(config, make_shape, size) is not None]


def _cut_attention(shape: ModelShape, group: int, size: int) -> _Cut | None:
    """Between groups of heads that share a KV head, or within one."""
    width = group * shape.head_dim

    def is_share(begin: int, end: int) -> bool:
        return (begin % width == 0 and end % width == 0) or begin // width == (end - 1) // width

    unit = math.lcm(shape.head_dim, _SLICE_UNIT)
    return _cut(shape.num_heads * shape.head_dim, unit, size, is_share)


def _cut(
    num_inputs: int, unit: int, size: int, is_share: Callable[[int, int], bool]
) -> _Cut | None:
    """The runs of slices with the smallest largest share, of `num_inputs` inputs in slices of whole
    units."""
    num_units = -(-num_inputs // unit)
    bounds = [s * num_units // _NUM_SLICES * unit for s in range(_NUM_SLICES)] + [num_inputs]
    found = []
    for cuts in itertools.combinations(range(1, _NUM_SLICES), size - 1):
        runs = list(itertools.pairwise((0, *cuts, _NUM_SLICES)))
        shares = [(bounds[first], bounds[end]) for first, end in runs]
        if all(begin < end and is_share(begin, end) for begin, end in shares):
            planes = sum(_num_planes(first, end) for first, end in runs)
            found.append((max(end - begin for begin, end in shares), planes))
    if not found or min(found)[0] >= _MOST_UNEVEN * num_inputs / size:
        return None
    return _Cut(*min(found))


def _num_planes(first: int, end: int) -> int:
    """Partial sums that stand for the slices [first, end): the aligned subtrees that cover them."""
    count = 0
    while first < end:
        size = _NUM_SLICES
        while first % size or first + size > end:
            size //= 2
        first += size
        count += 1
    return count


@dataclasses.dataclass(frozen=True)
class RankCosts:
    """Seconds of steps on `target.size` times `num_stages` devices.

    Attributes:
        machine: each device.
        link: between any two of them.
        target: each stage's ranks share it.
        num_stages: groups of ranks that hold some of the layers each.
        drafter: what drafts on the first ranks of the last stage; None costs nothing.
        passes: of the drafter.
    """

    machine: Machine
    link: Link
    target: SharedModel
    num_stages: int = 1
    drafter: SharedModel | None = None
    passes: Passes = "levels"

    @property
    def num_ranks(self) -> int:
        """Devices that the target is on."""
        return self.target.size * self.num_stages

    def stage_seconds(self, batch: int, num_rows: int, context: int) -> list[float]:
        """Of a pass of the target, by stage, with what the last one does at its end."""
        rows = (num_rows, batch, context)
        seconds = [
            self.target.seconds(self.machine, self.link, rows, stage, self.num_stages)
            for stage in range(self.num_stages)
        ]
        seconds[-1] += self._num_calls(self.target) * self.link.latency
        if self.num_stages > 1 and self.target.size == 1:  # the first stage waits for one call
            seconds[0] += self.link.latency
        return seconds

    def draft_seconds(self, batch: int, length: int, context: int) -> float:
        """Drafting `length` tokens for every request; 0 for no tokens."""
        if self.drafter is None or length == 0:
            return 0.0
        calls = self._num_calls(self.drafter) * self.link.latency
        return sum(
            self.drafter.seconds(self.machine, self.link, (rows, batch, context)) + calls
            for rows in rows_of_passes(self.passes, batch, length)
        )

    def draft_waits(self, length: int) -> int:
        """How often the link's latency counts in that."""
        if self.drafter is None or length == 0:
            return 0
        waits = self.drafter.num_exchanges() + self._num_calls(self.drafter)
        return len(rows_of_passes(self.passes, 1, length)) * waits

    @staticmethod
    def _num_calls(model: SharedModel) -> int:
        """That ranks wait for in a pass: the leader says what to run, and which rows to score."""
        return 2 if model.size > 1 else 0

    def step_seconds(self, batch: int, length: int, context: int) -> float:
        """Until every one of `batch` requests has had a step with drafts of `length` tokens.

        Each stage works on another group of requests. The slowest stage sets the pace, unless a
        group's own way through all stages takes longer.
        """
        groups = min(self.num_stages, batch)
        each = -(-batch // groups)
        num_rows = each * (1 + length)
        stages = self.stage_seconds(each, num_rows, context)
        stages[-1] += self.draft_seconds(each, length, context)
        row_bytes = _FLOAT_BYTES * num_rows * self.target.hidden_size
        hops = (self.num_stages - 1) * self.link.seconds(row_bytes)
        return max(sum(stages) + hops, groups * max(stages))

    def memory_bytes(self, batch: int, context: int) -> float:
        """Of the rank that needs most."""
        tokens = batch * context
        held = [
            self.target.memory_bytes(tokens, stage, self.num_stages)
            for stage in range(self.num_stages)
        ]
        if self.drafter is not None:
            held[-1] += self.drafter.memory_bytes(tokens)
        return max(held)
