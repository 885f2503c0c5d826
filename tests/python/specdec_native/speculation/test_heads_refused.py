"""Heads that do not fit their target, or are not whole, are refused by file and field."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import head_oracles
import make_heads
from conftest import HeadMaker
from make_heads import HEADS, IDS
from specdec_native import Engine
from specdec_native.errors import CheckpointError

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


def without(name: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        del tensors[name]

    return change


def said(**fields: Any) -> Change:
    return lambda config, tensors: config.update(fields)


def replaced(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda config, tensors: tensors.update({name: change(tensors[name])})


def verified_by(architecture: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        config["speculators_config"]["verifier"]["architectures"] = [architecture]

    return change


def first_row_wider(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor[:, :1]], 1)


def set_first(value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: torch.cat([torch.tensor([value]), tensor[1:]])


def same_token_twice(d2t: torch.Tensor) -> torch.Tensor:
    return torch.cat([d2t[:1], d2t[:1] - 1, d2t[2:]])


# The variant, what is done to it, the file and the field that the error names.
CASES: dict[str, tuple[str, Change, str, str]] = {
    "eagle: hidden size": ("eagle_no_bias", said(hidden_size=72), "config.json", "hidden_size"),
    "eagle: vocabulary": ("eagle_no_bias", said(vocab_size=161), "config.json", "vocab_size"),
    "eagle: no fc": ("eagle_no_bias", without("fc.weight"), "safetensors", "fc.weight"),
    "eagle: fc of another width": (
        "eagle_no_bias", replaced("fc.weight", first_row_wider), "safetensors", "fc.weight"),
    "eagle: no projection": (
        "eagle_no_bias", without("layers.0.self_attn.k_proj.weight"), "safetensors",
        "layers.0.self_attn.k_proj.weight"),
    "eagle: fewer layers": (
        "eagle_two_layers", said(num_hidden_layers=3), "safetensors",
        "layers.2."),
    "eagle3: vocabulary": ("eagle3_specforge", said(vocab_size=99), "config.json", "vocab_size"),
    "eagle3: target's hidden size": (
        "eagle3_narrow", said(target_hidden_size=48), "config.json", "target_hidden_size"),
    "eagle3: no embedding": (
        "eagle3_narrow", without("embed_tokens.weight"), "safetensors", "embed_tokens.weight"),
    "eagle3: a layer that is not there": (
        "speculators", said(**{IDS: [0, 4]}), "config.json", IDS),
    "eagle3: a layer before the first": (
        "speculators", said(**{IDS: [-1, 2]}), "config.json", IDS),
    "eagle3: an output that is not there": (
        "eagle3_specforge", said(eagle_config={IDS: [0, 3]}), "config.json", IDS),
    "eagle3: more taps than fc has": (
        "speculators", said(**{IDS: [0, 1, 2]}), "safetensors", "fc.weight"),
    "eagle3: no d2t": ("eagle3_specforge", without("d2t"), "safetensors", "d2t"),
    "eagle3: d2t past the vocabulary": (
        "eagle3_specforge", replaced("d2t", set_first(160)), "safetensors", "d2t"),
    "eagle3: d2t before the vocabulary": (
        "eagle3_specforge", replaced("d2t", set_first(-1)), "safetensors", "d2t"),
    "eagle3: a token twice": (
        "eagle3_specforge", replaced("d2t", same_token_twice), "safetensors", "d2t"),
    "eagle3: d2t of another length": (
        "eagle3_specforge", replaced("d2t", lambda d2t: d2t[1:]), "safetensors", "d2t"),
    "eagle3: no hidden norm": (
        "eagle3_specforge", without("midlayer.hidden_norm.weight"), "safetensors",
        "hidden_norm.weight"),
    "eagle3: no norm of each tap": (
        "eagle31_fc_norm", without("fc_norm.1.weight"), "safetensors", "fc_norm.1.weight"),
    "eagle3: no input norm": (
        "eagle31_input_norm", without("input_norm.weight"), "safetensors", "input_norm.weight"),
    "eagle3: trained for another family": (
        "speculators", verified_by("Qwen3ForCausalLM"), "config.json", "architectures"),
    "eagle3: t2d without a token of d2t": (
        "eagle3_specforge", replaced("t2d", torch.zeros_like), "safetensors", "t2d"),
    "eagle3: t2d with another token": (
        "eagle3_specforge", replaced("t2d", torch.ones_like), "safetensors", "t2d"),
    "eagle3: t2d of numbers": (
        "eagle3_specforge", replaced("t2d", torch.Tensor.float), "safetensors", "t2d"),
    "eagle3: an embedding's scale": (
        "eagle3_specforge", said(embedding_multiplier=2.0), "config.json", "embedding_multiplier"),
    "eagle3: another activation": (
        "eagle3_specforge", said(activation="gelu"), "config.json", "activation"),
    "eagle3: another norm": (
        "eagle3_specforge", said(eagle_config={IDS: [0, 1], "use_mtp_layernorm": True}),
        "config.json",
        "eagle_config.use_mtp_layernorm"),
    "eagle3: a key of layers": (
        "speculators",
        lambda config, tensors: config["transformer_layer_config"].update(
            attn_logit_softcapping=50.0),
        "config.json", "transformer_layer_config.attn_logit_softcapping"),
    "eagle3: quantised": (
        "eagle3_specforge", said(quantization_config={"quant_method": "hqq", "bits": 4}),
        "config.json", "weights of 'hqq' are not read"),
    "eagle: a norm of EAGLE-3's": (
        "eagle_no_bias", said(norm_before_fc=True), "config.json", "norm_before_fc"),
    "mlp: quantised": (
        "mlp", said(quantization_config={"quant_method": "hqq"}), "config.json",
        "weights of 'hqq' are not read"),
    "medusa: quantised": (
        "medusa", said(quantization_config={"quant_method": "hqq"}), "config.json",
        "weights of 'hqq' are not read"),
    "medusa: another activation": (
        "medusa", said(medusa_activation="relu"), "config.json", "medusa_activation"),
    "dflash: a selector": (
        "dflash", lambda config, tensors: tensors.update(
            {"candidate_selector.hidden_projection": torch.zeros(8, 64)}),
        "safetensors", "candidate_selector"),
    "dflash: a convolution": (
        "dflash", lambda config, tensors: tensors.update(
            {"layers.1.attention_conv.base_kernel": torch.zeros(2, 2, 64)}),
        "safetensors", "layers.1.attention_conv"),
    "dflash: another number of layers": (
        "dflash", said(num_target_layers=9), "config.json", "num_target_layers"),
    "dflash: no mask": (
        "dflash", said(dflash_config={"target_layer_ids": [-1, 1]}), "config.json",
        "mask_token_id"),
    "dflash: a mask outside of the vocabulary": (
        "dflash", said(dflash_config={"target_layer_ids": [-1, 1], "mask_token_id": 160}),
        "config.json", "mask_token_id"),
    "dflash: layers in another order": (
        "dflash", said(dflash_config={"target_layer_ids": [1, -1], "mask_token_id": 7}),
        "config.json", "target_layer_ids"),
    "dflash: an output that is not there": (
        "dflash", said(dflash_config={"target_layer_ids": [0, 3], "mask_token_id": 7}),
        "config.json", "target_layer_ids"),
    "dflash: causal": ("dflash", said(is_causal=True), "config.json", "is_causal"),
    "dflash: sinks": (
        "dflash", said(dflash_config={"target_layer_ids": [-1, 1], "mask_token_id": 7,
                                      "attention_sink_bias": True}),
        "config.json", "attention_sink_bias"),
    "dflash: a window both ways": (
        "dflash_windows", said(sliding_window_non_causal=True), "config.json",
        "sliding_window_non_causal"),
    "dflash: a window somewhere": ("dflash", said(use_swa=True), "config.json", "use_swa"),
    "dflash: a key of DFlash2": (
        "dflash", said(input_embedding_scale=2.0), "config.json", "input_embedding_scale"),
    "dflash: no norm of keys": (
        "dflash", without("layers.0.self_attn.k_norm.weight"), "safetensors", "k_norm"),
    "dflash: no norm of the context": (
        "dflash", without("hidden_norm.weight"), "safetensors", "hidden_norm"),
    "dspark: another Markov head": (
        "dspark", said(markov_head_type="gated"), "config.json", "markov_head_type"),
    "dspark: a rank of another size": (
        "dspark", said(markov_rank=9), "safetensors", "markov_head.markov_w1"),
    "mlp: hidden size": ("mlp", said(emb_dim=65), "config.json", "emb_dim"),
    "mlp: vocabulary": ("mlp", said(vocab_size=161), "config.json", "vocab_size"),
    "mlp: no embedding": ("mlp", without("emb.2.weight"), "safetensors", "emb.2.weight"),
    "mlp: more steps than there are": ("mlp", said(n_predict=4), "safetensors", "proj.3.weight"),
    "mlp: fewer steps than there are": ("mlp", said(n_predict=2), "safetensors", "emb.2.weight"),
    "medusa: hidden size": ("medusa", said(hidden_size=65), "config.json", "hidden_size"),
    "medusa: vocabulary": ("medusa", said(vocab_size=161), "config.json", "vocab_size"),
    "medusa: no block": (
        "medusa", without("blocks.2.layers.0.weight"), "safetensors", "blocks.2.layers.0.weight"),
    "medusa: no head": (
        "medusa", without("lm_heads.1.weight"), "safetensors", "lm_heads.1.weight"),
    "medusa: a token twice": (
        "medusa_token_map", replaced("token_map", lambda ids: torch.cat([ids[:1], ids[:-1]])),
        "safetensors", "token_map"),
    "medusa: no map": ("medusa_token_map", without("token_map"), "safetensors", "token_map"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_head_that_does_not_fit(
    head: HeadMaker, checkpoint: Callable[[str], Path], tmp_path: Path, case: str
) -> None:
    name, change, file, field = CASES[case]
    original = head(name)
    config = json.loads((original / "config.json").read_text())
    tensors = head_oracles.load_tensors(original)
    change(config, tensors)
    directory = make_heads.write(tmp_path / "head", config, tensors, HEADS[name].file)
    speculative = {
        "method": HEADS[name].method, "model": str(directory), "num_speculative_tokens": 2
    }  # fmt: skip
    with pytest.raises(CheckpointError) as error:
        Engine(checkpoint("llama"), max_model_len=64, speculative_config=speculative)
    assert str(directory) in str(error.value) and file in str(error.value)
    assert field in str(error.value)


@pytest.mark.parametrize(
    ("name", "method"),
    [("mlp", "medusa"), ("medusa", "mlp_speculator"), ("eagle_no_bias", "eagle3"),
     ("eagle3_specforge", "eagle"), ("eagle3_specforge", "medusa")],
)  # fmt: skip
def test_a_head_of_another_method(
    head: HeadMaker, checkpoint: Callable[[str], Path], name: str, method: str
) -> None:
    config = {"method": method, "model": str(head(name)), "num_speculative_tokens": 2}
    with pytest.raises(ValueError) as error:
        Engine(checkpoint("llama"), max_model_len=64, speculative_config=config)
    assert str(head(name)) in str(error.value) or method in str(error.value)
