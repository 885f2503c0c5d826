"""Draft heads of every format, for targets of every family, compute what the oracles do."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import head_oracles
import make_fp8
import make_heads
from conftest import HeadMaker
from make_heads import ASSISTANTS, HEADS, IDS, MTP_HEADS
from specdec_native import _core, _core_testing
from specdec_native.checkpoints import hub

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TEXT = [(7 * i * i + 3 * i + 5) % 160 for i in range(40)]
PROMPTS = [[(5 * i * i + 31 * i + 7 * k) % 160 for i in range(6 + 2 * k)] for k in range(20)]
LOGITS_ERROR = 1e-4

ONE_PASS_KINDS = ("p_eagle", "pard", "dflash", "dspark")
IN_ONE_PASS = [name for name, variant in HEADS.items() if variant.kind in ONE_PASS_KINDS]
FORMATS = [name for name in HEADS if name not in (*IN_ONE_PASS, *MTP_HEADS, *ASSISTANTS)]
# One of each kind, with the most that can go wrong.
KINDS = [
    "eagle_two_layers",
    "eagle31_input_norm",
    "eagle3_modelopt",
    "mlp_tied",
    "medusa_token_map",
]
FAMILIES = [
    *("llama_deep", "llama_biases", "llama_llama3", "mistral", "qwen2", "qwen3", "opt"),
    *("gemma2", "gemma3", "phi3", "granite", "olmo2", "gpt_neox", "mixtral", "qwen3_moe"),
]
# What the heads borrow: embedding and LM head, neither, only the LM head, nothing at all.
# Each in the checkpoint of a target that has experts or has none, with heads turned in part.
MTP_TARGETS = [
    *[("mtp", target) for target in ("qwen3_5", "qwen3_5_half_rotated", "qwen3_5_moe")],
    *[("mtp", target) for target in ("qwen3_next", "qwen3_next_dense_layers")],
    *[("mtp_experts_apart", target) for target in ("qwen3_next", "glm4_moe")],
    ("mtp", "qwen2"),  # as a MiMo
    *[("mtp", target) for target in ("ernie4_5", "ernie4_5_moe")],
]
# Targets with keys and values of their own in all layers, in the first two of four, beside experts.
ASSISTED = [
    *[(name, target) for name in ASSISTANTS for target in ("gemma4", "gemma4_effective")],
    ("assistant", "gemma4_unified"),
    ("assistant_clusters", "gemma4_moe"),
]
FAMILY_HEADS = ["eagle", "eagle3_all_tokens", "speculators_qwen3", "medusa_version_2", "mlp_scaled"]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A head of a target, for the engine and as the oracle has it."""

    target: Path
    variant: make_heads.HeadVariant
    directory: Path
    oracle: head_oracles.DraftHead

    def config(
        self, num_tokens: int = 4, tree_width: int = 1, max_draft_nodes: int = 0, **options: Any
    ) -> _core.EngineConfig:
        in_target = self.variant.kind == "mtp"
        drafter = _core.DrafterConfig(
            method=self.variant.method,
            model="" if in_target else str(hub.resolve_model(self.directory)),
            quantization="none",
            parallel_drafting=self.variant.kind in ("p_eagle", "pard"),
        )
        speculative = _core.SpeculativeConfig(
            num_speculative_tokens=self.num_tokens(num_tokens),
            tree_width=tree_width,
            max_draft_nodes=max_draft_nodes,
            drafters=[drafter],
        )
        model = str(self.directory if in_target else self.target)
        return _core.EngineConfig(model=model, dtype="float32", speculative=speculative, **options)

    def num_tokens(self, wanted: int) -> int:
        return min(wanted, self.oracle.max_depth or wanted)

    def logits(
        self, tokens: Sequence[int], drafts: Sequence[int], **options: Any
    ) -> npt.NDArray[np.float32]:
        logits = _core_testing.head_logits(self.config(**options), list(tokens), list(drafts))
        return np.array(logits, np.float32).reshape(len(tokens) - 1 + len(drafts), -1)

    def drafts(self, tokens: Sequence[int], num_tokens: int, **options: Any) -> dict[Any, float]:
        """The paths of a tree, with their survivals."""
        tree = _core_testing.drafted_tree(self.config(num_tokens, **options), list(tokens))
        nodes = [head_oracles.Node(t, p - 1, 0, s) for t, p, s in zip(*tree, strict=True)]
        return head_oracles.paths_of(nodes)


Pairs = Callable[..., Pair]


@pytest.fixture(scope="module")
def pair(checkpoint: Callable[[str], Path], head: HeadMaker) -> Pairs:
    targets: dict[str, head_oracles.Target] = {}

    def make(name: str, target: str = "llama", directory: Path | None = None) -> Pair:
        if target not in targets:
            targets[target] = head_oracles.Target(checkpoint(target))
        directory = directory or head(name, target)
        oracle = head_oracles.load(HEADS[name].kind, directory, targets[target])
        return Pair(checkpoint(target), HEADS[name], directory, oracle)

    return make


def check_logits(pair: Pair) -> None:
    drafts = [3, 140, 5, 3, 9][: pair.num_tokens(6) - 1]
    expected = pair.oracle.logits(TEXT, drafts).numpy()
    logits = pair.logits(TEXT, drafts, num_tokens=6)
    is_scored = np.isfinite(expected)
    assert np.array_equal(np.isfinite(logits), is_scored)
    assert np.abs(logits[is_scored] - expected[is_scored]).max() < LOGITS_ERROR
    assert np.std(expected[is_scored]) > 0.5  # or an error would not be seen


def check_drafts(pair: Pair, prompts: Sequence[Sequence[int]]) -> None:
    for prompt in prompts:
        chain = pair.drafts(prompt, 5)
        assert list(chain)[-1] == tuple(pair.oracle.chain(prompt, pair.num_tokens(5)))
        levels = pair.num_tokens(4)
        expected = head_oracles.paths_of(pair.oracle.tree(prompt, 3, levels, 10))
        tree = pair.drafts(prompt, 4, tree_width=3, max_draft_nodes=10)
        assert tree == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(pair: Pairs, name: str) -> None:
    check_logits(pair(name))
    check_drafts(pair(name), PROMPTS[::7])


@pytest.mark.parametrize("name", IN_ONE_PASS)
def test_all_levels_in_one_pass(pair: Pairs, name: str) -> None:
    check_drafts(pair(name), PROMPTS)


@pytest.mark.parametrize("target", ["qwen3_5", "lfm2", "gemma3", "mixtral"])
@pytest.mark.parametrize("name", ["dflash_windows", "dspark"])
def test_all_levels_in_one_pass_of_other_families(pair: Pairs, name: str, target: str) -> None:
    check_drafts(pair(name, target), PROMPTS[:5])


@pytest.mark.parametrize(("name", "target"), MTP_TARGETS)
def test_heads_in_their_targets_checkpoint(pair: Pairs, name: str, target: str) -> None:
    check_logits(pair(name, target))
    check_drafts(pair(name, target), PROMPTS[::7])


@pytest.mark.parametrize(("name", "target"), ASSISTED)
def test_assistants_of_gemma(pair: Pairs, name: str, target: str) -> None:
    check_logits(pair(name, target))
    check_drafts(pair(name, target), PROMPTS[::7])
    head = pair(name, target)
    for prompt in PROMPTS[1::9]:
        assert list(head.drafts(prompt, 8))[-1] == tuple(head.oracle.chain(prompt, 8))


@pytest.mark.parametrize("name", KINDS)
def test_drafts_of_many_prompts(pair: Pairs, name: str) -> None:
    check_drafts(pair(name, "llama_deep"), PROMPTS)


def test_a_tree_of_eagle3s_usual_size(pair: Pairs) -> None:
    """60 tokens with the root: 8 levels; 10 nodes of each level are expanded."""
    for prompt in PROMPTS[::5]:
        tree = pair("eagle3").drafts(prompt, 8, tree_width=10, max_draft_nodes=59)
        expected = head_oracles.paths_of(pair("eagle3").oracle.tree(prompt, 10, 8, 59))
        assert tree == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", FAMILY_HEADS)
@pytest.mark.parametrize("target", FAMILIES)
def test_every_family(pair: Pairs, target: str, name: str) -> None:
    check_logits(pair(name, target))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *[(name, "llama") for name in KINDS],
        ("mtp", "qwen3_5_moe"),
        ("assistant_clusters", "gemma4_effective"),
    ],
)
def test_chunks_of_a_text_change_no_bit(pair: Pairs, name: str, target: str) -> None:
    head = pair(name, target)
    whole = head.logits(TEXT, [5])
    for chunk in (1, 7, 16):
        assert np.array_equal(head.logits(TEXT, [5], max_num_batched_tokens=chunk), whole)


# ---- traps: what one format calls otherwise than another


class Edited:
    """A head of the deep target whose files are changed."""

    def __init__(self, pair: Pairs, folder: Path) -> None:
        self._pair = pair
        self._folder = folder
        self._count = 0

    def __call__(
        self,
        name: str,
        config: dict[str, Any] | None = None,
        tensors: dict[str, torch.Tensor] | None = None,
        without: Sequence[str] = (),
    ) -> Pair:
        original = self._pair(name, "llama_deep")
        fields = original.oracle.config | (config or {})
        fields = {key: value for key, value in fields.items() if key not in without}
        stored = head_oracles.load_tensors(original.directory) | (tensors or {})
        stored = {key: value for key, value in stored.items() if key not in without}
        self._count += 1
        directory = make_heads.write(
            self._folder / str(self._count), fields, stored, original.variant.file
        )
        return self._pair(name, "llama_deep", directory)


@pytest.fixture
def edited(pair: Pairs, tmp_path: Path) -> Edited:
    return Edited(pair, tmp_path)


def logits_of(pair: Pair) -> npt.NDArray[np.float32]:
    return pair.logits(TEXT, [3, 4])


def test_tap_ids_name_inputs_at_the_top_and_outputs_in_eagle_config(edited: Edited) -> None:
    """With eight layers and no key, the head reads the inputs of layers 2, 4 and 5."""
    default = logits_of(edited("eagle3"))
    for at_the_top in ([2, 4, 5], [5, 2, 4]):
        assert np.array_equal(logits_of(edited("eagle3", {IDS: at_the_top})), default)
    nested = edited("eagle3", {"eagle_config": {IDS: [1, 3, 4]}})
    assert np.array_equal(logits_of(nested), default)
    assert not np.allclose(logits_of(edited("eagle3", {IDS: [1, 3, 4]})), default, atol=0.1)


def test_an_empty_list_of_tap_ids_is_none(edited: Edited) -> None:
    nested = {"eagle_config": {IDS: [2, 3, 6]}}
    for said, more in (({}, {"eagle_config": {IDS: []}}), (nested, nested)):
        empty = edited("eagle3", {IDS: []} | more)
        assert np.array_equal(logits_of(empty), logits_of(edited("eagle3", said)))


def test_settings_beside_those_of_the_layers_are_theirs_where_they_have_none(
    edited: Edited,
) -> None:
    name = "speculators_no_flags"
    layer = edited(name).oracle.config["transformer_layer_config"]
    for beside in (
        {"rope_theta": 50.0},
        {"rms_norm_eps": 0.5},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ):
        found = logits_of(edited(name, beside))
        check_logits(edited(name, {"transformer_layer_config": layer | beside}))
        expected = logits_of(edited(name, {"transformer_layer_config": layer | beside}))
        assert np.array_equal(found, expected)
        assert not np.allclose(found, logits_of(edited(name)), atol=0.1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("speculators", "blocks"), ("speculators_qwen3", "channels"), ("eagle_no_bias", "tensors"),
     ("eagle_no_bias", "vocabulary"), ("eagle31_fc_norm", "vocabulary"), ("mlp", "vocabulary"),
     ("medusa", "vocabulary")],
)  # fmt: skip
def test_heads_in_8_bit_floats(
    pair: Pairs, head: HeadMaker, tmp_path: Path, name: str, kind: str
) -> None:
    stored, plain = make_fp8.make_fp8(head(name), make_fp8.KINDS[kind], tmp_path)
    expected = logits_of(pair(name, directory=plain))
    quantised = dataclasses.replace(pair(name), directory=stored)
    assert np.allclose(logits_of(quantised), expected, atol=LOGITS_ERROR)
    assert not np.allclose(expected, logits_of(pair(name)), atol=LOGITS_ERROR)


def test_the_last_layers_output_can_be_read(edited: Edited) -> None:
    nested = logits_of(edited("eagle3", {"eagle_config": {IDS: [0, 3, 7]}}))
    assert np.array_equal(nested, logits_of(edited("eagle3", {IDS: [1, 4, 8]})))


def test_speculators_norms_the_residual_unless_it_says_no(edited: Edited) -> None:
    key = "norm_before_residual"
    name = "speculators_norm_after_residual"
    absent = logits_of(edited(name, without=[key]))
    assert np.array_equal(absent, logits_of(edited(name, {key: True})))
    assert not np.allclose(absent, logits_of(edited(name)), atol=0.1)
    original = logits_of(edited("eagle3"))
    assert np.array_equal(original, logits_of(edited("eagle3", {key: False})))


def test_specforge_feeds_back_the_state_before_the_norm(edited: Edited) -> None:
    said = {"norm_output": True}
    original = logits_of(edited("eagle3"))
    assert np.array_equal(original, logits_of(edited("eagle3", said)))
    name = "speculators"
    ours, normed = logits_of(edited(name)), logits_of(edited(name, said))
    assert np.array_equal(ours[: len(TEXT) - 1], normed[: len(TEXT) - 1])
    assert not np.allclose(ours[len(TEXT) - 1 :], normed[len(TEXT) - 1 :], atol=0.1)


def test_the_order_of_a_draft_vocabulary_is_free(edited: Edited) -> None:
    sorted_head = edited("eagle3")
    order = torch.randperm(make_heads.NUM_DRAFT_IDS, generator=torch.Generator().manual_seed(1))
    ids = sorted_head.oracle.token_ids[order]
    lm_head = sorted_head.oracle.weights["lm_head.weight"][order]
    shuffled = edited(
        "eagle3", tensors={"lm_head.weight": lm_head, "d2t": ids - torch.arange(len(ids))}
    )
    assert np.array_equal(logits_of(shuffled), logits_of(sorted_head)[:, order.numpy()])
    for prompt in PROMPTS[:5]:
        assert shuffled.drafts(prompt, 5) == sorted_head.drafts(prompt, 5)


def test_d2t_that_is_off_by_one_drafts_other_tokens(edited: Edited) -> None:
    """Planted fault: the oracle of the right head refuses the drafts of one with a wrong map."""
    right = edited("eagle3")
    ids = right.oracle.token_ids.roll(1)
    wrong = edited("eagle3", tensors={"d2t": ids - torch.arange(len(ids))})
    assert np.array_equal(logits_of(wrong), logits_of(right))  # the map is of what is drafted
    with pytest.raises(AssertionError):
        check_drafts(dataclasses.replace(wrong, oracle=right.oracle), PROMPTS[:5])


def test_an_embedding_that_is_the_targets_may_be_stored_or_not(edited: Edited, pair: Pairs) -> None:
    for name in ("eagle", "eagle3"):
        stored = {"embed_tokens.weight": pair(name, "llama_deep").oracle.target.embedding}
        assert np.array_equal(logits_of(edited(name, tensors=stored)), logits_of(edited(name)))


def test_a_map_back_from_the_targets_tokens_is_not_needed(edited: Edited) -> None:
    assert np.array_equal(logits_of(edited("eagle3", without=["t2d"])), logits_of(edited("eagle3")))


def test_a_file_without_a_bias_has_none(edited: Edited) -> None:
    """Whatever "bias" says: the key is in EAGLE's own files only."""
    with_bias = logits_of(edited("eagle"))
    without = logits_of(edited("eagle", without=["fc.bias"]))
    assert not np.allclose(with_bias, without, atol=0.1)
    zero = edited("eagle", tensors={"fc.bias": torch.zeros(64)})
    assert np.allclose(logits_of(zero), without, atol=LOGITS_ERROR)


def test_configs_need_not_say_what_is_usual(edited: Edited) -> None:
    """A speculators file holds what differs from Llama's defaults."""
    name = "speculators_no_flags"
    layer = edited(name).oracle.config["transformer_layer_config"]
    written = layer | {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu"}
    said = edited(name, {"transformer_layer_config": written})
    assert np.array_equal(logits_of(said), logits_of(edited(name)))
    assert "rms_norm_eps" not in json.loads((edited(name).directory / "config.json").read_text())


@pytest.mark.models
@pytest.mark.parametrize("name", ["eagle", "eagle3_modelopt", "eagle31_fc_norm", "mlp_scaled"])
def test_a_real_target(smollm2: Path, tmp_path: Path, name: str) -> None:
    """Whose first token has states in the ten thousands."""
    directory = make_heads.make(name, smollm2, tmp_path / name)
    oracle = head_oracles.load(HEADS[name].kind, directory, head_oracles.Target(smollm2))
    real = Pair(smollm2, HEADS[name], directory, oracle)
    text = [(7 * i * i + 31 * i + 5) % 20000 for i in range(40)]
    expected = oracle.logits(text, [9]).numpy()
    errors = np.abs(real.logits(text, [9], num_tokens=2) - expected)
    assert np.all(errors < LOGITS_ERROR * (np.abs(expected) + np.std(expected)))
