"""Compares the engine with transformers for every class of causal language models, key by key.

Nothing here knows a family: sizes are set by the names of a config class's keys, all else is the
class's default, and a sweep then changes one key after another. The engine has to compute what
transformers does or to refuse the checkpoint, by the name of the key. What loads and differs, and
any other exception, is a problem.
"""

import copy
import dataclasses
import functools
import inspect
import json
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from logprobs import Array, likeliest_logprobs, random_tokens
from specdec_native import Engine, _core
from specdec_native.errors import CheckpointError

Settings = dict[str, Any]
AUTO_MODEL: Any = transformers.AutoModelForCausalLM
CONFIGS: Any = transformers.CONFIG_MAPPING

TOLERANCE = 1e-4  # of the range of logprobs; errors of rounding are about 1e-6
TOKENS = random_tokens(120, seed=1)  # several times as long as a window
NUM_LAYERS = 4
MANY_LAYERS = 12  # more than any pattern of layers has
NUM_LOGPROBS = 20  # of the engine's likeliest tokens: all logits are in each of them
MOST_PARAMETERS = 10_000_000  # where a size is left to the class
NUM_COMBINATIONS = 10  # of three changes that are right one by one

# By the name that a class's attribute_map leads to. 8 is no other size than that of experts.
SIZES: Settings = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "original_max_position_embeddings": 64,
    "query_pre_attn_scalar": 20,
    "attention_chunk_size": 24,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_k": 3,
    "moe_topk": 3,
    "top_k_experts": 3,
    "moe_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "shared_expert_intermediate_size": 48,
    "shared_intermediate_size": 48,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
# Set where a class has a value of its own; where its default is None, the sweep sets them.
SIZES_IF_SET: Settings = {"sliding_window": 24, "n_group": 2, "topk_group": 1}
GATED_DELTA: Settings = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
# What a model type needs beyond that to be a transformer at these sizes.
OVERRIDES: dict[str, Settings] = {
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_n_groups": 2,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "qwen3_5_moe_text": GATED_DELTA,
    "qwen3_5_text": GATED_DELTA,
    "qwen3_next": GATED_DELTA,
    "helium": {"head_dim": 16},
    "gemma3n_text": {
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 140,
        "laurel_rank": 16,
        "num_kv_shared_layers": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma4_text": {
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 160,
        "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma4_unified_text": {"global_head_dim": 32},
}

# Keys that concern tokens, training, generation or what is returned.
WITHOUT_EFFECT = re.compile(
    r"_token_id$|dropout|_pdrop$|^initializer_|^init_|^use_cache$|^output_|loss_coef|aux_loss"
    r"|jitter_noise$|^pretraining_tp$|^num_logits_to_keep$|^classifier_|^summary_|^layerdrop$"
)
# Values to try, for keys of which the type says too little.
VALUES: dict[str, list[Any]] = {
    "vocab_size": [170],
    "hidden_size": [128],
    "num_hidden_layers": [3, 7],
    "num_attention_heads": [2, 8],
    "num_key_value_heads": [1, 4],
    "head_dim": [8, 16, 32],
    "max_position_embeddings": [200],
    "sliding_window": [12, None],
    "num_experts_per_tok": [1, 2, 8],
    "num_kv_shared_layers": [0, 1, 2],
    "altup_num_inputs": [2, 3],
    "altup_active_idx": [1, 3],
    "activation_sparsity_pattern": [[0.5, 0.0, 0.9, 0.0]],
    "hidden_size_per_layer_input": [8, 32],
    "vocab_size_per_layer_input": [170],
    "partial_rotary_factor": [0.5],
    "rope_scaling": [{"type": "linear", "factor": 2.5}],
    "rope_theta": [50.0],
}
# Keys that a refusal may name instead: one has to fit the other.
IMPLIED = {
    "hidden_size": ["head_dim"],
    "num_attention_heads": ["head_dim", "hidden_size"],
    "head_dim": ["num_attention_heads"],
    "layer_types": ["sliding_window"],
    "n_group": ["topk_group"],
    "n_routed_experts": ["n_group"],
    "num_experts_per_tok": ["topk_group"],
    "vocab_size": ["vocab_size_per_layer_input"],
}
# Keys that code shared by transformers' classes reads, whether or not a class has them.
SHARED: dict[str, list[Any]] = {
    "attention_chunk_size": [12],
    "head_dim": [8],
    "is_causal": [False],
    "layer_types": [["full_attention", "sliding_attention"] * 2],
    "sliding_window": [12],
    "tie_word_embeddings": [True],
    "use_bidirectional_attention": [True],
}
ACTIVATIONS = ("gelu", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu", "sigmoid")
# Repeated over all layers.
LAYER_PATTERNS = [
    ["full_attention", "sliding_attention"],
    ["sliding_attention", "sliding_attention", "full_attention"],
    ["full_attention"],
    ["sliding_attention"],
    ["full_attention", "chunked_attention"],
    ["full_attention", "linear_attention"],
]
MLP_PATTERNS = [["dense", "sparse"], ["sparse"], ["dense"]]


@dataclass(frozen=True)
class Family:
    """A class of transformers' models together with one of its config classes."""

    model_type: str
    architecture: str

    @functools.cached_property
    def config_class(self) -> Any:
        return CONFIGS[self.model_type]

    @functools.cached_property
    def defaults(self) -> Settings:
        """Of the keys that the class adds to those of all configs."""
        shared = {entry.name for entry in dataclasses.fields(transformers.PreTrainedConfig)}
        return {
            entry.name: entry.default_factory()
            if entry.default_factory is not dataclasses.MISSING
            else entry.default
            for entry in dataclasses.fields(self.config_class)
            if entry.name not in shared and not entry.name.startswith("_")
        }

    @functools.cached_property
    def types(self) -> dict[str, str]:
        return {entry.name: str(entry.type) for entry in dataclasses.fields(self.config_class)}

    @functools.cached_property
    def source(self) -> str:
        """Of the config and of the model."""
        path = Path(inspect.getfile(self.config_class))
        model = path.with_name(path.name.replace("configuration_", "modeling_"))
        return "".join(file.read_text() for file in (path, model) if file.exists())

    @functools.cached_property
    def aliases(self) -> Mapping[str, str]:
        """Keys that stand for others."""
        return dict(self.config_class.attribute_map)

    @functools.cached_property
    def base(self) -> Settings:
        """A tiny model with every kind of layer: what differs from the class's defaults."""
        sizes = {self.aliases.get(name, name): value for name, value in SIZES.items()} | SIZES
        chosen = {key: sizes[key] for key in self.defaults if key in sizes}
        for key, value in SIZES_IF_SET.items():
            if self.defaults.get(key) is not None:
                chosen[key] = value
        chosen |= OVERRIDES.get(self.model_type, {})
        key = self.aliases.get("num_hidden_layers", "num_hidden_layers")
        if "layer_types" not in chosen:
            counts = range(NUM_LAYERS, MANY_LAYERS)
            whole = kinds_of_layers(self, chosen | {key: MANY_LAYERS})
            enough = (n for n in counts if kinds_of_layers(self, chosen | {key: n}) == whole)
            chosen[key] = next(enough, MANY_LAYERS)
        return chosen

    @property
    def num_layers(self) -> int:
        key = self.aliases.get("num_hidden_layers", "num_hidden_layers")
        return int(self.base.get(key, NUM_LAYERS))


def kinds_of_layers(family: Family, settings: Settings) -> set[str]:
    try:
        config = read_config(family, settings)
    except Exception:  # whatever transformers raises for what it does not take
        return set()
    lists = (getattr(config, key, None) for key in ("layer_types", "mlp_layer_types"))
    return {kind for kinds in lists for kind in kinds or ()}


@functools.cache
def families() -> dict[str, Family]:
    """Of transformers' causal language models, by their model types."""
    return {
        model_type: Family(model_type, architecture)
        for model_type, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    }


def known_families() -> dict[str, Family]:
    """Those that the engine has, without configs of a whole that name its text part's class."""
    known = set(_core.known_architectures())
    return {
        name: family
        for name, family in families().items()
        if family.architecture in known
        and "text_config" not in family.config_class.sub_configs_defaults
    }


def refusal_of_class(family: Family, directory: Path) -> str:
    """Why the engine refuses a config.json that names this class and says no more."""
    directory.mkdir(parents=True, exist_ok=True)
    write_config(directory, family_keys(family))
    save_file({"unread": torch.zeros(1)}, directory / "model.safetensors")
    try:
        Engine(directory, max_model_len=8, skip_tokenizer_init=True)
    except CheckpointError as error:
        return str(error)
    return "loads"


# -- Models


def family_keys(family: Family) -> Settings:
    return {"architectures": [family.architecture], "model_type": family.model_type}


def write_config(directory: Path, settings: Settings) -> None:
    (directory / "config.json").write_text(json.dumps(settings, indent=1))


def read_config(family: Family, settings: Settings) -> Any:
    """As transformers reads it; it changes what it is given."""
    return family.config_class.from_dict(copy.deepcopy(settings))


def count_parameters(family: Family, settings: Settings) -> int:
    with torch.device("meta"):
        return int(AUTO_MODEL.from_config(read_config(family, settings)).num_parameters())


def build(family: Family, settings: Settings, seed: int) -> Any:
    """A model with random weights, in float32."""
    config = read_config(family, settings)
    config._experts_implementation = "eager"  # the others ask for certain sizes
    model = AUTO_MODEL.from_config(config, attn_implementation="eager").float().eval()
    num_experts = SIZES["num_experts"]
    persistent = set(model.state_dict())
    buffers = [
        (name, buffer)
        for name, buffer in model.named_buffers()
        if name in persistent and buffer.is_floating_point()
    ]
    generator = torch.Generator().manual_seed(seed)
    embedding = model.get_input_embeddings().weight
    is_tied = model.get_output_embeddings().weight is embedding
    with torch.no_grad():
        for _, parameter in [*model.named_parameters(), *buffers]:
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter is embedding:  # so small that the first norm shows its epsilon
                parameter.copy_(0.05 * noise)
            elif parameter.dim() < 2:  # norms stay around 1, or 0 where they are stored less one
                parameter.add_(0.2 * noise)
            else:
                # Choices of experts differ by more than rounding; larger logits of a router would
                # hide how it scales them, and sigmoids of them would be equal.
                gain = 2 if parameter.shape[0] == num_experts and parameter.dim() == 2 else 1
                parameter.copy_(gain * parameter.shape[-1] ** -0.5 * noise)
        if not is_tied:
            model.get_output_embeddings().weight.mul_(2)
    return model


def reference_logprobs(model: Any) -> Array:
    """Logprobs of the token after each position but the last, [num_tokens - 1, vocab]."""
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS]), use_cache=False).logits[0, :-1]
    result: Array = logits.double().log_softmax(-1).numpy()
    return result


def rounding_error(model: Any, expected: Array) -> float:
    """What float32 itself changes: much in deep networks with random weights."""
    return relative_error(expected, reference_logprobs(copy.deepcopy(model).double()))


# -- Spellings of one config


def comparable(config: Any) -> Settings:
    """What a config says of the computation, as JSON has it."""
    whole = json.loads(config.to_json_string(use_diff=False))
    volatile = ("architectures", "dtype", "transformers_version", "_name_or_path", "model_type")
    return {key: value for key, value in whole.items() if key not in volatile}


def sparse_spelling(family: Family, settings: Settings, changed: frozenset[str]) -> Settings:
    """Without the keys that are at the class's defaults, unless the case is about them."""
    missing = object()
    return family_keys(family) | {
        key: value
        for key, value in settings.items()
        if key in changed or value != family.defaults.get(key, missing)
    }


def old_spelling(full: Settings) -> Settings | None:
    """As transformers 4 has it, where that differs and ropes do not depend on the layer."""
    ropes = full.get("rope_parameters")
    if not ropes or any(isinstance(value, dict) for value in ropes.values()):
        return None
    scaling = dict(ropes)
    old = {key: value for key, value in full.items() if key not in ("rope_parameters", "dtype")}
    for key in ("rope_theta", "partial_rotary_factor"):
        if scaling.get(key) is not None:
            old[key] = scaling.pop(key)
    old["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    old["torch_dtype"] = full.get("dtype", "float32")
    return old


# -- One case


@dataclass(frozen=True)
class Case:
    """Changes of keys of config.json, and what is no longer said beside them."""

    changes: Settings
    left_out: frozenset[str] = frozenset()

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self.changes) | self.left_out

    def __str__(self) -> str:
        changes = [f"{key} = {json.dumps(value)}" for key, value in self.changes.items()]
        return ", ".join(changes + [f"no {key}" for key in sorted(self.left_out)]) or "base"

    def with_changes_of(self, other: "Case") -> "Case":
        return Case(self.changes | other.changes, self.left_out | other.left_out)


@dataclass
class Outcome:
    """Of the spellings of one case."""

    compared: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: str = ""  # what transformers said

    @property
    def loads(self) -> bool:
        return bool(self.compared) and not self.refused


def relative_error(found: Array, expected: Array) -> float:
    """Of the logprobs that were asked for; the others are NaN."""
    if found.shape != expected.shape or np.isinf(found).any():
        return float("inf")
    asked = ~np.isnan(found)
    if not asked.any(axis=1).all():
        return float("inf")
    return float(np.abs(found - expected)[asked].max() / np.ptp(expected))


def named_key(message: str) -> str:
    """The key that a refusal names, without the objects around it."""
    named = re.search(r"config\.json: ([\w.\-]+): ", message)
    return "" if named is None else named.group(1)


def names_one(message: str, keys: set[str]) -> bool:
    """Whether a refusal is about one of the keys, be it one within an object."""
    named = named_key(message)
    return bool(named) and (named in keys or bool(set(named.split(".")) & keys))


def keys_within(value: Any) -> set[str]:
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys_within(inner) for inner in value.values()))


class Comparison:
    """The cases of a family, each in a directory that the next one overwrites."""

    def __init__(self, family: Family, directory: Path) -> None:
        self.family = family
        self.directory = directory
        self.base = comparable(build(family, family.base, seed=0).config)

    def settings(self, case: Case) -> Settings:
        kept = {k: v for k, v in self.family.base.items() if k not in case.left_out}
        return kept | case.changes

    def run(self, case: Case, num_logprobs: int = NUM_LOGPROBS) -> Outcome:
        """Compares a case; what differs has to differ with other weights, too.

        A token may be as close to two experts as rounding is.
        """
        outcome = self._run_once(case, num_logprobs, seed=1)
        if any("differs" in problem for problem in outcome.problems):
            return self._run_once(case, num_logprobs, seed=2)
        return outcome

    def _run_once(self, case: Case, num_logprobs: int, seed: int) -> Outcome:
        settings = self.settings(case)
        try:
            if case.left_out and count_parameters(self.family, settings) > MOST_PARAMETERS:
                return Outcome(skipped="too many parameters")
            model = build(self.family, settings, seed)
            expected = reference_logprobs(model)
            shutil.rmtree(self.directory, ignore_errors=True)
            model.save_pretrained(self.directory)
        except Exception as error:  # whatever transformers raises for what it does not take
            return Outcome(skipped=f"{type(error).__name__}: {error}")
        if not np.isfinite(expected).all():
            return Outcome(skipped="not finite")
        meant = comparable(model.config)
        full = json.loads((self.directory / "config.json").read_text())
        spellings = {
            "sparse": sparse_spelling(self.family, settings, case.keys),
            "full": full,
            "old": old_spelling(full),
        }
        implied = {key for key in meant | self.base if meant.get(key) != self.base.get(key)}
        names = set(case.keys) | implied | keys_within(case.changes)
        names.update(*(IMPLIED.get(key, ()) for key in case.keys))
        names.update(alias for alias, key in self.family.aliases.items() if key in names)
        outcome = Outcome()
        for spelling, config in spellings.items():
            if config is None or not self._means(config, meant):
                continue
            try:
                found = self._ask_engine(config, num_logprobs)
            except CheckpointError as error:
                if names_one(str(error), names):
                    outcome.refused.append(str(error))
                else:
                    text = f"is refused, but by another name: {error}"
                    outcome.problems.append(f"{spelling}: {case}: {text}")
            except Exception as error:  # a bug of the engine's, to be shown with all others
                text = f"fails: {type(error).__name__}: {error}"
                outcome.problems.append(f"{spelling}: {case}: {text}")
            else:
                outcome.compared.append(spelling)
                difference = relative_error(found, expected)
                if difference > TOLERANCE and 3 * rounding_error(model, expected) < difference:
                    text = f"loads and differs by {difference:.1e}"
                    outcome.problems.append(f"{spelling}: {case}: {text}")
        return outcome

    def _means(self, config: Settings, meant: Settings) -> bool:
        """Whether transformers reads the same from this spelling."""
        try:
            return comparable(read_config(self.family, config)) == meant
        except Exception:  # as above
            return False

    def _ask_engine(self, config: Settings, num_logprobs: int) -> Array:
        write_config(self.directory, config)
        return likeliest_logprobs(
            self.directory,
            TOKENS,
            num_logprobs,
            dtype="float32",
            num_threads=1,
            max_num_batched_tokens=64,
            skip_tokenizer_init=True,
        )


# -- The sweep


def others(family: Family, key: str, value: Any) -> Iterator[Any]:
    """Values of a key of the class that are not `value`, which it has in the base."""
    if key in VALUES:
        yield from VALUES[key]
    elif re.search(r"(^|_)act(ivation)?(_|$)", key):
        yield from ACTIVATIONS
    elif key.endswith("layer_types"):
        for pattern in MLP_PATTERNS if "mlp" in key else LAYER_PATTERNS:
            yield (pattern * MANY_LAYERS)[: family.num_layers]
    elif value is None:
        yield from others_than_none(family.types.get(key, ""))
    else:
        yield from others_than(value, is_size=key in family.base, is_epsilon="eps" in key)
        if "None" in family.types.get(key, ""):
            yield None
    if re.search(r"\bstr\b|Literal", family.types.get(key, "")):
        yield from words_of(family, key)


def others_than(value: Any, *, is_size: bool, is_epsilon: bool) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, 2 * value) if is_size or value > 8 else (value + 1, 2, 0)
    elif isinstance(value, float):
        usual = [1.3 * value, 0.2 * value] if value else [0.5]
        yield from [0.05] if is_epsilon else usual
    elif isinstance(value, list) and value:
        yield value[::-1]
        yield value[1:] + value[:1]


def others_than_none(kind: str) -> Iterator[Any]:
    """Values of a type, as Python writes it."""
    if "bool" in kind:
        yield from (True, False)
    if "list[int]" in kind:
        yield from ([1], [0, 1, 1, 0])
    elif "list[float" in kind:
        yield [50.0, 1e3, 1e4, 1e5]
    elif "int" in kind:
        yield 2
    if re.search(r"(^|\W)float", kind):
        yield 0.7


def words_of(family: Family, key: str) -> list[str]:
    """Values that transformers' code compares the key with, and one that it does not know."""
    quoted = rf'\b{key}\b["\')\]]*\s*(?:==|!=|in)\s*[\[({{]?((?:\s*"[\w-]*",?)+)'
    literal = re.findall(r"'([\w-]+)'", family.types.get(key, ""))
    found = [
        word for group in re.findall(quoted, family.source) for word in re.findall(r"\w+", group)
    ]
    return sorted({*found, *literal, "other"})


def rope_values(base: Settings) -> Iterator[Settings]:
    """Other ropes, for each kind of layer where they depend on it."""
    ropes = base.get("rope_parameters") or {}
    labels = [label for label, value in ropes.items() if isinstance(value, dict)]
    for label in labels or [""]:
        usual = ropes[label] if label else ropes
        head_dim = base.get("head_dim") or base["hidden_size"] // base["num_attention_heads"]
        rotary = int(head_dim * (usual.get("partial_rotary_factor") or 1))
        kept = {
            key: usual[key] for key in ("rope_theta", "partial_rotary_factor") if usual.get(key)
        }
        short = {"original_max_position_embeddings": 64}
        frequencies = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        growing = [1 + 0.3 * index for index in range(rotary // 2)]
        for change in (
            {"rope_type": "default", "rope_theta": 50.0},
            {"rope_type": "default", "partial_rotary_factor": 0.5},
            {"rope_type": "linear", "factor": 2.5},
            {"rope_type": "dynamic", "factor": 2.0},
            {"rope_type": "llama3", "factor": 8.0, **frequencies, **short},
            {"rope_type": "yarn", "factor": 4.0, **short},
            {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.9, **short},
            {"rope_type": "yarn", "factor": 4.0, "truncate": False, "beta_fast": 8.0, **short},
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.4, **short},
            {
                "rope_type": "longrope",
                "factor": 4.0,
                "short_factor": growing,
                "long_factor": growing[::-1],
                **short,
            },
            {
                "rope_type": "longrope",
                "short_factor": growing,
                "long_factor": growing[::-1],
                "original_max_position_embeddings": 200,
            },
            {"rope_type": "proportional", "partial_rotary_factor": 0.5},
        ):
            parameters = {**kept, **change}
            yield {**ropes, label: parameters} if label else parameters
        if label:  # beside the layers' own
            stretched = {**kept, "rope_type": "yarn", "factor": 4.0, **short}
            yield {**ropes, label: stretched, "truncate": False}


def value_in(base: Settings, family: Family, key: str) -> Any:
    return base.get(key, base.get(family.aliases.get(key, ""), family.defaults.get(key)))


def without(family: Family, key: str) -> Case:
    """The class's default of a size, with as many heads as share its number of keys' heads."""
    changes = {}
    if key == "num_key_value_heads":
        changes["num_attention_heads"] = family.defaults[key] or 4
    return Case(changes, left_out=frozenset({key}))


def own_cases(family: Family, base: Settings) -> Iterator[Case]:
    """Changes of the keys that the class has."""
    for key in family.defaults:
        if WITHOUT_EFFECT.search(key):
            continue
        values = (
            rope_values(base)
            if key == "rope_parameters"
            else others(family, key, value_in(base, family, key))
        )
        for value in values:
            if value != value_in(base, family, key):
                yield Case({key: value})
        if key in family.base:
            yield without(family, key)


def other_cases(family: Family, base: Settings) -> Iterator[Case]:
    """Changes of keys that the class reads, but does not have."""
    for alias, key in family.aliases.items():
        if alias not in family.defaults and key in family.defaults:
            for value in others(family, key, value_in(base, family, key)):
                if value != value_in(base, family, key):
                    yield Case({alias: value}, left_out=frozenset({key}))
    read = set(re.findall(r'kwargs\.(?:pop|get)\("(\w+)"', inspect.getsource(family.config_class)))
    for key in sorted(read | set(SHARED) | {"partial_rotary_factor", "rope_scaling", "rope_theta"}):
        if key not in family.defaults and not WITHOUT_EFFECT.search(key):
            for value in SHARED.get(key) or VALUES.get(key, [2, 0.5, True]):
                yield Case({key: value})
    for value in ({"intermediate_size": 80}, {"skip": ["mlp"]}):
        yield Case({"per_layer_config": {"1": value}})


@dataclass
class Report:
    """What a sweep of a family found."""

    family: Family
    num_compared: int = 0
    problems: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    loaded: dict[str, list[Any]] = field(default_factory=dict)
    refused: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, case: Case, outcome: Outcome) -> None:
        self.num_compared += len(outcome.compared)
        self.problems += [f"{self.family.model_type}: {text}" for text in outcome.problems]
        if outcome.skipped:
            self.skipped.append(f"{case}: {outcome.skipped}")
        if len(case.changes) == 1 and set(case.changes) <= set(self.family.defaults):
            ((key, value),) = case.changes.items()
            for list_of, of_kind in (
                (self.loaded, outcome.compared),
                (self.refused, outcome.refused),
            ):
                if of_kind:
                    list_of.setdefault(key, []).append(value)


def sweep(family: Family, directory: Path, keys: set[str] | None = None) -> Report:
    """Runs all cases of a family, or those of some keys."""
    comparison = Comparison(family, directory)
    report = Report(family)
    report.add(Case({}), comparison.run(Case({}), num_logprobs=-1))
    if report.problems:  # all other cases would have them, too
        return report
    own = list(own_cases(family, comparison.base))
    right = []
    for case in [*own, *other_cases(family, comparison.base)]:
        if keys is not None and not keys & case.keys:
            continue
        outcome = comparison.run(case)
        report.add(case, outcome)
        if outcome.loads and not outcome.problems:
            right.append(case)
    if keys is None:
        for case in [*switched_on(own, right), *combinations(family, right)]:
            report.add(case, comparison.run(case))
    return report


def switched_on(own: list[Case], right: list[Case]) -> Iterator[Case]:
    """Changes of keys that are about the same as a switch ("use_...") that can be on."""
    for case in right:
        switch = next(iter(case.changes), "")
        if not switch.startswith("use_") or case.changes[switch] is not True:
            continue
        words = {word for word in switch.split("_") if len(word) > 4} | {"layer_types"}
        for other in own:
            if other.keys.isdisjoint(case.keys) and any(
                word in key for word in words for key in other.keys
            ):
                yield case.with_changes_of(other)


def combinations(family: Family, right: list[Case]) -> Iterator[Case]:
    """Of changes of three keys that are right one by one."""
    generator = random.Random(family.model_type)
    for _ in range(NUM_COMBINATIONS if len(right) >= 3 else 0):
        first, second, third = generator.sample(right, 3)
        if len(first.keys | second.keys | third.keys) == 3:
            yield first.with_changes_of(second).with_changes_of(third)
