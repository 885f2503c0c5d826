"""Keys and values in 8 bits: what it costs, and what it must not change."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from logprobs import engine_logprobs, random_tokens
from specdec_native import Engine, SamplingParams
from test_quantization import FAMILIES, TEXTS, relative_error, text_logprobs, with_all_experts
from test_speculation_law import answer

Checkpoint = Callable[[str], Path]


# Rounding to 8 bits moves an element by up to 1/254 of its token's largest. Half as much again as
# was seen.
@pytest.mark.parametrize("variant", FAMILIES)
def test_families_stay_close(checkpoint: Checkpoint, variant: str, tmp_path: Path) -> None:
    model = with_all_experts(checkpoint(variant), tmp_path / "model")
    tokens = random_tokens(100, seed=3)
    for dtype in ("float32", "bfloat16"):
        expected = engine_logprobs(model, tokens, dtype=dtype)
        found = engine_logprobs(model, tokens, dtype=dtype, kv_cache_dtype="int8")
        assert 1e-4 < relative_error(found, expected) < 0.018


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_takes_a_byte_an_element_and_four_a_head(checkpoint: Checkpoint, dtype: str) -> None:
    infos = {
        kv_cache_dtype: Engine(
            checkpoint("llama"), dtype=dtype, kv_cache_dtype=kv_cache_dtype, num_kv_blocks=1000
        ).model_info()
        for kv_cache_dtype in ("auto", "int8")
    }
    assert infos["auto"].kv_cache_dtype == dtype
    assert infos["int8"].kv_cache_dtype == "int8"
    element = 4 if dtype == "float32" else 2
    head_dim = infos["auto"].head_dim
    expected = (head_dim + 4) / (element * head_dim)
    ratio = infos["int8"].kv_cache_bytes / infos["auto"].kv_cache_bytes
    assert ratio == pytest.approx(expected, rel=0.01)


def test_twice_the_tokens_fit_the_same_memory(checkpoint: Checkpoint) -> None:
    blocks = [
        Engine(
            checkpoint("llama"),
            dtype="float32",
            kv_cache_dtype=kv_cache_dtype,
            kv_cache_memory_bytes=1 << 22,
        )
        .model_info()
        .num_kv_blocks
        for kv_cache_dtype in ("auto", "int8")
    ]
    assert blocks[1] > 2 * blocks[0]


def test_a_draft_model_has_the_same_cache(checkpoint: Checkpoint) -> None:
    model = checkpoint("llama")
    config = {"method": "draft_model", "model": str(model), "num_speculative_tokens": 3}
    alone, both = (
        Engine(
            model,
            dtype="bfloat16",
            kv_cache_dtype="int8",
            num_kv_blocks=100,
            speculative_config=speculative_config,
        )
        .model_info()
        .kv_cache_bytes
        for speculative_config in (None, config)
    )
    assert both == 2 * alone


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fp8", "kv_cache_dtype: 'fp8' is not supported; use one of 'auto', 'int8'"),
        ("", "kv_cache_dtype: '' is not supported"),
        (8, "kv_cache_dtype must be a string"),
    ],
)
def test_other_values_are_refused(checkpoint: Checkpoint, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(checkpoint("llama"), kv_cache_dtype=value)  # type: ignore[arg-type]


@pytest.mark.models
def test_answers_do_not_depend_on_batch_chunks_threads_or_cache_hits(smollm2: Path) -> None:
    tokenizer = Engine(smollm2, max_model_len=64).tokenizer
    text = tokenizer.encode(" ".join(TEXTS))
    prompts = [text[i : i + 150 + 25 * i] for i in range(8)]
    params = SamplingParams(temperature=1, seed=4, max_tokens=32, logprobs=2, ignore_eos=True)

    def make(**options: object) -> Engine:
        return Engine(
            smollm2,
            **{  # type: ignore[arg-type]
                "dtype": "bfloat16",
                "kv_cache_dtype": "int8",
                "max_model_len": 448,
                "skip_tokenizer_init": True,
                **options,
            },
        )

    alone = make(max_num_seqs=1, enable_prefix_caching=False)
    expected = [answer(alone.generate([prompt], params)[0]) for prompt in prompts]
    for options in (
        {"max_num_seqs": 8},
        {"max_num_batched_tokens": 37},
        {"num_threads": 1},
        {"num_threads": 3, "block_size": 32},
        {"num_kv_blocks": 30},
    ):
        engine = make(**options)
        for _ in range(2):  # the second time from the prefix cache
            outputs = engine.generate(prompts, params)
            assert [answer(output) for output in outputs] == expected, options
        small = "num_kv_blocks" in options
        assert small or any(output.num_cached_tokens for output in outputs)
        assert (engine.stats().num_preemptions > 0) == small


@pytest.mark.models
def test_trained_weights_lose_little(smollm2: Path) -> None:
    """Beside bfloat16, whose own rounding moves the logprobs of the texts by 0.03."""
    tokenizer = Engine(smollm2, max_model_len=64).tokenizer
    texts = [tokenizer.encode(text) for text in TEXTS]
    expected = text_logprobs(smollm2, texts, dtype="bfloat16")
    found = text_logprobs(smollm2, texts, dtype="bfloat16", kv_cache_dtype="int8")
    assert abs(np.mean(found - expected)) < 0.02
    assert 1e-3 < np.mean(np.abs(found - expected)) < 0.05  # 0.033 was seen


@pytest.mark.models
def test_greedy_answers_mostly_agree(smollm2: Path, prompts: list[str]) -> None:
    """The most likely token after every prefix of bfloat16's answers, given the same prefix."""
    engine = Engine(smollm2, dtype="bfloat16", max_model_len=512)
    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
    outputs = engine.chat(
        [[{"role": "user", "content": prompt}] for prompt in prompts[:12]], params
    )
    texts = []
    num_prompt_tokens = []
    for output in outputs:
        assert output.prompt_token_ids is not None
        num_prompt_tokens.append(len(output.prompt_token_ids))
        texts.append([*output.prompt_token_ids, *output.outputs[0].token_ids])
    int8 = Engine(
        smollm2, dtype="bfloat16", kv_cache_dtype="int8", max_model_len=1024, num_threads=2
    )
    judged = int8.generate(texts, SamplingParams(max_tokens=1, prompt_logprobs=1))
    num_same = num_tokens = 0
    for text, start, output in zip(texts, num_prompt_tokens, judged, strict=True):
        assert output.prompt_logprobs is not None
        for token, position in zip(text[start:], output.prompt_logprobs[start:], strict=True):
            assert position is not None
            num_same += position[token].rank == 1
            num_tokens += 1
    assert num_tokens == 12 * 48
    assert num_same > 0.97 * num_tokens  # 0.988 was seen
