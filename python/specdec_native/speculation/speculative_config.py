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
    suffix_corpus: a file or folder of texts from which is drafted, too; in .jsonl files a line has
        "text", or "messages" with "content". It is indexed at start, up to 256 MiB of memory.
    suffix_store: a file in which finished answers outlive the engine. It is read at start, and
        answers are added to it. Engines that run at the same time may share it, such as replicas.
        Answers of requests with a cache_salt are not written, and are drafted for requests of the
        same salt alone.
    store_tokenizer: names the tokenizer of the store; a hash of the vocabulary if left out.
replay: the answers that the same prompt got before, such as those of the last epoch of
    reinforcement learning. It is implied by either of its keys; without them it knows the answers
    of the running engine.
    record: a file to which answers are added, with a hash of their prompts; those it has are
        drafted, too. As suffix_store it may be shared, and has no answers with a cache_salt.
    replay: a file that another engine has recorded; it is only read.
    store_tokenizer: as with suffix.
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
        "probabilistic", the default: drawn; in exact verification with the noise the target will
        use, which agrees with it far more often than independent noise. vLLM's default is
        "greedy". "coupled" is an older word for "probabilistic".
    min_confidence (0): drafting stops where the probability of the whole draft falls below.
    parallel_drafting (false): the model is made to draft all positions in one pass, over mask
        tokens (PARD).
eagle: a layer over the target's last hidden states (EAGLE-1; as trees, EAGLE-2).
eagle3: the same over states of several layers of the target (EAGLE-3).
    parallel_drafting (false): the head drafts all positions in one pass (P-EAGLE). It is true for
        checkpoints whose speculators_model_type is "peagle".
medusa: a head for each position, all of which read one hidden state.
mlp_speculator: a small recurrent network over one hidden state (IBM's accelerators).
mtp: the layer for the token after the next that checkpoints of Qwen3-Next, Qwen3.5, MiMo,
    GLM-4.5 and ERNIE 4.5 have beside the model's own; deeper drafts run it again on its own output.
    It is read from the target's checkpoint, or from that of `model`. For a Gemma 4, `model` is its
    assistant (google/gemma-4-*-it-assistant), a small network that reads the target's keys and
    values. "qwen3_next_mtp", "qwen3_5_mtp", "mimo_mtp", "glm4_moe_mtp", "ernie_mtp" and
    "gemma4_mtp" mean the same.
dflash: masks after the last token, all drafted in one pass over states of the target (DFlash).
dspark: the same with a Markov head, by which a draft depends on the one before (DSpark).
    These seven are heads, trained for one target. But for mtp, `model` is a head's checkpoint:
    config.json with *.safetensors, *.bin or *.pt. The keys of draft_model are theirs, too. Where
    they have no embedding or output matrix of their own, they draft with the target's, as the
    engine holds it. num_speculative_tokens must not be above n_predict or num_heads of config.json,
    nor above what a pass of block_size rows drafts.
    speculative_token_map: of eagle, mtp and dflash, and of medusa where heads score tokens with the
        target's output matrix: the tokens that are drafted. The head gets a copy of their rows of
        the matrix, in `quantization`. The map is a list of ids; a file of them, a list in .json,
        .npy or .pt or words in .txt; {"text": file or list of files, "size": 8192} for the
        tokens that are most frequent in texts, which should be like the answers; {"size": 32768}
        for so many that seem likely without a text; or "all". "auto", the default, takes all
        where they cost at most 5% of a pass of the target, else as many likely ones as 5% pay for,
        at least a quarter of them. It changes no answer.
auto: the drafters that come with the target, together in one tree: the layer of its checkpoint that
    mtp uses, the head of this package for it, suffix and ngram. "model" names a draft model or
    head to use in place of what comes with the target. With a model or head tree_width is 4 if left
    out. Other keys go to the drafters that take them. `"drafters": "auto"` is the same.
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
    head or custom class, 16 with ngram), with replay, which takes 32, with suffix, which takes
    suffix_decoding_max_tree_depth, and with heads that say it themselves.
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
    check_integer,
    check_number,
    close_matches,
)
from specdec_native.speculation.auto_drafters import asks_for_auto, name_drafters
from specdec_native.speculation.drafter_options import (
    DRAFTER_KEYS,
    ConfigFinder,
    DrafterOptions,
    ModelResolver,
    checked_field,
    parse_drafter,
)
from specdec_native.speculation.fixed_keys import FIXED_KEYS, NO_FLY
from specdec_native.speculation.likely_tokens import DraftTarget
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
_RATES = "synthetic_acceptance_rates"
_TABLE = "num_speculative_tokens_per_batch_size"
_TREE = "speculative_token_tree"
# Tokens of the longest draft where the length adapts and neither user nor drafter sets it.
_LONGEST_DRAFT = 8
_LONGEST_NGRAM = 16


@dataclasses.dataclass(frozen=True)
class SpeculativeOptions:
    """A checked speculative_config. `fields` are values for _core.SpeculativeConfig."""

    fields: Mapping[str, Any]
    drafters: Sequence[DrafterOptions]

    @property
    def num_speculative_tokens(self) -> int:
        """Tokens of the longest draft."""
        return int(self.fields["num_speculative_tokens"])

    def check(self) -> None:
        """Raises ValueError for options that do not fit each other, before anything is fetched."""
        self._checked([drafter.unresolved() for drafter in self.drafters])

    def to_core(
        self, resolve_model: ModelResolver, encode: Encode, target: DraftTarget | None = None
    ) -> _core.SpeculativeConfig:
        """The core's form; `encode` is the target's tokenizer, where one is needed."""
        return self._checked(
            [drafter.to_core(resolve_model, encode, target) for drafter in self.drafters]
        )

    def _checked(self, drafters: list[_core.DrafterConfig]) -> _core.SpeculativeConfig:
        config = _core.SpeculativeConfig(drafters=drafters, **self.fields)
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

    `find_config` finds config.json of draft models and heads, which names their kind. The core
    checks combinations of options: SpeculativeConfig::validate(). Of "auto" the drafters are known
    that need nothing from the target; name_drafters() adds the others.
    """
    if not isinstance(config, Mapping):
        raise ValueError(
            'speculative_config must be a dict such as {"method": "ngram", '
            f'"num_speculative_tokens": 5}}, got {config!r:.80}'
        )
    given = {key: value for key, value in config.items() if value is not None}
    _check_keys(given)
    if asks_for_auto(given):
        given = name_drafters(given, find_config)
    if given.get("rejection_sample_method") == "fly":
        raise ValueError(NO_FLY)
    if _TREE in given:
        given = _of_tree(given[_TREE]) | given | {_TREE: _paths(given[_TREE])}
    drafters = _parse_drafters(given, find_config)
    fields = {
        key: checked_field(option, given[key])
        for key, option in _CORE_OPTIONS.items()
        if key in given and key not in (_RATES, "num_speculative_tokens")
    }
    fields["draft_length_policy"] = policy = _draft_length_policy(fields)
    fields["num_speculative_tokens"] = _num_speculative_tokens(
        given, drafters, adapts=policy == "auto"
    )
    if _RATES in given:
        fields[_RATES] = _rates(given[_RATES])
    if _TABLE in given:
        fields[_TABLE] = _batch_size_table(given[_TABLE])
    if _TREE in given:
        fields[_TREE] = given[_TREE]
    options = SpeculativeOptions(fields, drafters)
    options.check()
    return options


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


# -- drafters


def _parse_drafters(given: Mapping[str, Any], find_config: ConfigFinder) -> list[DrafterOptions]:
    entries = given.get("drafters")
    if entries is None:
        return [parse_drafter(given, find_config)]
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
            drafters.append(parse_drafter(entry, find_config))
        except ValueError as error:
            raise ValueError(f"drafters[{i}]: {error}") from None
    return drafters


# -- how much, and how it is verified


def _draft_length_policy(fields: Mapping[str, Any]) -> str:
    is_exact = fields.get("rejection_sample_method", "exact") == "exact"
    policy = str(fields.get("draft_length_policy", "auto" if is_exact else "fixed"))
    if policy == "auto" and not is_exact:
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
        if len(drafters) == 1:  # with several drafters, each drafts as far as it can
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


def _batch_size_table(value: Any) -> list[list[int]]:
    form = "a list of [first, last, tokens], such as [[1, 4, 5], [5, 16, 2], [17, 17, 0]]"
    table = _integer_lists(_TABLE, value, form)
    if not table or any(len(entry) != 3 for entry in table):
        raise ValueError(f"{_TABLE} must be {form}, got {value!r:.80}")
    return table


def _paths(value: Any) -> list[list[int]]:
    form = 'a list of paths of ranks, such as "[(0,), (1,), (0, 0)]", without the root'
    try:
        paths = ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        paths = None
    tree = _integer_lists(_TREE, paths, form)
    if not tree:
        raise ValueError(f"{_TREE} must be {form}, and not empty, got {value!r:.80}")
    return tree


def _of_tree(value: Any) -> dict[str, int]:
    """The depth and width of a tree."""
    tree = _paths(value)
    return {
        "num_speculative_tokens": max(map(len, tree)),
        "tree_width": 1 + max((order for path in tree for order in path), default=0),
    }


def _integer_lists(key: str, value: Any, form: str) -> list[list[int]]:
    try:
        if isinstance(value, (str, bytes, Mapping)):
            raise TypeError
        lists = [list(map(operator.index, entry)) for entry in value]
    except TypeError:
        raise ValueError(f"{key} must be {form}, got {value!r:.80}") from None
    if any(abs(number) > INT32_MAX for entry in lists for number in entry):
        raise ValueError(f"{key} has a number beyond {INT32_MAX}")
    return lists


def _rates(value: Any) -> list[float]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise ValueError(f"{_RATES} must be a list of numbers, got {value!r:.80}")
    return [check_number(f"{_RATES}[{i}]", x, minimum=0, maximum=1) for i, x in enumerate(value)]
