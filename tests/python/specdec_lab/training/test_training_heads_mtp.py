"""Trained MTP layers compute what the transcription of their formulas does, in every family."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

import head_oracles
import make_checkpoints
import make_heads
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.export import write_head
from specdec_lab.training.heads.mtp import Mtp
from specdec_lab.training.target import TargetWeights, read_config
from specdec_native.speculation.drafter_options import TOKEN_MAP_FILE
from test_training_heads_eagle import TEXTS, batch_of, outputs_of, training_time_logits

pytestmark = pytest.mark.usefixtures("one_torch_thread")

DEPTH = 4
DRAFT_IDS = torch.randperm(160, generator=torch.Generator().manual_seed(5))[:96].sort().values

TARGETS = ["qwen3_5", "qwen3_5_half_rotated", "qwen2", "glm4_moe_dense"]  # qwen2 as a MiMo
GLM_DENSE = make_checkpoints.Variant(
    "Glm4Moe",
    {"attention_bias": True, "use_qk_norm": True, "first_k_dense_replace": 9, "head_dim": 16},
)


@pytest.fixture(scope="module")
def plain(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of targets without the layer, by name."""
    directory = tmp_path_factory.mktemp("plain")
    for name in TARGETS[:-1]:
        (directory / name).symlink_to(checkpoint(name))
    make_checkpoints.build(GLM_DENSE).save_pretrained(directory / TARGETS[-1])
    return directory


@pytest.fixture(scope="module", params=TARGETS)
def target(plain: Path, request: pytest.FixtureRequest) -> Path:
    return plain / str(request.param)


def with_layer(target: Path, directory: Path) -> Path:
    """The target's checkpoint with a layer of random weights."""
    return make_heads.write_into_target(directory, target, make_heads.mtp_tensors(target))


def as_mimo(target: Path, directory: Path) -> Path:
    """The checkpoint without a layer; of a Qwen2, under the name of a MiMo."""
    return make_heads.write_into_target(directory, target, {})


def made_head(directory: Path) -> Mtp:
    head = Mtp(TargetWeights.load(directory), DRAFT_IDS, DEPTH)
    head.initialise(torch.Generator().manual_seed(3))
    return head


def largest_error(head: Mtp, oracle: head_oracles.Mtp) -> float:
    """Between the logits of all rows of all steps and the oracle's, in shares of the deviation."""
    batch = batch_of(head, oracle.target, TEXTS)
    width, worst = batch.token_ids.shape[1], 0.0
    outputs = outputs_of(head, batch)
    for example, text in enumerate(TEXTS):
        with torch.no_grad():
            expected = training_time_logits(oracle, torch.tensor(text), DEPTH)
        for depth, output in enumerate(outputs):
            positions = output.positions[output.positions // width == example] % width
            assert positions.tolist() == list(range(1 + depth, len(text) - 1))
            given = F.linear(output.hidden, output.lm_head_weight)
            given = given[output.positions // width == example]
            wanted = expected[depth][positions - 1 - depth][:, DRAFT_IDS]
            worst = max(worst, float((given - wanted).abs().max() / wanted.std()))
    return worst


def test_a_targets_own_layer_is_trained_on(target: Path, tmp_path: Path) -> None:
    directory = with_layer(target, tmp_path / "target")
    oracle = head_oracles.Mtp(directory, head_oracles.Target(target))
    head = made_head(directory)
    assert largest_error(head, oracle) < 1e-4
    drafts = head.draft(batch_of(head, oracle.target, TEXTS), DEPTH)
    oracle.token_ids = DRAFT_IDS
    cut = oracle.rows
    oracle.rows = lambda *given: cut(*given)[..., DRAFT_IDS]  # type: ignore[method-assign]
    for example, text in enumerate(TEXTS):
        for root in range(1, len(text), 6):
            assert drafts[example, root].tolist() == oracle.chain(text[: root + 1], DEPTH)


def test_what_is_written_is_the_layer(target: Path, tmp_path: Path) -> None:
    """Of a target that has none: a new one, in the family's names, that the oracle reads."""
    head = made_head(as_mimo(target, tmp_path / "target"))
    shapes = {name: tuple(parameter.shape) for name, parameter in head.named_parameters()}
    head.load_state_dict(make_heads.random_tensors(shapes), strict=True)
    directory = write_head(head.files("common"), tmp_path / "head", "float32")
    oracle = head_oracles.Mtp(directory, head_oracles.Target(target))
    assert largest_error(head, oracle) < 1e-4
    names = set(load_file(directory / "model.safetensors"))
    assert names == set(make_heads.mtp_tensors(target))
    config = json.loads((directory / "config.json").read_text())
    assert "MTP" in config["architectures"][0]
    assert 1 in (config.get("mtp_num_hidden_layers"), config.get("num_nextn_predict_layers"))
    assert json.loads((directory / TOKEN_MAP_FILE).read_text()) == DRAFT_IDS.tolist()
    # A target that has the layer may be trained again.
    again = made_head(
        make_heads.write_into_target(
            tmp_path / "again", target, load_file(directory / "model.safetensors")
        )
    )
    for (name, first), second in zip(head.named_parameters(), again.parameters(), strict=True):
        assert torch.allclose(first, second, atol=1e-6), name


class Swapped(head_oracles.Mtp):
    """The two inputs of fc in the other order."""

    def join(self, ids: Tensor, states: Tensor) -> Tensor:
        name = f"{self.form.fusion}.weight"
        whole = self.weights[name]
        self.weights[name] = torch.cat(whole.chunk(2, 1)[::-1], 1)
        joined = super().join(ids, states)
        self.weights[name] = whole
        return joined


class OtherState(head_oracles.Mtp):
    """Feeds back the state before the last norm, or after it, as the family does not."""

    def run(
        self, ids: Tensor, states: Tensor, positions: Tensor, visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(ids, states, positions, visible)
        normed = self.norm(hidden, self.form.final_norm)
        return self.target.score(normed), hidden if self.form.feeds_back_normed else normed


class Shifted(head_oracles.Mtp):
    """The target's state of the token itself."""

    def fuse(self, features: Tensor) -> Tensor:
        return features.roll(-1, 0)


class OtherFeatures(head_oracles.Mtp):
    """Reads the target's state before its last norm, or after it, as the family does not."""

    def __init__(self, directory: Path, target: head_oracles.Target) -> None:
        super().__init__(directory, target)
        self.form = dataclasses.replace(self.form, reads_normed=not self.form.reads_normed)


@pytest.mark.parametrize("fault", [Swapped, OtherState, OtherFeatures, Shifted])
def test_planted_faults_are_noticed(
    target: Path, tmp_path: Path, fault: type[head_oracles.Mtp]
) -> None:
    directory = with_layer(target, tmp_path / "target")
    oracle = fault(directory, head_oracles.Target(target))
    assert largest_error(made_head(directory), oracle) > 1e-2


def test_a_new_layer_begins_at_the_targets_last(plain: Path) -> None:
    head = made_head(plain / "qwen3_5")
    weights = head.target
    layer = dict(head.layers[0].named_parameters())
    like = weights.layer(2)  # layer 3 is recurrent
    assert layer.keys() == like.keys()
    assert all(torch.equal(layer[name], like[name]) for name in layer)
    assert torch.equal(head.norm.weight, weights.norm)
    assert head.fc.weight[:, 64:].diagonal().mean() > 0.9


def test_a_checkpoint_with_images_is_read_as_its_part_for_text(plain: Path, tmp_path: Path) -> None:
    """As the hub has Qwen3.5: the config nested, another prefix, the layer beside it."""
    text = with_layer(plain / "qwen3_5", tmp_path / "text")
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(text / "model.safetensors").items()
    }
    (tmp_path / "whole").mkdir()
    save_file(tensors, tmp_path / "whole/model.safetensors")
    config = json.loads((text / "config.json").read_text())
    whole = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}
    (tmp_path / "whole/config.json").write_text(json.dumps(whole | {"text_config": config}))
    assert read_config(tmp_path / "whole")["model_type"] == "qwen3_5_text"
    first, second = made_head(text), made_head(tmp_path / "whole")
    assert torch.equal(first.target.embedding, second.target.embedding)
    assert torch.equal(first.target.norm, second.target.norm)
    for (name, one), other in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_refusals(checkpoint: Callable[[str], Path], plain: Path, tmp_path: Path) -> None:
    def refuses(directory: Path, message: str) -> None:
        with pytest.raises(TrainingError, match=message):
            Mtp(TargetWeights.load(directory), DRAFT_IDS, DEPTH)

    refuses(checkpoint("llama"), "method: 'mtp' is for targets of the model types qwen3_next")
    refuses(with_layer(checkpoint("qwen3_next"), tmp_path / "experts"), "experts")
    refuses(checkpoint("glm4_moe"), "experts")
    directory = with_layer(plain / "qwen3_5", tmp_path / "more")
    file = directory / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"mtp.embed_tokens.weight": torch.zeros(2, 2)}, file)
    refuses(directory, r"mtp\.embed_tokens\.weight: the MTP layer has 16 tensors, and the 15")
    tensors.pop("mtp.norm.weight")
    save_file(tensors, file)
    refuses(directory, r"mtp\.norm\.weight")
    scaled = shutil.copytree(plain / "qwen3_5", tmp_path / "scaled")
    config = json.loads((scaled / "config.json").read_text())
    config["rope_parameters"] |= {"rope_type": "yarn", "factor": 4.0}
    (scaled / "config.json").write_text(json.dumps(config))
    refuses(scaled, "rope_parameters: the rotation of type 'yarn'")
