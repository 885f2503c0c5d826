"""Law 1 over devices: answers do not depend on how many ranks share the models, or how."""

from pathlib import Path
from typing import Any

import pytest

from rank_models import CONFIG, DSPARK, EAGLE3, MIXES, Answers, answers_of, make_engine, write

# A family that normalises all heads of q, or of k, together.
OLMO2 = {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "tie_word_embeddings": False}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("ranks")
    small = CONFIG | {"num_hidden_layers": 2, "num_key_value_heads": 32}
    experts = CONFIG | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }
    return {
        "target": write(root / "target", CONFIG),
        "draft": write(root / "draft", small),
        "eagle3": write(root / "eagle3", EAGLE3),
        "dspark": write(root / "dspark", DSPARK),
        "experts": write(root / "experts", experts),
        "olmo2": write(root / "olmo2", CONFIG | OLMO2),
    }


def speculation(models: dict[str, Path], kind: str, ranks: int) -> dict[str, Any]:
    """Options of Engine: nothing, n-grams, a draft model that is the target itself, heads.

    "self" is a tree and "chain" a chain; the heads draft trees.
    """
    if kind == "off":
        return {}
    config: dict[str, Any] = {"num_speculative_tokens": 3, "draft_length_policy": "fixed"}
    if kind == "ngram":
        config |= {"method": "ngram", "prompt_lookup_min": 1}
    elif kind in ("eagle3", "dspark"):
        config |= {"method": kind, "model": str(models[kind]), "tree_width": 2}
    else:  # itself, so that drafts are accepted
        model = models["draft" if kind == "draft" else "target"]
        config |= {"method": "draft_model", "model": str(model), "quantization": "none"}
        config |= {"tree_width": 1 if kind == "chain" else 2}
    if kind != "ngram":
        config["draft_tensor_parallel_size"] = ranks
    return {"speculative_config": config}


@pytest.fixture(scope="module")
def whole(models: dict[str, Path]) -> dict[str, Answers]:
    """Answers on one device, by how weights are held."""
    answers = {
        name: answers_of(models["target"], quantization=name) for name in ("none", "int8", "int4")
    }
    answers["float32"] = answers_of(models["target"], quantization="none", dtype="float32")
    return answers


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_answers_do_not_depend_on_ranks(
    models: dict[str, Path], whole: dict[str, Answers], ranks: int, stages: int, dtype: str
) -> None:
    """In float32, too: bfloat16 rounds away nearly all of what another order of sums changes."""
    cells = [
        (kind, num_drafting)
        for kind in ("off", "ngram", "chain", "self", "eagle3", "dspark")
        for num_drafting in sorted({1, 2, ranks} & set(range(1, ranks + 1)))
        if kind not in ("off", "ngram") or num_drafting == 1
    ]
    for number, (kind, num_drafting) in enumerate(cells):
        mix = MIXES[(number + ranks + stages) % len(MIXES)]
        answers = answers_of(
            models["target"],
            quantization="none",
            dtype=dtype,
            tensor_parallel_size=ranks,
            pipeline_parallel_size=stages,
            **mix,
            **speculation(models, kind, num_drafting),
        )
        expected = whole["none" if dtype == "bfloat16" else "float32"]
        assert answers == expected, (kind, num_drafting, mix)


def test_norms_over_all_heads(models: dict[str, Path]) -> None:
    """Each rank has the squares of all heads, and adds them in the order of one device."""
    whole = answers_of(models["olmo2"], dtype="float32")
    own = models | {"target": models["olmo2"]}
    for ranks in (2, 3, 4):
        for kind, stages in (("off", 1), ("self", 2)):
            answers = answers_of(
                models["olmo2"],
                dtype="float32",
                tensor_parallel_size=ranks,
                pipeline_parallel_size=stages,
                **MIXES[ranks - 1],
                **speculation(own, kind, ranks),
            )
            assert answers == whole, (ranks, stages, kind)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_integers_are_those_of_whole_rows(
    models: dict[str, Path], whole: dict[str, Answers], quantization: str
) -> None:
    assert whole[quantization] != whole["none"]
    for ranks, stages in ((2, 1), (3, 2)):
        for number, kind in enumerate(("off", "ngram", "chain", "self", "eagle3")):
            answers = answers_of(
                models["target"],
                quantization=quantization,
                tensor_parallel_size=ranks,
                pipeline_parallel_size=stages,
                **MIXES[number % len(MIXES)],
                **speculation(models, kind, ranks),
            )
            assert answers == whole[quantization], (ranks, stages, kind)


def test_experts(models: dict[str, Path]) -> None:
    whole = answers_of(models["experts"])
    assert answers_of(models["experts"], tensor_parallel_size=2) == whole
    assert answers_of(models["experts"], tensor_parallel_size=3, pipeline_parallel_size=2) == whole


@pytest.mark.parametrize(
    ("ranks", "stages", "kind", "num_drafting", "quantization"),
    [
        (2, 2, "self", 2, "none"),
        (3, 1, "eagle3", 1, "none"),
        (1, 2, "ngram", 1, "int4"),
        (2, 1, "chain", 1, "int8"),
    ],
)
def test_processes(
    models: dict[str, Path],
    whole: dict[str, Answers],
    ranks: int,
    stages: int,
    kind: str,
    num_drafting: int,
    quantization: str,
) -> None:
    answers = answers_of(
        models["target"],
        quantization=quantization,
        tensor_parallel_size=ranks,
        pipeline_parallel_size=stages,
        distributed_executor_backend="mp",
        **MIXES[ranks],
        **speculation(models, kind, num_drafting),
    )
    assert answers == whole[quantization]


def test_sizes_that_do_not_work_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tensor_parallel_size.*sizes that work: 1, 2, 3, 4, 8"):
        make_engine(models["target"], tensor_parallel_size=5)
    nine = CONFIG | {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    model = write(tmp_path / "nine", nine | {"intermediate_size": 1536})
    with pytest.raises(ValueError, match="9 heads, 3 KV heads.*sizes that work: 1, 3$"):
        make_engine(model, tensor_parallel_size=2)
    with pytest.raises(ValueError, match="pipeline_parallel_size.*at most 4"):
        make_engine(models["target"], pipeline_parallel_size=5)
    with pytest.raises(ValueError, match="draft_tensor_parallel_size.*3 is more than"):
        make_engine(models["target"], tensor_parallel_size=2, **speculation(models, "draft", 3))


def test_emulated_devices(models: dict[str, Path], tmp_path: Path) -> None:
    """The GPU's kernels: ranks as threads, with a device each."""
    small = CONFIG | {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    }
    options: dict[str, Any] = {"device": "emulated", "quantization": "int8"}
    olmo2 = write(tmp_path / "olmo2", small | OLMO2)
    whole = answers_of(olmo2, **options)
    assert answers_of(olmo2, tensor_parallel_size=2, **MIXES[2], **options) == whole
    model = write(tmp_path / "small", small)
    whole = answers_of(model, **options)
    for ranks, stages in ((2, 1), (1, 2), (2, 2)):
        answers = answers_of(
            model,
            tensor_parallel_size=ranks,
            pipeline_parallel_size=stages,
            **options,
            **speculation({"target": model}, "self", ranks),
        )
        assert answers == whole, (ranks, stages)
