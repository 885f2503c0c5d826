"""Draft heads in float32 torch, written down from the formulas of their authors.

A head has one row for each token of a text but the first: the row of token i reads the token and
what the target made of token i - 1, and its logits are of token i + 1. Drafted tokens add rows of
their own below the row of the last token, the root. Nothing is cached: each level of drafts runs
all rows again.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

ROOT = -1


@dataclass(frozen=True)
class Node:
    """A drafted token; `parent` is an index of its tree or ROOT, `survival` its path's chance."""

    token: int
    parent: int
    depth: int
    survival: float


def chain_of(tokens: Sequence[int]) -> list[Node]:
    return [Node(token, i - 1, i + 1, 1.0) for i, token in enumerate(tokens)]


def load_model(directory: Path) -> Any:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model.eval()


class Target:
    """A model that heads draft for: its embedding and head as stored, and its states."""

    def __init__(self, directory: Path) -> None:
        self.model = load_model(directory)
        self.config = self.model.config
        self.embedding: Tensor = self.model.get_input_embeddings().weight.detach()
        self.lm_head: Tensor = self.model.get_output_embeddings().weight.detach()
        self.num_layers: int = self.config.num_hidden_layers

    def score(self, x: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """Its head over a state that a draft head made, for all tokens or some."""
        logits = F.linear(x, self.lm_head if token_ids is None else self.lm_head[token_ids])
        logits = logits / getattr(self.config, "logits_scaling", 1.0)
        cap = getattr(self.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def states(self, tokens: Tensor) -> list[Tensor]:
        """The residual stream at the input of each layer; last, the one after the final norm."""
        with torch.no_grad():
            output = self.model(tokens.reshape(-1, tokens.shape[-1]), output_hidden_states=True)
        return [state.reshape(*tokens.shape, -1) for state in output.hidden_states]

    def output(self, tokens: Tensor) -> Tensor:
        """What the last layer puts out, which the final norm reads."""
        seen: list[Tensor] = []
        hook = self.model.model.norm.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
        with hook:
            self.states(tokens)
        return seen[0].reshape(*tokens.shape, -1)

    def logits(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.model(tokens.reshape(-1, tokens.shape[-1])).logits
        return logits.reshape(*tokens.shape, -1)


def load_tensors(directory: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(path)
    for pattern in () if tensors else ("*.bin", "*.pt"):
        for path in sorted(directory.glob(pattern)):
            tensors |= torch.load(path, weights_only=True)
    return tensors


class DraftHead:
    """The common part of all heads: their weights, and how drafts grow."""

    # Parts of tensors' names that some writers use, and what they stand for here.
    renames: tuple[tuple[str, str], ...] = ()

    def __init__(self, directory: Path, target: Target) -> None:
        self.target = target
        self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        self.weights: dict[str, Tensor] = {}
        self.stored_names: dict[str, str] = {}
        for stored, tensor in load_tensors(directory).items():
            name = stored
            for old, new in self.renames:
                name = name.replace(old, new)
            self.weights[name] = tensor.float() if tensor.is_floating_point() else tensor
            self.stored_names[name] = stored
        self.token_ids = torch.arange(target.lm_head.shape[0])
        self.max_depth = 0  # of a draft; 0: any

    def features(self, tokens: Tensor) -> Tensor:
        """The target's states of each token, in the form that the head reads."""
        return self.target.states(tokens)[-1]

    def rows(self, tokens: Tensor, features: Tensor, nodes: Sequence[Node]) -> Tensor:
        """Logits of the rows of tokens[1:], then of nodes, which come level by level."""
        raise NotImplementedError

    def logits(self, tokens: Sequence[int], drafts: Sequence[int] = ()) -> Tensor:
        """The logits of all rows of a text and of a chain of drafts after it."""
        text = torch.tensor(tokens)
        with torch.no_grad():
            return self.rows(text, self.features(text), chain_of(drafts))

    def chain(self, tokens: Sequence[int], num_drafts: int) -> list[int]:
        """The most likely token at each position, given those drafted before."""
        text, drafts = torch.tensor(tokens), list[int]()
        features = self.features(text)
        for _ in range(num_drafts):
            with torch.no_grad():
                logits = self.rows(text, features, chain_of(drafts))
            drafts.append(int(self.token_ids[logits[-1].argmax()]))
        return drafts

    def tree(self, tokens: Sequence[int], width: int, levels: int, num_nodes: int) -> list[Node]:
        """EAGLE-2's: expands the `width` best nodes of each level, keeps the best of all."""
        text = torch.tensor(tokens)
        features = self.features(text)
        nodes: list[Node] = []
        frontier = [ROOT]
        run: list[Node] = []  # the nodes that were expanded, whose parents count from one another
        run_index = {ROOT: ROOT}
        for depth in range(1, levels + 1):
            with torch.no_grad():
                logits = self.rows(text, features, run)[-len(frontier) :]
            level = []
            for node, probabilities in zip(frontier, logits.softmax(-1), strict=True):
                survival = 1.0 if node == ROOT else nodes[node].survival
                best = torch.topk(probabilities, width)
                for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                    level.append(len(nodes))
                    nodes.append(Node(int(self.token_ids[index]), node, depth, survival * value))
            frontier = sorted(level, key=lambda node: -nodes[node].survival)[:width]
            for node in frontier:
                run_index[node] = len(run)
                drafted = nodes[node]
                run.append(Node(drafted.token, run_index[drafted.parent], depth, drafted.survival))
        kept = sorted(range(len(nodes)), key=lambda node: -nodes[node].survival)[:num_nodes]
        new_index = {ROOT: ROOT} | {node: i for i, node in enumerate(sorted(kept))}
        return [
            Node(nodes[i].token, new_index[nodes[i].parent], nodes[i].depth, nodes[i].survival)
            for i in sorted(kept)
        ]


def paths_of(nodes: Sequence[Node]) -> dict[tuple[int, ...], float]:
    """Each node of a tree as the tokens on its way from the root, with its survival."""
    paths: list[tuple[int, ...]] = []
    for node in nodes:
        before = () if node.parent == ROOT else paths[node.parent]
        paths.append((*before, node.token))
    return dict(zip(paths, [node.survival for node in nodes], strict=True))


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def layer_config(config: dict[str, Any]) -> Any:
    """The config of a head's layers; missing keys have their model's defaults."""
    fields = dict(config.get("transformer_layer_config", config))
    kind = fields.pop("model_type", None)
    return transformers.AutoConfig.for_model(kind if kind == "qwen3" else "llama", **fields)


class EagleHead(DraftHead):
    """Layers of a Llama over the target's states: what EAGLE-1 and EAGLE-3 have in common."""

    renames: tuple[tuple[str, str], ...] = (("midlayer.", "layers.0."), ("model.", ""))

    def __init__(self, directory: Path, target: Target) -> None:
        super().__init__(directory, target)
        self.llama = layer_config(self.config)
        self.rotary: Any = LlamaRotaryEmbedding(self.llama)
        heads = self.llama.num_attention_heads
        self.head_dim: int = getattr(self.llama, "head_dim", None) or (
            self.llama.hidden_size // heads
        )
        self.num_layers: int = self.llama.num_hidden_layers
        self.embedding = self.weights.get("embed_tokens.weight", target.embedding)
        if "d2t" in self.weights:
            self.token_ids = torch.arange(len(self.weights["d2t"])) + self.weights["d2t"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.weights[f"{name}.weight"], self.llama.rms_norm_eps)

    def window(self, layer: int) -> int | None:
        types = getattr(self.llama, "layer_types", None) or []
        if layer < len(types) and types[layer] == "sliding_attention":
            return int(self.llama.sliding_window)
        return None

    def attention(self, layer: int, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        name = f"layers.{layer}.self_attn"

        def heads(projection: str) -> Tensor:
            projected = self.linear(x, f"{name}.{projection}_proj")
            split = projected.reshape(*x.shape[:-1], -1, self.head_dim).transpose(-2, -3)
            if f"{name}.{projection}_norm.weight" in self.weights:
                split = self.norm(split, f"{name}.{projection}_norm")
            return split

        def rotate(x: Tensor) -> Tensor:
            cos, sin = self.rotary(x, positions[None])
            half = self.head_dim // 2
            turned = torch.cat([-x[..., half:], x[..., :half]], -1)
            rotated: Tensor = x * cos[0] + turned * sin[0]
            return rotated

        q, k, v = rotate(heads("q")), rotate(heads("k")), heads("v")
        shared = q.shape[-3] // k.shape[-3]
        k, v = k.repeat_interleave(shared, -3), v.repeat_interleave(shared, -3)
        window = self.window(layer)
        if window is not None:
            visible = visible & (positions[:, None] - positions[None] < window)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~visible, -math.inf)
        attended = (scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2)
        return self.linear(attended, f"{name}.o_proj")

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        name = f"layers.{layer}.mlp"
        gate = F.silu(self.linear(x, f"{name}.gate_proj"))
        return self.linear(gate * self.linear(x, f"{name}.up_proj"), f"{name}.down_proj")

    def plain_layer(self, layer: int, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        name = f"layers.{layer}"
        normed = self.norm(x, f"{name}.input_layernorm")
        x = x + self.attention(layer, normed, positions, visible)
        return x + self.mlp(layer, self.norm(x, f"{name}.post_attention_layernorm"))

    def fuse(self, features: Tensor) -> Tensor:
        """What takes the place of a row's own state where its token is of the text."""
        raise NotImplementedError

    def run(
        self, ids: Tensor, states: Tensor, positions: Tensor, visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits of rows, and the states that the rows of drafts below them read."""
        raise NotImplementedError

    def rows(self, tokens: Tensor, features: Tensor, nodes: Sequence[Node]) -> Tensor:
        num_text = len(tokens) - 1
        ids, positions = tokens[1:], torch.arange(1, len(tokens))
        visible = torch.ones(num_text, num_text, dtype=torch.bool).tril()
        states = self.fuse(features[:-1])
        for depth in range(1, max((node.depth for node in nodes), default=0) + 1):
            _, below = self.run(ids, states, positions, visible)
            level = [node for node in nodes if node.depth == depth]
            parents = [num_text - 1 if n.parent == ROOT else num_text + n.parent for n in level]
            ids = torch.cat([ids, torch.tensor([node.token for node in level])])
            positions = torch.cat([positions, torch.full((len(level),), num_text + depth)])
            states = torch.cat([states, below[parents]])
            above = F.pad(visible, (0, len(level)))
            own = torch.eye(len(level), dtype=torch.bool)
            visible = torch.cat([above, torch.cat([visible[parents], own], 1)])
        return self.run(ids, states, positions, visible)[0]


class Eagle1(EagleHead):
    """EAGLE-1 and -2: reads the state after the final norm, or a layer's input if config.json names
    one; its layer 0 has no input norm."""

    def features(self, tokens: Tensor) -> Tensor:
        layers = self.config.get("eagle_aux_hidden_state_layer_ids")
        return self.target.states(tokens)[layers[0]] if layers else super().features(tokens)

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def run(
        self, ids: Tensor, states: Tensor, positions: Tensor, visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        x = self.linear(torch.cat([self.embedding[ids], states], -1), "fc")
        x = x + self.attention(0, x, positions, visible)
        x = x + self.mlp(0, self.norm(x, "layers.0.post_attention_layernorm"))
        for layer in range(1, self.num_layers):
            x = self.plain_layer(layer, x, positions, visible)
        return self.target.score(x), x


class Eagle3(EagleHead):
    """EAGLE-3: reads states of several layers, and the embedding in its first layer."""

    def __init__(self, directory: Path, target: Target) -> None:
        super().__init__(directory, target)
        nested = self.config.get("eagle_config") or {}
        residual = self.config.get("norm_before_residual")
        if residual is None:
            residual = self.config.get("speculators_model_type") == "eagle3"
        self.norm_before_residual = bool(residual)
        self.norm_before_fc = nested.get("norm_before_fc", self.config.get("norm_before_fc"))
        # SpecForge writes the key, too, for heads that read their own state before its norm.
        self.norm_output = bool(self.config.get("norm_output")) and (
            "speculators_model_type" in self.config
        )
        self.logit_scale = float(self.config.get("logit_scale", 1.0))
        self.taps = self.tapped_layers(nested)

    def tapped_layers(self, nested: dict[str, Any]) -> list[int]:
        """The layers whose inputs are read. The nested list names layers by their outputs."""
        key = "eagle_aux_hidden_state_layer_ids"
        if self.config.get(key):
            return sorted(set(self.config[key]))
        if nested.get(key):
            return sorted({layer + 1 for layer in nested[key]})
        layers = self.target.num_layers
        return sorted({2, layers // 2, layers - 3})

    def features(self, tokens: Tensor) -> Tensor:
        # The state after the last layer is not among those of transformers, which norms it.
        states = self.target.states(tokens)[:-1]
        return torch.cat([states[layer] for layer in self.taps], -1)

    def fuse(self, features: Tensor) -> Tensor:
        if self.norm_before_fc:
            features = self.norm(features, "input_norm")
        if self.config.get("fc_norm"):
            taps = features.chunk(len(self.taps), -1)
            features = torch.cat(
                [self.norm(tap, f"fc_norm.{index}") for index, tap in enumerate(taps)], -1
            )
        return self.linear(features, "fc")

    def run(
        self, ids: Tensor, states: Tensor, positions: Tensor, visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        normed = self.norm(states, "layers.0.hidden_norm")
        embedded = self.norm(self.embedding[ids], "layers.0.input_layernorm")
        x = normed if self.norm_before_residual else states
        x = x + self.attention(0, torch.cat([embedded, normed], -1), positions, visible)
        x = x + self.mlp(0, self.norm(x, "layers.0.post_attention_layernorm"))
        for layer in range(1, self.num_layers):
            x = self.plain_layer(layer, x, positions, visible)
        normed = self.norm(x, "norm")
        if "lm_head.weight" in self.weights:
            logits = self.logit_scale * F.linear(normed, self.weights["lm_head.weight"])
        else:
            logits = self.target.score(normed)
        return logits, normed if self.norm_output else x


class ParallelEagle(Eagle3):
    """P-EAGLE: all positions in one pass, over mask tokens with a hidden state of their own."""

    def __init__(self, directory: Path, target: Target) -> None:
        super().__init__(directory, target)
        keys = ("mask_token_id", "pard_token", "ptd_token_id")
        self.mask_token: int = next(self.config[key] for key in keys if key in self.config)

    def mask_state(self) -> Tensor:
        return self.fuse(self.weights["mask_hidden"].reshape(1, -1))

    def rows(self, tokens: Tensor, features: Tensor, nodes: Sequence[Node]) -> Tensor:
        num_text, levels = len(tokens) - 1, max((node.depth for node in nodes), default=0)
        total = num_text + levels
        logits = self.run(
            torch.cat([tokens[1:], torch.full((levels,), self.mask_token)]),
            torch.cat([self.fuse(features[:-1]), self.mask_state().repeat(levels, 1)]),
            torch.arange(1, total + 1),
            torch.ones(total, total, dtype=torch.bool).tril(),
        )[0]
        of_nodes = [num_text + node.depth - 1 for node in nodes]
        return logits[[*range(num_text), *of_nodes]]


class Dflash(EagleHead):
    """DFlash and DSpark: the last token and masks after it, in one pass, all of which see each
    other and what every layer makes of the target's states of the tokens before."""

    def __init__(self, directory: Path, target: Target) -> None:
        super().__init__(directory, target)
        settings = self.config | self.config.get("dflash_config", {})
        self.block_size: int = settings["block_size"]
        self.mask_token: int = settings["mask_token_id"]
        is_dspark = "dspark" in str(self.config["architectures"]).lower()
        self.first = 0 if settings.get("sample_from_anchor", is_dspark) else 1
        self.max_depth = self.block_size - self.first
        inputs = settings.get("aux_hidden_state_layer_ids")
        self.taps = inputs or [layer + 1 for layer in settings["target_layer_ids"]]

    def features(self, tokens: Tensor) -> Tensor:
        states = self.target.states(tokens)[:-1]
        return torch.cat([states[layer] for layer in self.taps], -1)

    def embed(self, ids: Tensor) -> Tensor:
        """The target's table counts with the factor that the target gives its rows."""
        if "embed_tokens.weight" in self.weights:
            return self.embedding[ids]
        embedded: Tensor = self.target.model.get_input_embeddings()(ids)
        return embedded.detach()

    def visible(self, num_text: int) -> Tensor:
        """What each of a text's tokens and of the rows after them sees, of both."""
        total = num_text + self.block_size
        return torch.ones(total, total, dtype=torch.bool)

    def span(self, anchors: Tensor, features: Tensor) -> Tensor:
        """States that are scored, [..., depth, hidden]: after texts with `features`
        [..., tokens, width], an anchor each."""
        context = self.norm(self.linear(features, "fc"), "hidden_norm")
        num_text = context.shape[-2]
        everything = self.visible(num_text)
        masks = torch.full((*anchors.shape, self.block_size - 1), self.mask_token)
        x = self.embed(torch.cat([anchors[..., None], masks], -1))
        for layer in range(self.num_layers):
            name = f"layers.{layer}"
            rows = torch.cat([context, self.norm(x, f"{name}.input_layernorm")], -2)
            # Layers with a window see rows in order.
            visible = everything if self.window(layer) is None else everything.tril()
            mixed = self.attention(layer, rows, torch.arange(len(visible)), visible)
            x = x + mixed[..., num_text:, :]
            x = x + self.mlp(layer, self.norm(x, f"{name}.post_attention_layernorm"))
        return self.norm(x, "norm")[..., self.first :, :]

    def markov_row(self, before: Tensor) -> Tensor | None:
        """Of tokens, what the Markov head and the confidence head read; None without."""
        table = self.weights.get("markov_head.markov_w1.weight")
        return None if table is None else table[before]

    def score(self, rows: Tensor, before: Tensor) -> Tensor:
        """Logits of rows of a span, each after a token."""
        if "lm_head.weight" in self.weights:
            logits = F.linear(rows, self.weights["lm_head.weight"])
        else:
            logits = self.target.score(rows)
        of_token = self.markov_row(before)
        if of_token is not None:
            logits = logits + F.linear(of_token, self.weights["markov_head.markov_w2.weight"])
        return logits

    def confidence(self, rows: Tensor, before: Tensor) -> Tensor:
        """The logits of the chances that drafts of rows are accepted."""
        of_token = self.markov_row(before)
        assert of_token is not None
        return self.linear(torch.cat([rows, of_token], -1), "confidence_head.proj")[..., 0]

    def rows(self, tokens: Tensor, features: Tensor, nodes: Sequence[Node]) -> Tensor:
        """Of the last token and of nodes alone: other tokens have no rows."""
        span = self.span(tokens[-1], features[:-1])
        before = torch.tensor([int(tokens[-1]), *[node.token for node in nodes]])
        return self.score(span[[0, *[node.depth for node in nodes]]], before)


class ParallelDraftModel(DraftHead):
    """PARD: a model of its own, run over mask tokens after the text; it reads no features."""

    def __init__(self, directory: Path, target: Target) -> None:
        super().__init__(directory, target)
        self.drafter = Target(directory)

    def features(self, tokens: Tensor) -> Tensor:
        return torch.empty(len(tokens), 0)

    def rows(self, tokens: Tensor, features: Tensor, nodes: Sequence[Node]) -> Tensor:
        levels = max((node.depth for node in nodes), default=0)
        masks = torch.full((levels,), self.config["pard_token"])
        logits = self.drafter.logits(torch.cat([tokens, masks]))[1:]
        of_nodes = [len(tokens) - 2 + node.depth for node in nodes]
        return logits[[*range(len(tokens) - 1), *of_nodes]]


@dataclass(frozen=True)
class MtpForm:
    """Names of an MTP layer's tensors, without ".weight", and what is done with it."""

    fusion: str
    embedding_norm: str
    feature_norm: str
    final_norm: str
    layer: str = ""  # what the names of the decoder layer begin with
    prefix: str = ""  # of all names; "{}" is the number of the target's layers
    norm_offset: int = 0
    features_first: bool = False
    reads_normed: bool = True  # the target's state, after the target's last norm
    feeds_back_normed: bool = True

    def of(self, config: Any) -> MtpForm:
        return replace(self, prefix=self.prefix.format(config.num_hidden_layers))


_QWEN_MTP = MtpForm(
    *("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "layers.0.", "mtp."),
    norm_offset=1,
)
# By the target's model_type.
MTP_FORMS = {
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _QWEN_MTP),
    "qwen2": MtpForm(  # MiMo, which transformers does not have, is a Qwen2
        *("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"),
        prefix="model.mtp_layers.0.",
        features_first=True,
        reads_normed=False,  # vLLM's MiMoModel, by MiMo's authors, returns the state without norm
    ),
    "glm4_moe": MtpForm(
        *("eh_proj", "enorm", "hnorm", "shared_head.norm"),
        prefix="model.layers.{}.",
        feeds_back_normed=False,
    ),
    **dict.fromkeys(
        ("ernie4_5", "ernie4_5_moe"),
        MtpForm(
            *("linear_proj.0", "emb_norm.0", "hidden_norm.0", ""),
            layer="block.0.",
            prefix="model.mtp_",
            feeds_back_normed=False,
        ),
    ),
}


def mtp_layer(model: Any) -> Any:
    """transformers' decoder layer for an MTP layer of a model, without its weights."""
    config = copy.deepcopy(model.config)
    # ERNIE's is dense, as is its first.
    index = 0 if config.model_type.startswith("ernie") else config.num_hidden_layers - 1
    if hasattr(config, "linear_num_key_heads"):
        config.layer_types, index = ["full_attention"], 0
    return type(model.model.layers[0])(config, index).eval()


class Mtp(EagleHead):
    """A layer for multi-token prediction in the target's checkpoint: the family's own layer of full
    attention over both inputs, each normalised."""

    def __init__(self, directory: Path, target: Target) -> None:
        self.form = MTP_FORMS[target.config.model_type].of(target.config)
        self.renames = ((self.form.prefix, "mtp:"),)
        DraftHead.__init__(self, directory, target)
        names = {name: name.removeprefix("mtp:") for name in self.weights if "mtp:" in name}
        self.weights = {short: self.weights[name] for name, short in names.items()}
        self.stored_names = {short: self.stored_names[name] for name, short in names.items()}
        self.embedding = target.embedding
        self.layer: Any = mtp_layer(target.model)
        self.rotary: Any = target.model.model.rotary_emb
        first = f"{self.form.layer}mlp.experts.0.gate_proj.weight"
        if first in self.weights:
            self.weights |= self.stacked_experts()

    def stacked_experts(self) -> dict[str, Tensor]:
        """Experts with a tensor of each matrix, taken out of the weights, in transformers' form."""
        block = f"{self.form.layer}mlp.experts"
        count = sum(name.endswith("gate_proj.weight") and block in name for name in self.weights)

        def pop(projection: str) -> list[Tensor]:
            return [self.weights.pop(f"{block}.{i}.{projection}.weight") for i in range(count)]

        pairs = zip(pop("gate_proj"), pop("up_proj"), strict=True)
        return {
            f"{block}.gate_up_proj": torch.stack([torch.cat(pair) for pair in pairs]),
            f"{block}.down_proj": torch.stack(pop("down_proj")),
        }

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.form.norm_offset + self.weights[f"{name}.weight"]
        return rms_norm(x, weight, self.target.config.rms_norm_eps)

    def features(self, tokens: Tensor) -> Tensor:
        return super().features(tokens) if self.form.reads_normed else self.target.output(tokens)

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def join(self, ids: Tensor, states: Tensor) -> Tensor:
        form = self.form
        parts = [
            self.norm(self.embedding[ids], form.embedding_norm),
            self.norm(states, form.feature_norm),
        ]
        return self.linear(torch.cat(parts[:: -1 if form.features_first else 1], -1), form.fusion)

    def hidden(self, ids: Tensor, states: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Rows before the last norm."""
        x = self.join(ids, states)
        batch = x.reshape(-1, *x.shape[-2:])
        weights = {name: self.weights[self.form.layer + name] for name in self.layer.state_dict()}
        mask = torch.zeros(visible.shape).masked_fill(~visible, -math.inf)
        output = torch.func.functional_call(
            self.layer,
            weights,
            args=(batch,),
            kwargs={
                "position_embeddings": self.rotary(batch, positions[None]),
                "attention_mask": mask[None, None],
            },
            strict=True,
        )
        hidden: Tensor = output[0] if isinstance(output, tuple) else output
        return hidden.reshape(x.shape)

    def run(
        self, ids: Tensor, states: Tensor, positions: Tensor, visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(ids, states, positions, visible)
        normed = self.norm(hidden, self.form.final_norm) if self.form.final_norm else hidden
        return self.target.score(normed), normed if self.form.feeds_back_normed else hidden


def _sharing_modes(config: Any) -> list[str | None]:
    """Which layers of a Gemma 4 hand on their keys and values, and which read others'."""
    num_layers, num_shared = config.num_hidden_layers, config.num_kv_shared_layers
    modes: list[str | None] = [None] * (num_layers - num_shared) + ["reuse"] * num_shared
    own = config.layer_types[: num_layers - num_shared]
    for kind in set(own):
        modes[len(own) - 1 - own[::-1].index(kind)] = "store"
    return modes


# transformers 5.23 refuses an assistant, all of whose layers read others' keys and values, and
# hands on none of a target that has no such layers.
_config: Any
for _config in (transformers.Gemma4TextConfig, transformers.Gemma4UnifiedTextConfig):
    setattr(_config, "kv_sharing_modes", property(_sharing_modes))  # noqa: B010


class Gemma4Assistant(DraftHead):
    """transformers' assistant, which reads the target's keys and values, and no others."""

    def __init__(self, directory: Path, target: Target) -> None:
        super().__init__(directory, target)
        kind: Any = getattr(transformers, self.config["architectures"][0])
        self.model = kind.from_pretrained(directory, dtype=torch.float32).eval()
        self.embed: Any = target.model.get_input_embeddings()
        self.seen: tuple[Tensor, dict[str, tuple[Tensor, Tensor]]] | None = None
        ordering = self.weights.get("masked_embedding.token_ordering")
        if ordering is not None:
            self.token_ids = ordering

    def target_kv(self, tokens: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Keys and values of the target by kind of attention, [batch, heads, tokens, dim] each."""
        batch = tokens.reshape(-1, tokens.shape[-1])
        if self.seen is None or not torch.equal(self.seen[0], batch):
            with torch.no_grad():
                output = self.target.model(batch, use_cache=False, return_shared_kv_states=True)
            self.seen = batch, dict(output.shared_kv_states)
        return self.seen[1]

    def join(self, ids: Tensor, states: Tensor) -> Tensor:
        return torch.cat([self.embed(ids), states], -1)

    def position(self, root: int, depth: int) -> int:
        """That of a draft of `depth` below the last token, which stands at `root`."""
        del depth
        return root

    def fed_back(self, output: Any) -> Tensor:
        state: Tensor = output.last_hidden_state
        return state

    def run(
        self,
        ids: Tensor,
        states: Tensor,
        position: int,
        kv: dict[str, tuple[Tensor, Tensor]],
        num_seen: int,
    ) -> tuple[Tensor, Tensor]:
        """Logits and the state handed on, of a row for each text of a batch: ids [batch],
        states [batch, width]. They see the first `num_seen` tokens."""
        seen = {kind: (k[:, :, :num_seen], v[:, :, :num_seen]) for kind, (k, v) in kv.items()}
        output = torch.func.functional_call(
            self.model,
            self.weights,
            args=(),
            kwargs={
                "inputs_embeds": self.join(ids[:, None], states[:, None]),
                "position_ids": torch.tensor([[position]]),
                "shared_kv_states": seen,
                "output_hidden_states": True,
            },
        )
        logits = output.logits[:, 0]
        if self.config["use_ordered_embeddings"]:  # what is not scored is the least of all
            logits = logits.masked_fill(logits == logits.min(-1, keepdim=True).values, -math.inf)
        return logits[..., self.token_ids], self.fed_back(output)[:, 0]

    def rows(self, tokens: Tensor, features: Tensor, nodes: Sequence[Node]) -> Tensor:
        """Without the rows of tokens before the root, on which the others do not depend."""
        kv, root = self.target_kv(tokens), len(tokens) - 1
        rows = [self.run(tokens[root:], features[root - 1 : root], root, kv, root)]
        for node in nodes:
            position = self.position(root, node.depth)
            state = rows[node.parent + 1][1]
            rows.append(self.run(torch.tensor([node.token]), state, position, kv, root))
        return torch.cat([logits for logits, _ in rows])

    def logits(self, tokens: Sequence[int], drafts: Sequence[int] = ()) -> Tensor:
        before = [super(Gemma4Assistant, self).logits(tokens[:i]) for i in range(2, len(tokens))]
        return torch.cat([*before, super().logits(tokens, drafts)])


class MlpSpeculator(DraftHead):
    """IBM's: a recurrent network whose state starts as the target's last hidden state."""

    renames = (("speculator.", ""),)

    def __init__(self, directory: Path, target: Target) -> None:
        super().__init__(directory, target)
        self.max_depth = self.config["n_predict"]
        inner = self.config.get("inner_dim") or self.config["emb_dim"]
        state_weight = 0.5 ** (0.5 / self.max_depth)
        self.embedding_weight = math.sqrt((1 - state_weight**2) * inner / 2) / state_weight

    def norm(self, x: Tensor, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight + bias

    def step(self, index: int, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of head `index` and the states of the next one."""
        tied = self.config.get("tie_weights", False)
        one, projection = (0, min(index, 1)) if tied else (index, index)
        weights = self.weights
        z = F.linear(states, weights[f"proj.{projection}.weight"])
        z = z + self.embedding_weight * weights[f"emb.{one}.weight"][tokens]
        states = F.gelu(self.norm(z, weights[f"ln.{one}.weight"], weights[f"ln.{one}.bias"]))
        return F.linear(states, weights[f"head.{one}.weight"]), states

    def initial(self, features: Tensor) -> Tensor:
        if self.config.get("scale_input", False):
            return self.norm(features) / math.sqrt(2)
        return features

    def rows(self, tokens: Tensor, features: Tensor, nodes: Sequence[Node]) -> Tensor:
        logits, states = self.step(0, tokens[1:], self.initial(features[:-1]))
        all_logits, node_states = [logits], list[Tensor]()
        for node in nodes:
            state = states[-1] if node.parent == ROOT else node_states[node.parent]
            drafted, state = self.step(node.depth, torch.tensor([node.token]), state[None])
            all_logits.append(drafted)
            node_states.append(state[0])
        return torch.cat(all_logits)


class Medusa(DraftHead):
    """A head for each position, all over the state after the final norm at the root."""

    renames = (("medusa_heads.", ""),)

    def __init__(self, directory: Path, target: Target) -> None:
        super().__init__(directory, target)
        config = self.config
        self.max_depth = config.get("num_heads") or config["medusa_num_heads"]
        self.num_layers: int = config.get("num_hidden_layers") or config["medusa_num_layers"]
        if "token_map" in self.weights:
            self.token_ids = self.weights["token_map"]

    def find(self, *names: str) -> Tensor | None:
        return next((self.weights[name] for name in names if name in self.weights), None)

    def head(self, index: int, x: Tensor) -> Tensor:
        for layer in range(self.num_layers):
            names = (f"blocks.{index}.layers.{layer}", f"{index}.{layer}.linear")
            weight = self.find(*[f"{name}.weight" for name in names])
            bias = self.find(*[f"{name}.bias" for name in names])
            assert weight is not None
            x = x + F.silu(F.linear(x, weight, bias))
        shared = ["lm_heads.0.weight"] if self.config.get("original_lm_head") else []
        names = (f"lm_heads.{index}.weight", f"{index}.{self.num_layers}.weight")
        matrix = self.find(*names, *shared)
        if matrix is None:
            return self.target.score(x, self.token_ids)
        if matrix.shape[0] > len(self.token_ids):
            matrix = matrix[self.token_ids]
        return F.linear(x, matrix)

    def rows(self, tokens: Tensor, features: Tensor, nodes: Sequence[Node]) -> Tensor:
        rows = [self.head(0, features[:-1])]
        rows += [self.head(node.depth, features[-2:-1]) for node in nodes]
        return torch.cat(rows)


KINDS: dict[str, type[DraftHead]] = {
    "dflash": Dflash,
    "dspark": Dflash,
    "eagle": Eagle1,
    "eagle3": Eagle3,
    "medusa": Medusa,
    "mlp_speculator": MlpSpeculator,
    "mtp": Mtp,
    "p_eagle": ParallelEagle,
    "pard": ParallelDraftModel,
    "gemma4_assistant": Gemma4Assistant,
}


def load(kind: str, directory: Path, target: Target) -> DraftHead:
    return KINDS[kind](directory, target)
