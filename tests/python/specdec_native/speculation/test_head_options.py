"""Draft heads as a user asks for them: inferred, with a token map, and as the model itself."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tiny_text_model
from conftest import HeadMaker
from specdec_native import LLM, Engine, SamplingParams, _core
from tiny_text_model import FIRST_CHAR, OPTIONS, PARAMS, texts

FIXED = {"draft_length_policy": "fixed", "quantization": "none"}
PROMPT = "abc abd abc"
TOKEN = FIRST_CHAR + ord("x") - 32  # x


def drafting(model: Path, head: Path, **config: Any) -> Engine:
    return Engine(model, speculative_config={**FIXED, "model": str(head), **config}, **OPTIONS)


@pytest.mark.parametrize(
    ("variant", "method", "tokens"),
    [
        ("eagle3", "eagle3", 8),
        ("speculators", "eagle3", 3),
        ("mlp_scaled", "mlp_speculator", 2),
        ("medusa", "medusa", 4),
        ("medusa_old_names", "medusa", 3),
        ("medusa_version_2", "medusa", 3),
    ],
)
def test_a_head_is_known_by_its_checkpoint(
    model: Path, engine: Engine, head: HeadMaker, variant: str, method: str, tokens: int
) -> None:
    config = {"num_speculative_tokens": 8} if variant == "eagle3" else {}
    with drafting(model, head(variant), **config) as drafted:
        assert texts(drafted.generate(PROMPT, PARAMS)) == texts(engine.generate(PROMPT, PARAMS))
        stats = drafted.stats()
        resolved = drafted.vllm_config.speculative_config
    assert [drafter.name for drafter in stats.drafters] == [method]
    assert stats.drafters[0].num_draft_tokens > tokens
    assert resolved is not None and resolved.num_speculative_tokens == tokens


@pytest.mark.parametrize("variant", ["eagle", "medusa_version_2"])
def test_only_the_tokens_of_the_map_are_drafted(
    model: Path, head: HeadMaker, tmp_path: Path, variant: str
) -> None:
    """A request that always answers x accepts all drafts that are x, and no other."""
    (tmp_path / "text").write_text("xyz xyz")
    texts_of = {"text": tmp_path / "text", "size": 3}
    params = SamplingParams(temperature=0, max_tokens=12, logit_bias={TOKEN: 100.0})
    config = {"method": variant.partition("_")[0], "num_speculative_tokens": 2}
    for token_map, is_in in (([5, TOKEN, 9], True), (texts_of, True), ([5, 9], False)):
        with drafting(model, head(variant), speculative_token_map=token_map, **config) as engine:
            assert texts(engine.generate(PROMPT, params)) == ["x" * 12]
            (drafter,) = engine.stats().drafters
        assert drafter.num_accepted_tokens == (drafter.num_draft_tokens if is_in else 0)
        assert drafter.num_draft_tokens > 0


@pytest.mark.parametrize(
    ("variant", "token_map", "options", "message"),
    [
        ("eagle", [3, 3], {}, "speculative_token_map: token 3"),
        ("eagle", [160], {}, "speculative_token_map: token 160"),
        ("medusa", [3], {}, "speculative_token_map.*output"),
        (
            "eagle",
            {"text": __file__},
            {"skip_tokenizer_init": True},
            "a text in speculative_config needs a tokenizer",
        ),
    ],
)
def test_a_map_that_does_not_fit_is_refused(
    model: Path,
    head: HeadMaker,
    variant: str,
    token_map: Any,
    options: dict[str, Any],
    message: str,
) -> None:
    config = {
        "method": variant,
        "model": str(head(variant)),
        "num_speculative_tokens": 2,
        "speculative_token_map": token_map,
    }
    with pytest.raises(ValueError, match=message):
        Engine(model, speculative_config=config, **{**OPTIONS, **options})


@pytest.fixture
def self_contained(model: Path, head: HeadMaker, tmp_path: Path) -> Path:
    """A head whose config.json names `model` as its target."""
    directory = tmp_path / "speculator"
    shutil.copytree(head("speculators"), directory)
    config = json.loads((directory / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = str(model)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_head_given_as_the_model_drafts_for_its_target(
    self_contained: Path, model: Path, engine: Engine
) -> None:
    expected = texts(engine.generate(PROMPT, PARAMS))
    llm = LLM(self_contained, **tiny_text_model.OPTIONS)
    assert texts(llm.generate(PROMPT, PARAMS, use_tqdm=False)) == expected
    assert llm.engine.model_directory == model
    assert [drafter.name for drafter in llm.engine.stats().drafters] == ["eagle3"]
    resolved = llm.llm_engine.vllm_config.speculative_config
    assert resolved is not None
    assert resolved.model == str(self_contained) and resolved.num_speculative_tokens == 3


def test_parameters_of_drafting_may_be_given_beside_such_a_head(self_contained: Path) -> None:
    config = {"num_speculative_tokens": 2, **FIXED}
    with Engine(self_contained, speculative_config=config, **OPTIONS) as engine:
        output = engine.generate(PROMPT, PARAMS)[0]
        assert output.metrics is not None and output.metrics.speculative_decoding is not None
        assert output.metrics.speculative_decoding.num_spec_tokens == 2
        assert [drafter.name for drafter in engine.stats().drafters] == ["eagle3"]
    with Engine(self_contained, speculative_config={"method": "ngram"}, **OPTIONS) as engine:
        assert [drafter.name for drafter in engine.stats().drafters] == ["ngram"]


@pytest.mark.parametrize(
    ("variant", "method"), [("eagle3", "eagle"), ("eagle", "medusa"), ("mlp", "eagle3")]
)
def test_a_head_of_another_kind_is_refused(
    model: Path, head: HeadMaker, variant: str, method: str
) -> None:
    with pytest.raises(_core.Error, match=r"config\.json|safetensors") as caught:
        drafting(model, head(variant), method=method, num_speculative_tokens=2)
    assert isinstance(caught.value, ValueError)
