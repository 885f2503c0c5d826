"""The user's options of a training. The command line is made from the same table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from specdec_lab.training.errors import TrainingError

METHODS = (
    *("eagle3", "eagle", "medusa", "mlp_speculator", "parallel"),
    *("mtp", "dflash", "dspark"),
)
LAYOUTS = ("common", "speculators")
OPTIMIZERS = ("adamw", "muon")

_MAY_CHANGE = "may_change"
_KINDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}


def _option(
    default: Any,
    text: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    choices: tuple[str, ...] = (),
    may_change: bool = False,
) -> Any:
    """A field. `may_change`: a run may resume from its checkpoint with another value."""
    metadata = {
        "help": text,
        "low": low,
        "high": high,
        "choices": choices,
        _MAY_CHANGE: may_change,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """How a head is trained; the defaults suit a small model on a CPU.

    The help of a field says what it means. Raises TrainingError for a value outside of its range.
    """

    method: str = _option(
        "eagle3",
        'The kind of head; "parallel" is P-EAGLE, "mtp" the layer of targets that have one.',
        choices=METHODS,
    )
    start_from: str = _option(
        "",
        "A head of the same method and shape, as a directory or a known head's name, with whose "
        "weights training begins; left out, with random ones and the target's. Then --shallow 0 "
        "and a lower --learning-rate suit.",
    )
    max_depth: int = _option(
        3,
        "Tokens the head learns to draft: steps of EAGLE's training-time test and of an MTP layer, "
        "heads of Medusa or of an MLP speculator, the span of DFlash and DSpark.",
        low=1,
        high=16,
    )
    draft_vocab_size: int = _option(
        8192,
        "Tokens the head scores, those most frequent in the answers; 0: all. MLP speculators "
        "score all.",
        low=0,
    )
    num_layers: int = _option(
        0,
        "Layers of the head, where its method has layers; 0: one, and three of DFlash and DSpark.",
        low=0,
        high=32,
    )
    markov_rank: int = _option(
        64,
        "Rank of the matrices by which DSpark takes the token before a draft into account; 0: it "
        "does not.",
        low=0,
        high=1024,
    )
    anchor_share: float = _option(
        0.25,
        "Share of an answer's tokens at which DFlash and DSpark train a span, drawn anew in each "
        "epoch.",
        low=0.01,
        high=1.0,
    )
    loss: str = _option(
        "ce",
        "Cross entropy to the target's distribution, its KL divergence, SpecForge's LK loss, or "
        "DSpark's, which is L1 for the most part and suits long trainings.",
        choices=("ce", "kl", "lk", "l1"),
    )
    depth_decay: float = _option(
        0.8, "The loss at depth d is multiplied by this to the power of d.", low=0.01, high=1.0
    )
    shallow: float = _option(
        0.6,
        "Share of all steps, the first ones, in which EAGLE's heads and new MTP layers learn the "
        "first depth alone: such steps are quicker, and deeper ones begin with what was learned.",
        low=0.0,
        high=1.0,
    )
    train_lm_head: bool = _option(
        False, "Train the head's scoring rows, too; else they stay the target's."
    )
    epochs: float = _option(4.0, "Passes over the training examples.", low=0.0)
    batch_tokens: int = _option(
        1024, "Tokens of one optimiser step at most, padding included.", low=16
    )
    micro_batch_tokens: int = _option(
        0, "Tokens computed at a time at most, to save memory; 0: all of a step.", low=0
    )
    max_length: int = _option(1024, "Tokens taken of an example.", low=8)
    optimizer: str = _option(
        "adamw",
        "AdamW, or Muon for matrices, which needs larger steps to pay.",
        choices=OPTIMIZERS,
    )
    learning_rate: float = _option(
        0.0, "The highest learning rate; 0: one that suits method and optimiser.", low=0.0
    )
    warmup: float = _option(
        0.05,
        "Share of all steps in which the rate rises; then it falls along a cosine.",
        low=0.0,
        high=0.9,
    )
    clip_norm: float = _option(
        1.0, "Longer gradients are scaled down to this; 0: none is.", low=0.0
    )
    held_out: float = _option(
        0.03, "Share of the examples that is evaluated on, not trained.", low=0.0, high=0.5
    )
    evaluations: int = _option(10, "How often the head is evaluated on the way.", low=1)
    evaluation_tokens: int = _option(
        20_000, "Held-out answer tokens that it is evaluated on at most.", low=1
    )
    patience: int = _option(
        0,
        "Evaluations without a better acceptance after which training stops; 0: it never does.",
        low=0,
    )
    seed: int = _option(0, "Seed of weights, of the order of examples and of the data.", low=0)
    training_dtype: str = _option(
        "auto",
        "What the head is multiplied in; auto: bfloat16 where the machine multiplies it faster.",
        choices=("auto", "float32", "bfloat16"),
    )
    device: str = _option(
        "auto", 'Where the head is trained, such as "cpu" or "cuda"; auto: a GPU if there is one.'
    )
    num_threads: int = _option(
        0, "Threads of torch on a CPU; 0: its default.", low=0, may_change=True
    )
    checkpoint_minutes: float = _option(
        5.0, "Minutes between two checkpoints.", low=0.0, may_change=True
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_option(field, getattr(self, field.name))
        if self.epochs == 0:
            raise TrainingError("epochs: must be above 0")


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """The data that a head is trained on: the answers of its target.

    The help of a field says what it means. Raises TrainingError for a value outside of its range.
    """

    data: str = _option(
        "",
        "JSONL of prompts or conversations that the target answers; left out, it makes up the "
        "users' turns itself.",
    )
    data_dir: str = _option(
        "",
        "The store of examples, which heads of one target may share; left out, OUT/data.",
    )
    answer_tokens: int = _option(
        500_000,
        "Tokens of answers to train on; 0: as many as --conversations or --data give, or the store "
        "has. Where this is left out, --data may give fewer.",
        low=0,
    )
    conversations: int = _option(
        0, "Conversations to train on; 0: as many as --answer-tokens or --data give.", low=0
    )
    max_answer_tokens: int = _option(256, "Tokens of one answer at most.", low=1)
    sampled_share: float = _option(
        0.2, "Share of the conversations with sampled answers; the rest are greedy.", low=0, high=1
    )
    temperature: float = _option(1.0, "Of sampled answers.", low=0.01, high=2.0)
    keep_answers: bool = _option(
        False, "Take the assistant's turns of --data as they are, though the target wrote others."
    )
    features: str = _option(
        "stored",
        "Whether the target's states are stored (4 bytes or so for each hidden unit and token), "
        "or computed again whenever they are needed.",
        choices=("stored", "recomputed"),
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_option(field, getattr(self, field.name))

    @property
    def leaves_amount_open(self) -> bool:
        """Whether the user left the amount of data open."""
        return self.answer_tokens == DataOptions.answer_tokens and not self.conversations


def check_option(field: dataclasses.Field[Any], value: Any) -> None:
    """Raises TrainingError for a value outside of its range, or not of its field's type."""
    choices, low, high = (field.metadata[key] for key in ("choices", "low", "high"))
    kind = type(field.default)
    is_right = isinstance(value, (int, float) if kind is float else kind)
    if not is_right or (isinstance(value, bool) and kind is not bool):
        raise TrainingError(f"{field.name}: must be {_KINDS[kind]}, got {value!r}")
    if choices:
        if value not in choices:
            raise TrainingError(f"{field.name}: must be one of {', '.join(choices)}, got {value!r}")
    elif isinstance(value, int | float) and not (low <= value <= high and math.isfinite(value)):
        limit = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise TrainingError(f"{field.name}: must be {limit}, got {value}")


def differences(old: TrainingOptions, new: TrainingOptions) -> Iterator[tuple[str, Any, Any]]:
    """Name, old and new value of options that changed although a resumed run must keep them."""
    for field in dataclasses.fields(TrainingOptions):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before != after and not field.metadata[_MAY_CHANGE]:
            yield field.name, before, after
