"""A tiny target of a toy language, and draft heads trained for it in a few seconds.

Their drafts are right often enough, and wrong often enough, for every case of acceptance.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import head_oracles
import make_checkpoints
import make_heads

LENGTH = 32  # tokens of a text
NUM_TEXTS = 256
NUM_WORDS = 64  # tokens that the language uses, the first of the vocabulary

# The heads that are trained, each by a variant of make_heads.
TRAINED = {
    "eagle": "eagle",
    "eagle3": "eagle31_input_norm",
    "medusa": "medusa",
    "mlp": "mlp_tied",
    "p_eagle": "p_eagle",
    "pard": "pard",
    "dflash": "dflash",
    "dspark": "dspark_speculators",
    "mtp": "mtp",  # for HYBRID
    "assistant": "assistant",  # for GEMMA, the others for LLAMA
}


class ToyLanguage:
    """The next token depends on the last two, and is one of four, of 75, 15, 6 and 4 percent."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(11)
        self.successors = torch.randint(3, NUM_WORDS, (NUM_WORDS, 3, 4), generator=generator)

    def texts(self, count: int, length: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(3, NUM_WORDS, (count, 2), generator=generator)
        shares = torch.tensor([0.75, 0.15, 0.06, 0.04]).repeat(count, 1)
        while tokens.shape[1] < length:
            choices = self.successors[tokens[:, -1], tokens[:, -2] % 3]
            drawn = torch.multinomial(shares, 1, generator=generator)
            tokens = torch.cat([tokens, choices.gather(1, drawn)], 1)
        return tokens


@contextmanager
def one_thread() -> Iterator[None]:
    """These matrices are too small to be shared between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def optimise(
    weights: list[Tensor], loss_of: Callable[[Tensor], Tensor], steps: int, rate: float, batch: int
) -> None:
    """Adam with a falling rate; `loss_of` takes the indices of the texts of a batch."""
    generator = torch.Generator().manual_seed(3)
    optimiser = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    with one_thread():
        for _ in range(steps):
            chosen = torch.randint(0, NUM_TEXTS, (batch,), generator=generator)
            optimiser.zero_grad()
            loss_of(chosen).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            schedule.step()


LLAMA = make_checkpoints.Variant("Llama")
HYBRID = make_checkpoints.Variant(
    "Qwen3_5",
    make_checkpoints.QWEN3_HYBRID
    | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    text_config=True,
)
GEMMA = make_checkpoints.VARIANTS["gemma4_effective"]


def make_target(directory: Path, variant: make_checkpoints.Variant = LLAMA) -> Path:
    """A model that has learned the toy language."""
    model = make_checkpoints.build(variant).train()
    texts = ToyLanguage().texts(NUM_TEXTS, LENGTH, seed=1)

    def loss_of(chosen: Tensor) -> Tensor:
        batch = texts[chosen]
        logits = model(batch).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    optimise(list(model.parameters()), loss_of, steps=220, rate=6e-3, batch=16)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    return directory


@dataclass
class Lessons:
    """Texts, and what the target makes of them: [text, token, ...]."""

    texts: Tensor
    features: Tensor
    logits: Tensor


def eagle_loss(head: head_oracles.EagleHead, lessons: Lessons, depth: int = 3) -> Tensor:
    """Cross entropy over depths; a row of depth d goes on from the same text's row of depth d - 1.

    It embeds the text's token rather than its own draft, or P-EAGLE's mask, and sees the text's
    rows before it and its own of smaller depths.
    """
    rows = lessons.texts.shape[1] - 1
    ids, positions = lessons.texts[:, 1:], torch.arange(1, rows + 1)
    states = head.fuse(lessons.features[:, :-1])
    diagonal = torch.eye(rows, dtype=torch.bool)
    visible = torch.ones(rows, rows, dtype=torch.bool).tril()
    for d in range(depth - 1):
        next_ids = F.pad(lessons.texts[:, 2 + d :], (0, 1 + d))
        if isinstance(head, head_oracles.ParallelEagle):
            next_ids = torch.full_like(next_ids, head.mask_token)
            next_states = head.mask_state().expand_as(states[:, :rows])
        else:
            next_states = head.run(ids, states, positions, visible)[1][:, -rows:]
        ids, states = torch.cat([ids, next_ids], 1), torch.cat([states, next_states], 1)
        positions = torch.cat([positions, torch.arange(1, rows + 1) + d + 1])
        visible = torch.cat([F.pad(visible, (0, rows)), torch.cat([visible[-rows:], diagonal], 1)])
    loss = torch.zeros(())
    by_depth = head.run(ids, states, positions, visible)[0].chunk(depth, 1)
    for d, logits in enumerate(by_depth):
        # The row of token i at depth d scores token i + 1 + d; the last rows have nothing after.
        wanted = lessons.logits[:, 1 + d :][..., head.token_ids].softmax(-1)
        given = logits[:, : rows - d].log_softmax(-1)
        loss = loss - 0.8**d * (wanted * given).sum(-1).mean()
    return loss


def mlp_loss(head: head_oracles.MlpSpeculator, lessons: Lessons) -> Tensor:
    states = head.initial(lessons.features[:, :-1])
    loss = torch.zeros(())
    for d in range(head.max_depth):
        end = LENGTH - 1 - d
        logits, states = head.step(d, lessons.texts[:, 1 + d :], states[:, :end])
        wanted = lessons.logits[:, 1 + d :].softmax(-1)
        loss = loss - (wanted * logits.log_softmax(-1)).sum(-1).mean()
    return loss


def medusa_loss(head: head_oracles.Medusa, lessons: Lessons) -> Tensor:
    loss = torch.zeros(())
    for d in range(head.max_depth):
        logits = head.head(d, lessons.features[:, : LENGTH - 1 - d])
        wanted = lessons.logits[:, 1 + d :][..., head.token_ids].softmax(-1)
        loss = loss - (wanted * logits.log_softmax(-1)).sum(-1).mean()
    return loss


def assistant_loss(head: head_oracles.Gemma4Assistant, lessons: Lessons, depth: int = 3) -> Tensor:
    """Cross entropy over depths, of drafts below some tokens of the texts, other ones in each
    batch; a draft is the text's token."""
    kv = head.target_kv(lessons.texts)
    loss = torch.zeros(())
    for root in range(2 + int(lessons.texts.sum()) % 5, LENGTH - depth, 5):
        states = lessons.features[:, root - 1]
        for token in range(root, root + depth):
            logits, states = head.run(lessons.texts[:, token], states, root, kv, root)
            wanted = lessons.logits[:, token][..., head.token_ids].softmax(-1)
            loss = loss - (wanted * logits.log_softmax(-1)).sum(-1).mean()
    return loss


def parallel_model_loss(
    head: head_oracles.ParallelDraftModel, lessons: Lessons, depth: int = 3
) -> Tensor:
    """Texts are cut at two places, other ones for each batch, after which mask tokens stand."""
    loss, offset = torch.zeros(()), int(lessons.texts.sum()) % 13
    for end in (5 + offset, 17 + offset):
        masks = torch.full((len(lessons.texts), depth - 1), head.config["pard_token"])
        given = head.drafter.model(torch.cat([lessons.texts[:, :end], masks], 1)).logits
        wanted = lessons.logits[:, : end + depth - 1].softmax(-1)
        entropies = -(wanted * given.log_softmax(-1)).sum(-1)
        loss = loss + entropies.mean() + 2 * entropies[:, end:].mean()
    return loss


def dflash_loss(head: head_oracles.Dflash, lessons: Lessons) -> Tensor:
    """Texts go on from anchors at three places, other ones for each batch."""
    loss, offset = torch.zeros(()), int(lessons.texts.sum()) % 13
    for anchor in (2 + offset, 7 + offset, 12 + offset):
        rows = head.span(lessons.texts[:, anchor], lessons.features[:, :anchor])
        before = slice(anchor, anchor + rows.shape[1])
        given = head.score(rows, lessons.texts[:, before])
        wanted = lessons.logits[:, before][..., head.token_ids].softmax(-1)
        loss = loss - (wanted * given.log_softmax(-1)).sum(-1).mean()
    return loss


LOSSES: dict[str, tuple[Callable[[Any, Lessons], Tensor], int]] = {
    "eagle": (eagle_loss, 90),
    "eagle3": (eagle_loss, 90),
    "medusa": (medusa_loss, 150),
    "mlp": (mlp_loss, 200),
    "p_eagle": (eagle_loss, 200),
    "pard": (parallel_model_loss, 160),
    "dflash": (dflash_loss, 500),
    "dspark": (dflash_loss, 300),
    "mtp": (eagle_loss, 60),
    "assistant": (assistant_loss, 30),
}


def train_head(name: str, target_directory: Path, directory: Path) -> Path:
    """Trains one of TRAINED; returns its directory."""
    # A draft vocabulary must hold the words of the language, in any order.
    draft_ids = torch.randperm(make_heads.NUM_DRAFT_IDS, generator=torch.Generator().manual_seed(9))
    variant = make_heads.HEADS[TRAINED[name]]
    make_heads.make(TRAINED[name], target_directory, directory, draft_ids)
    if variant.kind == "pard":  # begins as the target
        shutil.copy(target_directory / "model.safetensors", directory)
    target = head_oracles.Target(target_directory)
    head = head_oracles.load(variant.kind, directory, target)
    texts = ToyLanguage().texts(NUM_TEXTS, LENGTH, seed=2)
    lessons = Lessons(texts, head.features(texts), target.logits(texts))
    loss_of, steps = LOSSES[name]
    if isinstance(head, head_oracles.ParallelDraftModel):
        head.weights = dict(head.drafter.model.named_parameters())
    learned = [weight for weight in head.weights.values() if weight.is_floating_point()]
    for weight in learned:
        weight.requires_grad_()

    def loss(chosen: Tensor) -> Tensor:
        batch = Lessons(texts[chosen], lessons.features[chosen], lessons.logits[chosen])
        return loss_of(head, batch)

    optimise(learned, loss, steps, rate=6e-3, batch=12)
    tensors = {head.stored_names[name]: tensor.detach() for name, tensor in head.weights.items()}
    if variant.kind == "mtp":
        return make_heads.write_into_target(directory, target_directory, tensors)
    config = json.loads((directory / "config.json").read_text())
    return make_heads.write(directory, config, tensors, variant.file)
