"""`speculative_config`: how tokens are drafted ahead and verified. Keys and defaults are vLLM's.

    LLM(model, speculative_config={"method": "ngram", "num_speculative_tokens": 5})

What to draft with, `method`. Where it is left out it is inferred from `model`: from what its
config.json says (model_type, architectures, speculators_model_type), else from a name with
"eagle3", "eagle-", "dflash" or "dspark" in it; any other is a draft model.

ngram: repeats what followed the last few tokens before, in prompt or output.
    prompt_lookup_min, prompt_lookup_max: tokens matched, both 5; one alone sets the other too. At
        most 128.
suffix: the same from a tree of all suffixes, with counts, and from finished answers of others.
    suffix_decoding_max_tree_depth (24), suffix_decoding_max_cached_requests (10000, 0 for none),
    suffix_decoding_max_spec_factor (1.0), suffix_decoding_min_token_prob (0.1).
draft_model: a smaller model with the same vocabulary. Where both have a tokenizer it is compared.
    model, revision.
    max_model_len: it drafts no further than this position. Other methods take it and need it not.
    draft_tensor_parallel_size (0): ranks that share the draft model, the first of the target's; 0
        for one, which waits for no others. Other methods take it and need it not.
    quantization ("int8"): of its weights, as Engine's. What rounding changes is which drafts are
        accepted, never an answer: exact verification compares with the target's own draws, and
        rejection sampling with the distribution the draft was drawn from. "none" keeps the draft
        model at the engine's dtype, "auto" as it is stored, "int4" is smallest.
    draft_sample_method: how it picks tokens after the request's own temperature, top_p and so on.
        "greedy": the most likely one.
        "probabilistic": drawn; in exact verification with the noise the target will use, which is
        also called "coupled" and agrees with it far more often than independent noise.
        The default is "probabilistic", except in synthetic verification; vLLM's is "greedy".
    min_confidence (0): drafting stops where the probability of the whole draft falls below.
    parallel_drafting (false): the model is made to draft all positions in one pass, over mask
        tokens (PARD).
eagle: a layer over the target's last hidden states (EAGLE-1; as trees, EAGLE-2).
eagle3: the same over states of several layers of the target (EAGLE-3).
    parallel_drafting (false): the head drafts all positions in one pass (P-EAGLE). It is true for
        checkpoints whose speculators_model_type is "peagle".
medusa: a head for each position, all of which read one hidden state.
mlp_speculator: a small recurrent network over one hidden state (IBM's accelerators).
    These four are heads, trained for one target. `model` is a head's checkpoint: config.json with
    *.safetensors, *.bin or *.pt. The keys of draft_model are theirs, too. Where they have no
    embedding or output matrix of their own, they draft with the target's, as the engine holds it.
    num_speculative_tokens must not be above n_predict or num_heads of config.json.
    speculative_token_map: of eagle, and of medusa where heads score tokens with the target's
        output matrix: the tokens that are drafted. The head gets a copy of their rows of the
        matrix, in `quantization`. The map is a list of ids; a file of them, a list in .json, .npy
        or .pt or words in .txt; or {"text": file or list of files, "size": 8192} for the tokens
        that are most frequent in texts, which should be like the answers. It changes no answer.
custom_class: `model` is the dotted path of a class that is made without arguments, or `drafter` is
    an object with propose(tokens, max_tokens), or a function of the same arguments. It returns the
    tokens it expects next, or a list of such lists, the most likely first. It runs inside the
    engine's step and must not call the engine. A class written for vLLM, which is made with a
    vllm_config and proposes for a batch, works, too: every request is a batch of one to it, and of
    the tokens just sampled it is told the last.

Several of them: `drafters`, a list of dicts with the keys above. The first that has a draft is
asked, or with `merge_drafters` all are, and their drafts make one tree.

How much to draft:

draft_length_policy: "auto", the default, which vLLM does not have: drafts are as long as is
    measured to pay, by what passes and drafts cost and how drafts fared; where none pay, none are
    verified, and a draft model is asked only now and then. "fixed": num_speculative_tokens always.
    Where tokens depend on how much is drafted, that is in any rejection_sample_method but "exact",
    only "fixed" is there, and the default.
num_speculative_tokens: the longest draft. It may be left out with "auto" (8 with a draft model,
    head or custom class, 16 with ngram), with suffix, which takes suffix_decoding_max_tree_depth,
    and with heads that say it themselves.
num_speculative_tokens_per_batch_size: [[first, last, tokens], ...] by how many requests decode;
    the first range starts at 1, gaps and the tail carry the range before, 0 drafts none.
tree_width (1): alternatives considered at each position; above 1 drafts are trees. What others call
    top-k of the draft (SGLang: speculative_eagle_topk).
max_draft_nodes: tokens of one draft tree (SGLang: speculative_num_draft_tokens);
    num_speculative_tokens * tree_width if left out.
speculative_token_tree: the shape of every draft tree, as a list or text such as "[(0,), (1,),
    (0, 0)]": a path of ranks for each node, where (1, 0) is the likeliest child of the root's
    second likeliest. For one draft model or head; it says how deep and wide drafts are.

How drafts are verified, `rejection_sample_method`:

"exact", the default, which vLLM does not have: every token is the one that would have come without
    speculation, sampled ones with the same seed too. Nothing but speed depends on the drafts.
"standard": rejection sampling. Tokens have the same distribution, but are not the same tokens.
"block": the same over a whole draft at a time; it accepts at least as much. Chains only.
"synthetic": accepts at given rates whatever the tokens; answers are wrong. For measuring speed.
    synthetic_acceptance_rates, the share of steps that accept position i, or
    synthetic_acceptance_length, the mean number of tokens a step emits.
"""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_native import _core
from specdec_native.common.checks import (
    INT32_MAX,
    check_choice,
    check_integer,
    check_number,
    check_option,
    close_matches,
)
from specdec_native.speculation.drafter_options import (
    DRAFTER_KEYS,
    ConfigFinder,
    DrafterOptions,
    ModelResolver,
    parse_drafter,
)
from specdec_native.speculation.fixed_keys import FIXED_KEYS, NO_FLY
from specdec_native.speculation.token_map import Encode

_ENGINE_KEYS = (
    "num_speculative_tokens",
    "draft_length_policy",
    "num_speculative_tokens_per_batch_size",
    "tree_width",
    "max_draft_nodes",
    "speculative_token_tree",
    "merge_drafters",
    "drafters",
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
)
KEYS = (*_ENGINE_KEYS, *DRAFTER_KEYS, *FIXED_KEYS)

_CORE_OPTIONS = {option.name: option for option in _core.SpeculativeConfig.options}
_MOST_TOKENS = int(_CORE_OPTIONS["num_speculative_tokens"].highest or 0)
# Tokens, where the length adapts and neither the user nor the drafter says how many.
_LONGEST_DRAFT = 8
_LONGEST_NGRAM = 16
_VERIFICATIONS = {
    "exact": "exact",
    "standard": "rejection",
    "block": "block",
    "synthetic": "synthetic",
}


@dataclasses.dataclass(frozen=True)
class SpeculativeOptions:
    """A checked speculative_config. `fields` are values for _core.SpeculativeConfig."""

    fields: Mapping[str, Any]
    drafters: Sequence[DrafterOptions]
    synthetic_acceptance_length: float | None = None

    @property
    def num_speculative_tokens(self) -> int:
        """Tokens of the longest draft."""
        return int(self.fields["num_speculative_tokens"])

    def to_core(self, resolve_model: ModelResolver, encode: Encode) -> _core.SpeculativeConfig:
        """The core's form; `encode` is the target's tokenizer, where one is needed."""
        fields = dict(self.fields)
        if self.synthetic_acceptance_length is not None:
            fields["synthetic_acceptance_rates"] = _core.synthetic_rates(
                self.synthetic_acceptance_length, self.num_speculative_tokens
            )
        drafters = [drafter.to_core(resolve_model, encode) for drafter in self.drafters]
        config = _core.SpeculativeConfig(drafters=drafters, **fields)
        config.validate()
        return config

    def drafts(self, config: _core.SpeculativeConfig) -> list[tuple[str, Path]]:
        """Draft models and heads: the field that names each, and its directory in `config`."""
        field = 'speculative_config["drafters"][{}]["model"]'
        if len(config.drafters) == 1:
            field = 'speculative_config["model"]'
        return [
            (field.format(i), Path(drafter.model))
            for i, drafter in enumerate(config.drafters)
            if drafter.model
        ]


def parse_speculative_config(config: Any, find_config: ConfigFinder) -> SpeculativeOptions:
    """Checks a speculative_config. Raises ValueError that says what to write instead.

    `find_config` finds config.json of draft models and heads, which says what they are.
    """
    if not isinstance(config, Mapping):
        raise ValueError(
            'speculative_config must be a dict such as {"method": "ngram", '
            f'"num_speculative_tokens": 5}}, got {config!r:.80}'
        )
    given = {key: value for key, value in config.items() if value is not None}
    _check_keys(given)
    verification = _verification(given.get("rejection_sample_method", "exact"))
    drafters = _parse_drafters(given, verification, find_config)
    if "speculative_token_tree" in given:
        given |= _static_tree(given)
    policy = _draft_length_policy(given, verification)
    fields: dict[str, Any] = {"verification": verification, "draft_length_policy": policy}
    num_tokens = _num_speculative_tokens(given, drafters, adapts=policy == "auto")
    fields["num_speculative_tokens"] = num_tokens
    if "num_speculative_tokens_per_batch_size" in given:
        fields["num_speculative_tokens_per_batch_size"] = _batch_size_table(
            given["num_speculative_tokens_per_batch_size"]
        )
    fields |= _tree_fields(given, len(drafters), verification)
    length = None
    if verification == "synthetic":
        length = _synthetic_length(given, num_tokens)
        if length is None:
            fields["synthetic_acceptance_rates"] = _conditional_rates(given, num_tokens)
    else:
        for key in ("synthetic_acceptance_rates", "synthetic_acceptance_length"):
            if key in given:
                raise ValueError(f'{key} needs "rejection_sample_method": "synthetic"')
    return SpeculativeOptions(fields, drafters, length)


# -- keys


def _check_keys(given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if key in FIXED_KEYS:
            allowed, advice = FIXED_KEYS[key]
            if value not in allowed:
                expected = " or ".join(map(repr, allowed)) or "None"
                reason = advice or f"it must be {expected}"
                raise ValueError(f"speculative_config: {key}={value!r} is not supported: {reason}")
        elif key not in KEYS:
            raise ValueError(
                f"speculative_config has an unknown key {key!r}; "
                + (close_matches(key, KEYS) or f"known are {', '.join(KEYS)}")
            )


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be True or False, got {value!r}")
    return value


# -- drafters


def _parse_drafters(
    given: Mapping[str, Any], verification: str, find_config: ConfigFinder
) -> list[DrafterOptions]:
    entries = given.get("drafters")
    if entries is None:
        return [parse_drafter(given, verification, find_config)]
    if isinstance(entries, (str, bytes, Mapping)) or not isinstance(entries, Sequence):
        raise ValueError(f"drafters must be a list of dicts, got {entries!r:.80}")
    if not entries:
        raise ValueError('drafters is empty; give at least one, such as {"method": "ngram"}')
    misplaced = [key for key in given if key in DRAFTER_KEYS]
    if misplaced:
        raise ValueError(
            f"{', '.join(misplaced)} beside drafters has no meaning; move it into one of them"
        )
    drafters = []
    for i, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise ValueError(f"drafters[{i}] must be a dict, got {entry!r:.80}")
        entry = {key: value for key, value in entry.items() if value is not None}  # noqa: PLW2901
        for key in entry:
            if key in _ENGINE_KEYS:
                raise ValueError(f"drafters[{i}]: {key} belongs beside drafters, not into one")
        try:
            _check_keys(entry)
            drafters.append(parse_drafter(entry, verification, find_config))
        except ValueError as error:
            raise ValueError(f"drafters[{i}]: {error}") from None
    return drafters


# -- how much, and how it is verified


def _verification(value: Any) -> str:
    if value == "fly":
        raise ValueError(NO_FLY)
    return check_choice("rejection_sample_method", value, _VERIFICATIONS)


def _draft_length_policy(given: Mapping[str, Any], verification: str) -> str:
    if "draft_length_policy" not in given:
        return "auto" if verification == "exact" else "fixed"
    policy = check_choice(
        "draft_length_policy", given["draft_length_policy"], {"auto": "auto", "fixed": "fixed"}
    )
    if policy == "auto" and verification != "exact":
        raise ValueError(
            'draft_length_policy "auto" goes by the clock, on which only tokens of "exact" '
            'verification do not depend: give "draft_length_policy": "fixed", or leave '
            '"rejection_sample_method" out'
        )
    return policy


def _num_speculative_tokens(
    given: Mapping[str, Any], drafters: Sequence[DrafterOptions], *, adapts: bool
) -> int:
    if "num_speculative_tokens" in given:
        value = given["num_speculative_tokens"]
        if value == 0 and not isinstance(value, bool):
            raise ValueError(
                "num_speculative_tokens must be at least 1, got 0; leave speculative_config out to "
                "decode without drafts"
            )
        num_tokens = check_integer("num_speculative_tokens", value, minimum=1, maximum=INT32_MAX)
        if len(drafters) == 1:  # of several, each drafts what it can
            drafters[0].check_length(num_tokens)
        return num_tokens
    proposals = [drafter.proposed_tokens for drafter in drafters]
    if adapts or None not in proposals:
        lengths = [
            tokens or (_LONGEST_NGRAM if drafter.method == "ngram" else _LONGEST_DRAFT)
            for drafter, tokens in zip(drafters, proposals, strict=True)
        ]
        return min(max(lengths), _MOST_TOKENS)
    raise ValueError(
        'num_speculative_tokens is missing: the longest draft, such as "num_speculative_tokens": 5'
    )


def _batch_size_table(value: Any) -> list[tuple[int, int, int]]:
    key = "num_speculative_tokens_per_batch_size"
    form = "a list of [first, last, tokens], such as [[1, 4, 5], [5, 16, 2], [17, 17, 0]]"
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence) or not value:
        raise ValueError(f"{key} must be {form}, got {value!r:.80}")
    table = []
    for i, entry in enumerate(value):
        try:
            first, last, tokens = map(operator.index, entry)
        except (TypeError, ValueError):
            raise ValueError(f"{key}[{i}] must be {form}, got {entry!r:.80}") from None
        if not (1 <= first <= last <= INT32_MAX and 0 <= tokens <= INT32_MAX):
            raise ValueError(
                f"{key}[{i}] must have 1 <= first <= last and tokens >= 0, got {list(entry)}"
            )
        table.append((first, last, tokens))
    return table


def _tree_fields(given: Mapping[str, Any], num_drafters: int, verification: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key in ("tree_width", "max_draft_nodes"):
        if key in given:
            fields[key] = check_option(_CORE_OPTIONS[key], given[key])
    if "speculative_token_tree" in given:
        fields["speculative_token_tree"] = given["speculative_token_tree"]
    if "merge_drafters" in given:
        fields["merge_drafters"] = _flag("merge_drafters", given["merge_drafters"])
        if fields["merge_drafters"] and num_drafters == 1:
            raise ValueError("merge_drafters needs several drafters: list them in drafters")
    if verification == "block" and (
        fields.get("tree_width", 1) > 1 or fields.get("merge_drafters")
    ):
        raise ValueError(
            'rejection_sample_method "block" verifies chains: give "tree_width": 1 without '
            'merge_drafters, or "rejection_sample_method": "standard"'
        )
    return fields


def _static_tree(given: Mapping[str, Any]) -> dict[str, Any]:
    """The paths of speculative_token_tree, and what they say of depth and width."""
    key, value = "speculative_token_tree", given["speculative_token_tree"]
    form = 'a list of paths of ranks, such as "[(0,), (1,), (0, 0)]"'
    try:
        paths = ast.literal_eval(value) if isinstance(value, str) else value
        tree = [list(map(operator.index, path)) for path in paths]
    except (TypeError, ValueError, SyntaxError):
        raise ValueError(f"{key} must be {form}, got {value!r:.80}") from None
    if not tree or not all(tree):
        raise ValueError(f"{key} must be {form}, without the root and not empty, got {value!r:.80}")
    if "max_draft_nodes" in given:
        raise ValueError(f"{key} says how many nodes there are: leave max_draft_nodes out")
    fields = {
        "num_speculative_tokens": max(map(len, tree)),
        "tree_width": 1 + max(map(max, tree)),
    }
    for name, needed in fields.items():
        if given.get(name, needed) != needed:
            raise ValueError(f"{key} makes {name} {needed}, got {given[name]!r}: leave {name} out")
    return {key: tree, **fields}


def _synthetic_length(given: Mapping[str, Any], num_tokens: int) -> float | None:
    """The mean acceptance length, or None where rates are given."""
    keys = ("synthetic_acceptance_rates", "synthetic_acceptance_length")
    if sum(key in given for key in keys) != 1:
        raise ValueError(
            f'rejection_sample_method "synthetic" needs either {keys[0]} or {keys[1]}, such as '
            f'"{keys[1]}": 2.5'
        )
    if keys[1] not in given:
        return None
    return check_number(keys[1], given[keys[1]], minimum=1.0, maximum=num_tokens + 1.0)


def _conditional_rates(given: Mapping[str, Any], num_tokens: int) -> list[float]:
    """Rates of each position given that all before were accepted; vLLM's are of all steps."""
    key, value = "synthetic_acceptance_rates", given["synthetic_acceptance_rates"]
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise ValueError(f"{key} must be a list of numbers, got {value!r:.80}")
    if len(value) != num_tokens:
        raise ValueError(
            f"{key} has {len(value)} entries for num_speculative_tokens={num_tokens}; give one for "
            "each"
        )
    rates = [check_number(f"{key}[{i}]", x, minimum=0.0, maximum=1.0) for i, x in enumerate(value)]
    conditional = []
    before = 1.0
    for rate in rates:
        if rate > before:
            raise ValueError(
                f"{key} must not rise, got {rates}: a position is accepted only with all before it"
            )
        conditional.append(rate / before if before > 0.0 else 0.0)
        before = rate
    return conditional
