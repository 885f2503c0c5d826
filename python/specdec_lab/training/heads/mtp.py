"""The layer for multi-token prediction (MTP) that checkpoints of some families have.

It was trained for one token ahead. Here it learns to go on from its own output, as FastMTP's (arXiv
2509.18362), in the steps of EAGLE's training-time test; a target without the layer gets one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdec_lab.training.batch import Batch, Example
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.heads.base import HeadFiles
from specdec_lab.training.heads.eagle import EagleHead
from specdec_lab.training.heads.layers import LayerShape, StepCache
from specdec_lab.training.heads.span import copy_fitting
from specdec_lab.training.target import TargetWeights


@dataclasses.dataclass(frozen=True)
class MtpFamily:
    """How checkpoints of a family name the layer's tensors, and what they do with them.

    Attributes:
        class_name: vLLM's name of the layer's class, which tells readers what a checkpoint is.
        count_key: the config.json key for the number of layers.
        prefix: of all names; "{}" is the number of the target's layers.
        fusion, embedding_norm, feature_norm, final_norm: stems of names.
        layer: what the names of the decoder layer begin with.
        repeats: tensors that are copies of the target's.
        features_first: whether the target's state precedes the embedding where they are joined.
        reads_normed: whether the target's state is that after its final norm; else before.
        feeds_back_normed: whether the next draft reads the state after the last norm.
        rotated_share: share of each head that is rotated, where config.json does not say.
    """

    class_name: str
    count_key: str
    prefix: str
    fusion: str
    embedding_norm: str
    feature_norm: str
    final_norm: str
    layer: str = ""
    repeats: tuple[str, ...] = ()
    features_first: bool = False
    reads_normed: bool = True
    feeds_back_normed: bool = True
    rotated_share: float = 1.0


def _qwen(class_name: str) -> MtpFamily:
    return MtpFamily(
        *(class_name, "mtp_num_hidden_layers", "mtp."),
        *("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "layers.0."),
        rotated_share=0.25,
    )


# By the target's model_type.
FAMILIES = {
    "qwen3_next": _qwen("Qwen3NextMTP"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text"), _qwen("Qwen3_5MTP")),
    **dict.fromkeys(("qwen3_5_moe", "qwen3_5_moe_text"), _qwen("Qwen3_5MoeMTP")),
    "mimo": MtpFamily(
        *("MiMoMTPModel", "num_nextn_predict_layers", "model.mtp_layers.0."),
        *("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"),
        features_first=True,
        reads_normed=False,
    ),
    "glm4_moe": MtpFamily(
        *("Glm4MoeMTPModel", "num_nextn_predict_layers", "model.layers.{}."),
        *("eh_proj", "enorm", "hnorm", "shared_head.norm"),
        repeats=("embed_tokens.weight", "shared_head.head.weight"),
        feeds_back_normed=False,
        rotated_share=0.5,
    ),
}


class Mtp(EagleHead):
    """The MTP layer of a target: its family's own layer of full attention over both inputs.

    Its checkpoint has no scoring rows: it uses the target's, restricted by `speculative_token_map`.
    """

    def __init__(self, target: TargetWeights, draft_ids: Tensor, max_depth: int) -> None:
        """Raises TrainingError for other families, and for layers that cannot be trained."""
        kind = str(target.config.get("model_type"))
        if kind not in FAMILIES:
            raise TrainingError(
                f"method: 'mtp' is for targets of the model types {', '.join(FAMILIES)}, and this "
                f"one is {kind}; give another method",
                target.directory,
            )
        self.family = FAMILIES[kind]
        self.prefix = self.family.prefix.format(target.num_layers)
        self.stored = {
            name: tensor
            for name, tensor in target.tensors(self.prefix).items()
            if name not in self.family.repeats
        }
        layer = self._stored_layer() or target.layer(_last_full_layer(target.config))
        shape = _shape_of(target, layer, self.family)
        super().__init__(target, draft_ids, max_depth, ["plain"], shape)
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.embedding_norm = nn.RMSNorm(size, eps)
        self.feature_norm = nn.RMSNorm(size, eps)
        self.norm = nn.RMSNorm(size, eps)
        self.register_buffer("_rows", target.lm_head[draft_ids], persistent=False)
        if self.stored:  # it drafts the first depth well already
            self._require_known()
            self.depths_go_on = False
            self.rate_factor = 0.1

    _rows: Tensor

    @classmethod
    def tap_layers(cls, num_layers: int) -> list[int]:
        """None: it reads the final hidden state."""
        del num_layers
        return []

    def initialise(self, generator: torch.Generator, examples: Sequence[Example] = ()) -> None:
        """The target's own layer; where it has none, its last one of full attention, which reads
        the target's state."""
        del examples
        size = self.shape.hidden_size
        with torch.no_grad():
            if self.stored:
                names = self._stored_names()
                for name, parameter in self.named_parameters():
                    parameter.copy_(self.stored[names[name]])
                return
            nn.init.normal_(self.fc.weight, 0.0, 0.02, generator=generator)
            state = 0 if self.family.features_first else size
            self.fc.weight[:, state : state + size] += torch.eye(size)
            copy_fitting(self.target.layer(_last_full_layer(self.target.config)), self.layers[0])
            self.norm.weight.copy_(self.target.norm)

    @property
    def lm_head_weight(self) -> Tensor:
        """See EagleHead."""
        return self._rows

    def fuse(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        """See EagleHead. A state before the target's final norm is taken from the one after: its
        scale is lost, which the layer's own norm would take away."""
        del generator
        state = batch.final_hidden[:, :-1]
        return state if self.family.reads_normed else state / self.target.norm

    def begin(self, embedded: Tensor, state: Tensor) -> Tensor:
        """See EagleHead."""
        parts = [self.embedding_norm(embedded), self.feature_norm(state)]
        if self.family.features_first:
            parts.reverse()
        fused: Tensor = self.fc(torch.cat(parts, -1))
        return fused

    def step(
        self, token_ids: Tensor, state: Tensor, rows: Tensor, step: int, cache: list[StepCache]
    ) -> Tensor:
        """See EagleHead; after the last norm where the family feeds that back."""
        state = super().step(token_ids, state, rows, step, cache)
        if self.family.feeds_back_normed:
            state = self.norm(state)
        return state

    def scored(self, state: Tensor) -> Tensor:
        """See EagleHead."""
        if not self.family.feeds_back_normed:
            state = self.norm(state)
        return state

    def weights_of(self, tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        """See TrainableHead."""
        del ids
        own_names = {self.prefix + stored: name for name, stored in self._stored_names().items()}
        offset = self.target.norm_offset
        return {
            own_names.get(name, name): tensor + (offset if "norm" in name else 0.0)
            for name, tensor in tensors.items()
            if name.removeprefix(self.prefix) not in self.family.repeats
        }

    def files(self, layout: str) -> HeadFiles:
        """A checkpoint of the target that has the layer alone, in its family's names."""
        del layout
        names = self._stored_names()
        offset = self.target.norm_offset
        tensors = {
            self.prefix + names[name]: parameter - (offset if "norm" in name else 0.0)
            for name, parameter in self.named_parameters()
        }
        config = {
            **self.target.config,
            "architectures": [self.family.class_name],
            self.family.count_key: 1,
        }
        is_cut = len(self.draft_ids) < len(self.target.lm_head)
        return HeadFiles(config, tensors, self.draft_ids if is_cut else None)

    def _stored_names(self) -> dict[str, str]:
        """The family's name of each parameter, without the prefix."""
        family = self.family
        stems = {
            "fc.": f"{family.fusion}.",
            "embedding_norm.": f"{family.embedding_norm}.",
            "feature_norm.": f"{family.feature_norm}.",
            "norm.": f"{family.final_norm}.",
            "layers.0.": family.layer,
        }
        return {
            name: stem + name.removeprefix(own)
            for name, _ in self.named_parameters()
            for own, stem in stems.items()
            if name.startswith(own)
        }

    def _stored_layer(self) -> dict[str, Tensor]:
        """The decoder layer's tensors, by their names within the layer."""
        layer = self.family.layer
        return {n.removeprefix(layer): t for n, t in self.stored.items() if n.startswith(layer)}

    def _require_known(self) -> None:
        """Raises TrainingError where the layer lacks tensors or has others."""
        names = set(self._stored_names().values())
        others = names ^ self.stored.keys()
        if others:
            raise TrainingError(
                f"{self.prefix}{min(others)}: the MTP layer has {len(self.stored)} tensors, and "
                f"the {len(names)} of one layer of full attention with a dense MLP are trained; "
                "give another method",
                self.target.directory,
            )


def _last_full_layer(config: Mapping[str, Any]) -> int:
    """The target's last layer that is not recurrent."""
    last = int(config["num_hidden_layers"]) - 1
    kinds = config.get("layer_types")
    if kinds is None:
        interval = config.get("full_attention_interval", 1)
        return last - (last + 1) % int(interval)
    full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    return full[-1] if full else last


def _shape_of(target: TargetWeights, layer: Mapping[str, Tensor], family: MtpFamily) -> LayerShape:
    """The shape of a layer. Raises TrainingError for what is not trained."""
    q_rows, inner = (layer.get(f"{name}.weight") for name in ("self_attn.q_proj", "mlp.gate_proj"))
    if q_rows is None or inner is None:
        raise TrainingError(
            "method: an MTP layer has one layer of full attention with a dense MLP, and this "
            "target's has experts or another form; give another method",
            target.directory,
        )
    config = target.config
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise TrainingError(
            f"rope_parameters: the rotation of type {kind!r} is not trained; give another method",
            target.directory,
        )
    shares = (source.get("partial_rotary_factor") for source in (rope, config))
    share = next((share for share in shares if share is not None), family.rotated_share)
    shape = LayerShape.of({**config, "intermediate_size": inner.shape[0]})
    return dataclasses.replace(
        shape,
        rotary_dim=int(shape.head_dim * share),
        has_qkv_bias="self_attn.q_proj.bias" in layer,
        has_qk_norm="self_attn.q_norm.weight" in layer,
        has_output_gate=len(q_rows) == 2 * shape.num_heads * shape.head_dim,
    )
