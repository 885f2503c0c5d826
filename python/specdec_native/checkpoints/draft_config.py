"""What config.json says of a checkpoint that drafts, in the spelling of whoever trained it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.generation_config import GENERATION_KEYS
from specdec_native.checkpoints.text_files import read_json_object

# Values of "speculators_model_type". "peagle" is EAGLE-3 that drafts in parallel.
_SPECULATORS_METHODS = {
    "eagle": "eagle",
    "eagle3": "eagle3",
    "peagle": "eagle3",
    "medusa": "medusa",
    "mlp": "mlp_speculator",
    "mlp_speculator": "mlp_speculator",
    "dflash": "dflash",
    "dflash2": "dflash",
    "dspark": "dspark",
    "mtp": "mtp",
}
# Parts of "architectures" and of "model_type" that decide; the first that is found.
_METHOD_WORDS = {
    "eagle3": "eagle3",
    "peagle": "eagle3",
    "eagle": "eagle",
    "medusa": "medusa",
    "mlpspeculator": "mlp_speculator",
    "mlp_speculator": "mlp_speculator",
    "dflash": "dflash",
    "dspark": "dspark",
    "mtp": "mtp",
}
# Keys that no other checkpoints have.
_METHOD_KEYS = {
    "draft_vocab_size": "eagle3",
    "eagle_config": "eagle3",
    "medusa_num_heads": "medusa",
}
_TAPS = "eagle_aux_hidden_state_layer_ids"
# Keys of heads that are read here or by the core. Of layers, as those of a Llama:
_LAYER_KEYS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings"),
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "layer_types"),
    *("original_max_position_embeddings", "sliding_window", "use_sliding_window", "vocab_size"),
    *("attention_bias", "mlp_bias", "qkv_bias", "bias", "tie_word_embeddings", "dtype"),
    *("torch_dtype", "architectures", "model_type"),
)
_HEAD_KEYS = (
    *_LAYER_KEYS,
    *("speculators_model_type", "speculators_config", "transformer_layer_config", "eagle_config"),
    *(_TAPS, "draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc"),
    *("norm_output", "fc_norm", "logit_scale", "layernorms", "fusion_bias", "mask_token_id"),
    *("pard_token", "ptd_token_id", "use_input_layernorm_in_first_layer", "use_last_layernorm"),
    *("medusa_num_heads", "medusa_num_layers", "num_heads", "medusa_fc_bias", "original_lm_head"),
    *("truncated_vocab_size", "emb_dim", "inner_dim", "n_predict", "tie_weights", "scale_input"),
    # Of quantised heads, whose tensors the core refuses.
    *("quantization_config", "compression_config"),
)
# Keys that change nothing a head computes, by the reason.
WITHOUT_EFFECT = {
    "it says who wrote the file": (
        *("_name_or_path", "transformers_version", "speculators_version", "auto_map", "version"),
        *("base_model_name_or_path", "name_or_path", "transformer_layer_architecture"),
        *("has_no_defaults_at_init", "eagle_architecture", "language_model_only"),
    ),
    "it is about training": (
        *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"),
        *("initializer_range", "pretraining_tp", "gradient_checkpointing", "embed_requires_grad"),
        *("eagle_hidden_state_distillation", "eagle_self_logit_distillation", "eagle_offline"),
        *("eagle_freeze_base_model", "eagle_decoder_type", "eagle_report_acc", "ttt_steps"),
        *("eagle_loss_decay_factor", "target_model_type"),
    ),
    "tokens and sampling are the target's": (
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id"),
        *("decoder_start_token_id", "tokenizer_class", "prefix"),
    ),
    "layer_types says it": ("max_window_layers",),
    "it is how much its authors draft, and speculative_config says that here": (
        *("n_candidates", "top_k_tokens_per_head", "parallel_draft_step", "medusa_choices"),
        *("num_lookahead_tokens", "num_speculative_tokens", "topk", "max_paths"),
        *("max_seq_len",),
    ),
    "it is about the code of transformers": (
        *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "torchscript"),
        *("use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward", "is_encoder_decoder"),
        *("is_decoder", "add_cross_attention", "tie_encoder_decoder", "pruned_heads", "id2label"),
        *("label2id", "finetuning_task", "problem_type", "task_specific_params"),
        *("cross_attention_hidden_size", "attn_implementation", "_attn_implementation_autoset"),
        *("model_max_length",),
    ),
}
# Values at which a flag says what all heads with such a flag do.
_USUAL = {"use_aux_hidden_state": True, "next_layer_regular": True, "has_lm_head": True}
# What limits a draft, by method.
_LENGTH_KEYS = {"mlp_speculator": "n_predict", "medusa": "num_heads"}
# Medusa's own files may state fewer heads than they hold, so this is no limit.
_STATED_HEADS = "medusa_num_heads"


@dataclasses.dataclass(frozen=True)
class DraftConfig:
    """config.json of a checkpoint that drafts.

    Attributes:
        file: it.
        values: what it holds.
    """

    file: Path
    values: Mapping[str, Any]

    @property
    def method(self) -> str | None:
        """The method it is made for, whether or not there is one; None where it does not say.

        Raises CheckpointError for a kind of speculator nobody knows.
        """
        kind = self.values.get("speculators_model_type")
        if kind is not None:
            if not isinstance(kind, str) or kind not in _SPECULATORS_METHODS:
                raise CheckpointError(
                    f"speculators_model_type {kind!r:.80} is not known; known are "
                    f"{', '.join(_SPECULATORS_METHODS)}",
                    self.file,
                )
            return _SPECULATORS_METHODS[kind]
        for name in (*self.architectures, str(self.values.get("model_type", ""))):
            for word, method in _METHOD_WORDS.items():
                if word in name.lower():
                    return method
        for key, method in _METHOD_KEYS.items():
            if self.values.get(key) is not None:
                return method
        return None

    def check_head(self) -> None:
        """Raises CheckpointError for a key that may change what a head computes and is not read.

        Keys of transformers' generation are passed over, as are those that are off.
        """
        nested = {"transformer_layer_config": _LAYER_KEYS, "eagle_config": _HEAD_KEYS}
        passed = {*GENERATION_KEYS, *(key for keys in WITHOUT_EFFECT.values() for key in keys)}
        for part, known in {"": _HEAD_KEYS, **nested}.items():
            values = self.values if not part else self.values.get(part)
            for key, value in values.items() if isinstance(values, Mapping) else ():
                if key in known or key in passed or value in (None, False, [], {}, _USUAL.get(key)):
                    continue
                raise CheckpointError(
                    f"{f'{part}: ' if part else ''}{key}={value!r:.80} is not known, and may "
                    "change what the head computes; take it out of the file if it does not",
                    self.file,
                )

    @property
    def architectures(self) -> list[str]:
        """Names of its classes."""
        names = self.values.get("architectures")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    @property
    def is_parallel(self) -> bool:
        """Whether it is a P-EAGLE head, which drafts all positions in one pass."""
        return self.values.get("speculators_model_type") == "peagle" or any(
            "peagle" in name.lower() for name in self.architectures
        )

    @property
    def layers(self) -> Mapping[str, Any]:
        """The part that describes its layers: all of it but in the format of speculators."""
        nested = self.values.get("transformer_layer_config")
        return nested if isinstance(nested, Mapping) else self.values

    @property
    def taps(self) -> list[int] | None:
        """The layers of the target whose inputs an EAGLE-3 head reads; None for the usual ones,
        which an empty list means, too."""
        nested = self.values.get("eagle_config")
        outputs = nested.get(_TAPS) if isinstance(nested, Mapping) else None
        for ids, offset in ((self.values.get(_TAPS), 0), (outputs, 1)):
            if isinstance(ids, list) and ids and all(isinstance(layer, int) for layer in ids):
                return [layer + offset for layer in ids]
        return None

    @property
    def verifier(self) -> str | None:
        """The name or path of the target it was trained for, where it says so."""
        verifier = self._speculators_config.get("verifier")
        name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
        return name if isinstance(name, str) and name else None

    def longest_draft(self, method: str) -> tuple[str, int] | None:
        """The key that says how many tokens it can draft at most, and how many; None: any."""
        key = _LENGTH_KEYS.get(method)
        length = None if key is None else self.values.get(key)
        return (key, length) if key is not None and _is_count(length) else None

    def proposed_tokens(self, method: str) -> int | None:
        """How many tokens it proposes to draft; None where it does not say."""
        proposals = self._speculators_config.get("proposal_methods")
        first = proposals[0] if isinstance(proposals, list) and proposals else None
        tokens = first.get("speculative_tokens") if isinstance(first, Mapping) else None
        limit = self.longest_draft(method)
        if limit is not None:
            return min(tokens, limit[1]) if _is_count(tokens) else limit[1]
        if method == "medusa" and not _is_count(tokens):
            tokens = self.values.get(_STATED_HEADS)
        return tokens if _is_count(tokens) else None

    @property
    def _speculators_config(self) -> Mapping[str, Any]:
        nested = self.values.get("speculators_config")
        return nested if isinstance(nested, Mapping) else {}


def read_draft_config(directory: Path) -> DraftConfig:
    """config.json of a checkpoint's directory. Raises CheckpointError."""
    file = directory / "config.json"
    return DraftConfig(file, read_json_object(file))


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
