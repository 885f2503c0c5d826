"""Draft models and heads by their checkpoints: method, length, target; how files are found."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from specdec_native import Engine
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.draft_config import read_draft_config
from specdec_native.checkpoints.errors import CheckpointError, ModelNotFoundError
from specdec_native.speculation.draft_vocabulary import check_vocabularies
from specdec_native.speculation.drafter_options import DrafterOptions
from specdec_native.speculation.speculative_config import SpeculativeOptions
from specdec_native.speculation.target_of_head import find_target
from specdec_native.text.tokenizer import Tokenizer
from speculative_configs import find_config, parse
from tiny_text_model import OPTIONS

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
FIXED = {"draft_length_policy": "fixed"}
TAPS = "eagle_aux_hidden_state_layer_ids"


def speculators(kind: str, tokens: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "speculators_model_type": kind,
        "architectures": [f"{kind.capitalize()}Speculator"],
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "org/target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": LLAMA,
        **more,
    }


def write(directory: Path, config: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def only(options: SpeculativeOptions) -> DrafterOptions:
    (drafter,) = options.drafters
    return drafter


# -- the method


@pytest.mark.parametrize(
    ("config", "method"),
    [
        (LLAMA, "draft_model"),
        ({}, "draft_model"),
        ({"architectures": "LlamaForCausalLM", "model_type": 3}, "draft_model"),
        ({**LLAMA, "architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({**LLAMA, "architectures": ["LlamaForCausalLMEagle"]}, "eagle"),
        ({**LLAMA, "architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ({"model_type": "eagle", "architectures": ["Eagle3LlamaForCausalLM"]}, "eagle3"),
        ({"model_type": "eagle"}, "eagle"),
        ({**LLAMA, "draft_vocab_size": 32000}, "eagle3"),
        ({**LLAMA, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}, "eagle3"),
        ({"model_type": "qwen3_next_mtp"}, "mtp"),
        ({"architectures": ["Gemma4AssistantForCausalLM"]}, "mtp"),
        ({"model_type": "gemma4_unified_assistant"}, "mtp"),
        (speculators("eagle"), "eagle"),
        (speculators("eagle3"), "eagle3"),
        (speculators("peagle"), "eagle3"),
        (speculators("mlp"), "mlp_speculator"),
        ({"model_type": "mlp_speculator"}, "mlp_speculator"),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, "mlp_speculator"),
        ({"model_type": "medusa"}, "medusa"),
        ({"medusa_num_heads": 3, "medusa_num_layers": 1}, "medusa"),
        ({"model_type": "qwen3", "architectures": ["DFlashDraftModel"]}, "dflash"),
        ({"model_type": "qwen3", "architectures": ["Qwen3DSparkModel"]}, "dspark"),
        (speculators("dflash"), "dflash"),
        (speculators("dspark") | {"draft_vocab_size": 32000}, "dspark"),
    ],
)
def test_config_json_says_the_method(tmp_path: Path, config: dict[str, Any], method: str) -> None:
    directory = write(tmp_path / "some-directory", config)
    assert only(parse(model=directory, num_speculative_tokens=1)).method == method


@pytest.mark.parametrize(
    ("name", "local", "elsewhere"),
    [
        ("EAGLE-LLaMA3-Instruct-8B", "eagle", "eagle"),
        ("EAGLE3-LLaMA3.1-Instruct-8B", "eagle3", "eagle3"),
        ("Qwen3-8B_eagle3", "eagle3", "eagle3"),
        ("vllm-medusa-vicuna-7b-random", "draft_model", "medusa"),
        ("llama3-8b-accelerator", "draft_model", "mlp_speculator"),
        ("Qwen3-8B-DFlash-b16", "dflash", "dflash"),
        ("dspark_qwen3_8b_block7", "dspark", "dspark"),
        ("gemma-4-E4B-it-assistant", "draft_model", "mtp"),
        ("small", "draft_model", "draft_model"),
    ],
)
def test_the_name_says_it_where_config_json_does_not(
    tmp_path: Path, name: str, local: str, elsewhere: str
) -> None:
    directory = write(tmp_path / name, LLAMA)
    assert only(parse(model=directory, num_speculative_tokens=1)).method == local
    assert only(parse(model=f"org/{name}", num_speculative_tokens=1)).method == elsewhere
    cached = write(tmp_path / f"models--org--{name}" / "snapshots" / "0a1b2c", LLAMA)
    assert only(parse(model=cached, num_speculative_tokens=1)).method == local


def test_config_json_counts_more_than_the_name(tmp_path: Path) -> None:
    directory = write(tmp_path / "eagle-like", {"model_type": "medusa", "num_heads": 3})
    assert only(parse(model=directory)).method == "medusa"
    given = parse(model=directory, method="draft_model", num_speculative_tokens=1)
    assert only(given).method == "draft_model"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (speculators("sparkle"), "config.json: speculators_model_type 'sparkle' is not known"),
        (speculators("eagle3") | {"speculators_model_type": 3}, "speculators_model_type 3"),
    ],
)
def test_a_kind_that_does_not_run_is_told(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    directory = write(tmp_path / "head", config)
    with pytest.raises(ValueError, match=message):
        parse(model=directory, num_speculative_tokens=1)


def test_a_config_json_that_cannot_be_read_names_the_file(tmp_path: Path) -> None:
    write(tmp_path / "head", {})
    (tmp_path / "head" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        parse(model=tmp_path / "head", num_speculative_tokens=1)


def test_peagle_drafts_in_parallel_unless_told_otherwise(tmp_path: Path) -> None:
    peagle = write(tmp_path / "a", speculators("peagle"))
    eagle3 = write(tmp_path / "b", speculators("eagle3"))
    assert only(parse(model=peagle)).fields["parallel_drafting"] is True
    assert only(parse(model=peagle, parallel_drafting=False)).fields["parallel_drafting"] is False
    assert "parallel_drafting" not in only(parse(model=eagle3)).fields
    small = parse(model="org/small", parallel_drafting=True, num_speculative_tokens=4)
    core = only(small).to_core(lambda name, *_: Path(name), lambda text: [])
    assert (core.method, core.parallel_drafting) == ("draft_model", True)


# -- how many tokens


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"model_type": "mlp_speculator", "n_predict": 3}, 3),
        ({"model_type": "medusa", "num_heads": 5}, 5),
        ({"medusa_num_heads": 2}, 2),
        (speculators("eagle3", 7), 7),
        (speculators("mlp", 5, n_predict=4), 4),
        (speculators("eagle3", 1000), 128),
    ],
)
def test_the_head_says_how_much_is_drafted(
    tmp_path: Path, config: dict[str, Any], tokens: int
) -> None:
    directory = write(tmp_path / "head", config)
    assert parse(model=directory).num_speculative_tokens == tokens
    assert parse(model=directory, **FIXED).num_speculative_tokens == tokens
    assert parse(model=directory, num_speculative_tokens=1).num_speculative_tokens == 1


def test_medusas_own_files_may_hold_more_heads_than_they_state(tmp_path: Path) -> None:
    directory = write(tmp_path / "head", {"medusa_num_heads": 2})
    assert parse(model=directory, num_speculative_tokens=5).num_speculative_tokens == 5


def test_without_a_word_of_the_head_the_length_is_the_users(tmp_path: Path) -> None:
    for i, config in enumerate(({**LLAMA, "draft_vocab_size": 8}, speculators("eagle3", -1))):
        directory = write(tmp_path / str(i), config)
        assert parse(model=directory).num_speculative_tokens == 8
        with pytest.raises(ValueError, match="num_speculative_tokens is missing"):
            parse(model=directory, **FIXED)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "mlp_speculator", "n_predict": 3}, "n_predict"),
        ({"model_type": "medusa", "num_heads": 3}, "num_heads"),
    ],
)
def test_more_than_the_head_has_is_refused(
    tmp_path: Path, config: dict[str, Any], key: str
) -> None:
    directory = write(tmp_path / "head", config)
    message = rf"num_speculative_tokens=4 is more than the 3 .*config\.json.*\({key}\)"
    with pytest.raises(ValueError, match=message):
        parse(model=directory, num_speculative_tokens=4)
    drafters = [{"method": "suffix"}, {"model": str(directory)}]
    assert parse(drafters=drafters, num_speculative_tokens=4).num_speculative_tokens == 4


# -- what config.json says beside that


@pytest.mark.parametrize(
    ("config", "taps"),
    [
        ({TAPS: [1, 5]}, [1, 5]),
        ({"eagle_config": {TAPS: [1, 5]}}, [2, 6]),
        ({TAPS: [3], "eagle_config": {TAPS: [1, 5]}}, [3]),
        ({TAPS: [], "eagle_config": {TAPS: [1, 5]}}, [2, 6]),
        ({TAPS: []}, None),
        ({"eagle_config": {TAPS: []}}, None),
        ({}, None),
    ],
)
def test_an_empty_list_of_taps_means_the_usual_ones(
    tmp_path: Path, config: dict[str, Any], taps: list[int] | None
) -> None:
    assert read_draft_config(write(tmp_path, config)).taps == taps


# -- a vocabulary of its own


def with_tokens(directory: Path, tokens: dict[str, int], special: tuple[str, ...] = ()) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(tokens, []))
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


LETTERS = {letter: i for i, letter in enumerate("abcdefgh")}
SWAPPED = LETTERS | {"c": 5, "f": 2}


def test_a_draft_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    target, draft = with_tokens(tmp_path / "t", LETTERS), with_tokens(tmp_path / "d", SWAPPED)
    message = r'drafters"\]\[1\]\["model"\]: 2 of the 8 token ids .*/d shares.*as 2: \'f\'.*\'c\''
    for tokenizer in (None, Tokenizer.from_directory(target)):
        with pytest.raises(CheckpointError, match=message):
            check_vocabularies(
                [("x", target), ('drafters"][1]["model"]', draft)], target, tokenizer
            )


def test_a_draft_with_fewer_or_more_tokens_of_the_same_vocabulary_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = with_tokens(tmp_path / "target", LETTERS)
    longer = with_tokens(tmp_path / "longer", LETTERS | {"i": 8, "j": 11})
    check_vocabularies([("model", longer)], target, None)
    check_vocabularies([("model", target)], longer, None)
    none = tmp_path / "none"
    none.mkdir()
    check_vocabularies([("model", none)], target, None)
    check_vocabularies([("model", longer)], none, None)
    assert not caplog.records


def test_special_tokens_may_have_other_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = with_tokens(tmp_path / "target", LETTERS, ("<|im_start|>",))
    draft = with_tokens(tmp_path / "draft", LETTERS, ("<|user|>",))
    check_vocabularies([("model", draft)], target, None)
    assert "model: 1 of the 9 token ids" in caplog.text and "'<|user|>'" in caplog.text


def test_the_texts_of_tokens_count_where_their_spelling_differs(tmp_path: Path) -> None:
    spaced = with_tokens(tmp_path / "target", {"a": 0, "\u0120b": 1})
    tokenizer = tokenizers.Tokenizer.from_file(str(spaced / "tokenizer.json"))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(spaced / "tokenizer.json"))
    check_vocabularies([("model", with_tokens(tmp_path / "d", {"a": 0, " b": 1}))], spaced, None)
    with pytest.raises(CheckpointError, match="1 of the 2 token ids"):
        other = with_tokens(tmp_path / "e", {"a": 0, " c": 1})
        check_vocabularies([("model", other)], spaced, None)


@pytest.mark.parametrize("skip", [False, True])
def test_an_engine_compares_the_tokenizers(model: Path, tmp_path: Path, skip: bool) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(model, draft)
    content = json.loads((draft / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    vocab |= {"a": vocab["b"], "b": vocab["a"]}
    (draft / "tokenizer.json").write_text(json.dumps(content))
    message = r'speculative_config\["model"\]: 2 of the \d+ token ids.*the target\'s tokenizer'
    config = {"model": str(draft), "num_speculative_tokens": 2}
    with pytest.raises(ValueError, match=message):
        Engine(model, **OPTIONS, speculative_config=config, skip_tokenizer_init=skip)


# -- a head as the model


def test_the_verifier_is_the_target_and_the_head_drafts(tmp_path: Path) -> None:
    head = write(tmp_path / "head", speculators("eagle3"))
    target = find_target(head, None, None, find_config)
    assert (target.model, target.revision) == ("org/target", None)
    assert target.speculative_config == {"model": str(head)}
    given = find_target(head, None, {"num_speculative_tokens": 2}, find_config)
    assert given.speculative_config == {"model": str(head), "num_speculative_tokens": 2}
    for other in ({"method": "ngram"}, {"drafters": [{"method": "suffix"}]}, {"model": "org/b"}):
        found = find_target(head, None, other, find_config)
        assert (found.model, found.speculative_config) == ("org/target", other)
    model = write(tmp_path / "model", LLAMA)
    same = find_target(model, "main", {"method": "ngram"}, find_config)
    assert (same.model, same.revision) == (model, "main")
    assert same.speculative_config == {"method": "ngram"}


def test_a_head_without_its_target_is_told(tmp_path: Path) -> None:
    head = write(tmp_path / "head", {**LLAMA, "draft_vocab_size": 8})
    with pytest.raises(CheckpointError, match=r'config\.json: .*"eagle3".*speculative_config='):
        Engine(head)
    config = speculators("eagle3")
    config["speculators_config"]["verifier"]["name_or_path"] = str(tmp_path / "missing")
    write(head, config)
    with pytest.raises(ModelNotFoundError, match=r"verifier\.name_or_path.*give the target"):
        Engine(head)


# -- files


def eagle_state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "midlayer.self_attn.q_proj.weight": torch.randn(8, 16, generator=generator).half(),
        "fc.weight": torch.randn(8, 24, generator=generator).bfloat16(),
        "norm.weight": torch.ones(8),
        "d2t": torch.tensor([0, 5, 3]),
        "t2d": torch.tensor([True, False, True]),
    }


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "eagle.bin", "medusa_lm_head.pt"])
@pytest.mark.usefixtures("home")
def test_heads_of_torch_are_converted_as_they_are(tmp_path: Path, name: str) -> None:
    state = eagle_state()
    directory = write(tmp_path / "head", {"medusa_num_heads": 3})
    torch.save(state, directory / name)
    torch.save({"step": 1}, directory / "optimizer.pt")
    torch.save({"step": 1}, directory / "training_args.bin")
    found = hub.resolve_model(directory)
    assert found != directory and found == hub.resolve_model(directory)
    assert sorted(file.name for file in found.iterdir()) == ["config.json", "model.safetensors"]
    converted = load_file(found / "model.safetensors")
    assert sorted(converted) == sorted(state)
    for key, tensor in state.items():
        assert converted[key].dtype == tensor.dtype and torch.equal(converted[key], tensor), key


@pytest.mark.usefixtures("home")
def test_a_head_keeps_the_output_matrix_that_is_its_embedding(tmp_path: Path) -> None:
    shared = torch.randn(4, 8)
    state = eagle_state() | {"embed_tokens.weight": shared, "lm_head.weight": shared}
    directory = write(tmp_path / "head", {**LLAMA, "draft_vocab_size": 4})
    torch.save(state, directory / "pytorch_model.bin")
    found = hub.resolve_model(directory)
    assert sorted(load_file(found / "model.safetensors")) == sorted(state)
    assert "tie_word_embeddings" not in json.loads((found / "config.json").read_text())


def test_safetensors_of_any_name_are_found(tmp_path: Path) -> None:
    directory = write(tmp_path / "head", {"medusa_num_heads": 3})
    save_file(eagle_state(), directory / "medusa_lm_head.safetensors")
    torch.save(eagle_state(), directory / "medusa_lm_head.pt")
    assert hub.resolve_model(directory) == directory
    save_file(eagle_state(), directory / "other.safetensors")
    (directory / "medusa_lm_head.pt").unlink()
    with pytest.raises(CheckpointError, match="holds no model"):
        hub.resolve_model(directory)
