"""Engine and LLM on a tiny checkpoint: prompts, outputs, chat, vLLM's vocabulary."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_text_model
from specdec_native import LLM, Engine, RequestOutputKind, SamplingParams
from specdec_native.requests.inputs import Prompt
from tiny_text_model import is_idle, only, text_params

MAX_MODEL_LEN: int = tiny_text_model.OPTIONS["max_model_len"]


# -- prompts and outputs


def test_every_form_of_a_prompt_gives_the_same_answer(engine: Engine) -> None:
    ids = engine.tokenizer.encode("hello")
    forms: list[Any] = [
        "hello",
        {"prompt": "hello"},
        ids,
        tuple(ids),
        {"prompt_token_ids": ids},
        {"prompt_token_ids": ids, "prompt": "hello"},
    ]
    answers = [only(engine.generate(form, text_params())).text for form in forms]
    outputs = engine.generate(forms, text_params())
    assert [output.outputs[0].text for output in outputs] == answers
    assert len(set(answers)) == 1 and len(answers[0]) == 24
    assert [output.prompt for output in outputs] == ["hello", "hello", None, None, None, "hello"]
    assert all(output.prompt_token_ids == ids for output in outputs)
    assert len({output.request_id for output in outputs}) == len(outputs)


def test_outputs_come_in_the_order_of_prompts(engine: Engine) -> None:
    prompts = [f"prompt {i}" * (1 + i % 3) for i in range(12)]
    params = [text_params(max_tokens=1 + 7 * (i % 4), seed=i) for i in range(12)]
    outputs = engine.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    for prompt, each, output in zip(prompts, params, outputs, strict=True):
        assert only([output]) == only(engine.generate(prompt, each))
        assert len(output.outputs[0].token_ids) == each.max_tokens
        assert output.outputs[0].finish_reason == "length"


def test_text_is_the_decoded_tokens(engine: Engine) -> None:
    completion = only(engine.generate("abc", text_params()))
    assert completion.text == engine.tokenizer.decode(completion.token_ids)
    silent = only(engine.generate("abc", text_params(detokenize=False)))
    assert (silent.text, silent.token_ids) == ("", completion.token_ids)


def test_no_prompts_give_no_outputs(engine: Engine) -> None:
    assert engine.generate([], text_params()) == []


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        (["a", ""], text_params(), r"prompts\[1\]: must not be empty"),
        (["a", 3.5], text_params(), r"prompts\[1\]"),
        (["a", [1, "x"]], text_params(), r"prompts\[1\]"),
        ([{"prompt": "a", "multi_modal_data": {"image": 1}}], text_params(), "multi_modal_data"),
        ([{"prompt": 3}], text_params(), "prompt"),
        (["a", "b"], [text_params()], "1 entries for 2 prompts"),
        (["a"], {"temperature": 0}, "sampling_params"),
        (["a"], text_params(logprobs=21), "max_logprobs"),
        (["a"], text_params(prompt_logprobs=-1), "max_logprobs"),
        (3, text_params(), "prompts"),
    ],
)
def test_a_bad_call_runs_nothing(engine: Engine, prompts: Any, params: Any, message: str) -> None:
    before = engine.stats()
    with pytest.raises(ValueError, match=message):
        engine.generate(prompts, params)
    assert engine.stats() == before and is_idle(engine)


def test_parameters_are_checked_again_when_used(engine: Engine) -> None:
    params = text_params()
    params.temperature = float("nan")
    with pytest.raises(ValueError, match="temperature"):
        engine.generate("a", params)


def test_callers_parameters_are_left_alone(engine: Engine) -> None:
    params = text_params(output_kind=RequestOutputKind.DELTA)
    copy = params.clone()
    assert only(engine.generate("a", params)).text
    assert params == copy


# -- how completions end


def test_a_stop_string_cuts_what_would_have_come(engine: Engine) -> None:
    whole = only(engine.generate("abc", text_params()))
    stop = whole.text[10:13]
    cut = whole.text.index(stop)
    completion = only(engine.generate("abc", text_params(stop=["never there", stop])))
    assert completion.text == whole.text[:cut]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert completion.token_ids == whole.token_ids[: cut + len(stop)]
    included = text_params(stop=stop, include_stop_str_in_output=True)
    assert only(engine.generate("abc", included)).text == whole.text[: cut + len(stop)]
    assert is_idle(engine)


def test_a_stop_string_ends_its_own_completion_only(engine: Engine) -> None:
    first, second, third = (
        c.text for c in engine.generate("abc", text_params(n=3, seed=40))[0].outputs
    )
    stop = second[6:9]
    assert stop not in first and stop not in third
    output = engine.generate("abc", text_params(n=3, seed=40, stop=stop))[0]
    assert [c.text for c in output.outputs] == [first, second[: second.index(stop)], third]
    assert [c.stop_reason for c in output.outputs] == [None, stop, None]
    assert is_idle(engine)


def test_a_stop_token_ends_without_text(engine: Engine) -> None:
    whole = only(engine.generate("abc", text_params()))
    token = whole.token_ids[9]
    end = list(whole.token_ids).index(token)
    completion = only(engine.generate("abc", text_params(stop_token_ids=[token])))
    assert (completion.finish_reason, completion.stop_reason) == ("stop", token)
    assert completion.token_ids == whole.token_ids[: end + 1]
    assert completion.text == whole.text[:end]


def test_the_end_of_sequence_ends_unless_ignored(engine: Engine) -> None:
    assert engine.eos_token_ids == [tiny_text_model.END]
    forced: dict[str, Any] = {"allowed_token_ids": [tiny_text_model.END], "ignore_eos": False}
    completion = only(engine.generate("abc", text_params(**forced)))
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert (completion.text, completion.token_ids) == ("", [tiny_text_model.END])
    ignored = only(engine.generate("abc", text_params(**(forced | {"ignore_eos": True}))))
    assert len(ignored.token_ids) == 24 and ignored.finish_reason == "length"


def test_without_max_tokens_output_goes_to_max_model_len(engine: Engine) -> None:
    completion = only(engine.generate([5] * 10, text_params(max_tokens=None)))
    assert len(completion.token_ids) == MAX_MODEL_LEN - 10
    assert completion.finish_reason == "length"


# -- parameters that reach the core


def test_completion_i_has_seed_plus_i(engine: Engine) -> None:
    outputs = engine.generate("abc", text_params(n=3, seed=40))
    assert [completion.index for completion in outputs[0].outputs] == [0, 1, 2]
    texts = [completion.text for completion in outputs[0].outputs]
    alone = [only(engine.generate("abc", text_params(seed=40 + i))).text for i in range(3)]
    assert texts == alone and len(set(texts)) == 3


def test_logprobs_describe_the_chosen_tokens(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=3, ignore_eos=True)
    completion = only(engine.generate("abc", params))
    assert completion.logprobs is not None and len(completion.logprobs) == 8
    for token, position in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(position)) == token and len(position) == 3
        assert position[token].rank == 1
        assert sorted(entry.rank or 0 for entry in position.values()) == [1, 2, 3]
        assert position[token].decoded_token == engine.tokenizer.decode([token])
    chosen = sum(next(iter(position.values())).logprob for position in completion.logprobs)
    assert completion.cumulative_logprob == pytest.approx(chosen)


def test_prompt_logprobs_have_one_entry_a_token(engine: Engine) -> None:
    output = engine.generate("hello", text_params(prompt_logprobs=2))[0]
    assert output.prompt_logprobs is not None and output.prompt_token_ids is not None
    assert output.prompt_logprobs[0] is None
    for token, position in zip(
        output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True
    ):
        assert position is not None and next(iter(position)) == token and 2 <= len(position) <= 3


def test_bad_words_do_not_appear(engine: Engine) -> None:
    whole = only(engine.generate("abc", text_params())).text
    words = [whole[3], whole[7:9]]
    text = only(engine.generate("abc", text_params(bad_words=words))).text
    assert not any(word in text for word in words)


# -- the engine as a whole


def test_metrics_are_in_order(engine: Engine) -> None:
    for options in ({}, {"stop": only(engine.generate("abc", text_params())).text[5]}):
        metrics = engine.generate("abc", text_params(**options))[0].metrics
        assert metrics is not None
        assert 0 < metrics.arrival_time <= metrics.first_scheduled_time
        assert metrics.first_scheduled_time <= metrics.first_token_time <= metrics.finished_time
        assert metrics.first_token_latency >= metrics.time_in_queue >= 0


def test_the_prefix_cache_is_reported_and_reset(model: Path) -> None:
    engine = Engine(model, dtype="float32", max_model_len=MAX_MODEL_LEN)
    prompt = [7] * 40
    first = engine.generate(prompt, text_params())[0]
    second = engine.generate(prompt, text_params())[0]
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
    assert engine.reset_prefix_cache() > 0
    assert engine.generate(prompt, text_params())[0].num_cached_tokens == 0
    assert second.outputs == first.outputs


def test_cached_beginnings_are_shared_within_a_salt_and_not_beyond(model: Path) -> None:
    with Engine(model, dtype="float32", max_model_len=MAX_MODEL_LEN) as engine:

        def salted(salt: str | None) -> Any:
            return {"prompt_token_ids": [7] * 40, "cache_salt": salt}

        outputs = []
        for prompt in (salted(None), salted("a"), salted("b")):
            for num_cached in (0, 32):
                outputs += engine.generate(prompt, text_params(n=2))
                assert outputs[-1].num_cached_tokens == num_cached, prompt
        assert all(output.outputs == outputs[0].outputs for output in outputs)
        assert engine.generate({"prompt": "x" * 40, "cache_salt": "a"}, text_params())
        assert list(engine.stream(salted("b")))[-1].num_cached_tokens == 32


@pytest.mark.parametrize("salt", ["", "x" * 129, "a/b", "a@b", "a\\b", "a\0", 7, b"x", "\ud800"])
def test_a_bad_salt_is_refused(engine: Engine, salt: Any) -> None:
    with pytest.raises(ValueError, match="cache_salt"):
        engine.generate({"prompt": "abc", "cache_salt": salt})
    with pytest.raises(ValueError, match="cache_salt"):
        engine.prepare([Prompt("abc", None, cache_salt=salt)])


def test_token_ids_work_without_a_tokenizer(model: Path, engine: Engine) -> None:
    bare = Engine(model, dtype="float32", max_model_len=MAX_MODEL_LEN, skip_tokenizer_init=True)
    ids = engine.tokenizer.encode("abc")
    completion = only(bare.generate(ids, text_params(logprobs=1)))
    assert completion.token_ids == only(engine.generate(ids, text_params())).token_ids
    assert completion.text == ""
    for call in (
        lambda: bare.generate("abc", text_params()),
        lambda: bare.generate(ids, text_params(stop="x")),
        lambda: bare.generate(ids, text_params(bad_words=["x"])),
        lambda: bare.tokenizer,
    ):
        with pytest.raises(ValueError, match="tokenizer"):
            call()


def test_a_tokenizer_may_be_given(
    checkpoint: Callable[[str], Path], model: Path, engine: Engine
) -> None:
    given = Engine(
        checkpoint("llama"), tokenizer=model, dtype="float32", max_model_len=MAX_MODEL_LEN
    )
    assert engine.generate("abc", text_params()) is not None
    assert only(given.generate("abc", text_params())) == only(engine.generate("abc", text_params()))


def test_the_core_logs_to_python(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="specdec_native"):
        Engine(model, dtype="float32", num_kv_blocks=4)
    assert "max_model_len lowered" in caplog.text


# -- chat


def test_chat_is_generate_of_the_rendered_conversation(engine: Engine) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    output = engine.chat(conversation, text_params())[0]
    assert output.prompt == "user:hi;assistant:"
    assert output.outputs == engine.generate(output.prompt, text_params())[0].outputs
    several = engine.chat([conversation, [*conversation, *conversation]], text_params())
    assert [o.prompt for o in several] == ["user:hi;assistant:", "user:hi;user:hi;assistant:"]
    streamed = list(engine.stream_chat(conversation, text_params()))[-1]
    assert streamed.outputs == output.outputs


def test_chat_options_reach_the_template(engine: Engine) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    options: dict[str, Any] = {"add_generation_prompt": False}
    assert engine.chat(conversation, text_params(), **options)[0].prompt == "user:hi;"
    template = "{{ messages[0].content }}{{ extra }}"
    options = {"chat_template": template, "chat_template_kwargs": {"extra": "!"}}
    assert engine.chat(conversation, text_params(), **options)[0].prompt == "hi!"
    with pytest.raises(ValueError, match="messages"):
        engine.chat("hi", text_params())  # type: ignore[arg-type]


# -- vLLM's class

VLLM_SCRIPT = """
from vllm import LLM, SamplingParams

prompts = ["Hello, my name is", "The capital of France is", "The future of AI is"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, seed=3, logprobs=1)


def main():
    llm = LLM(
        model=MODEL,
        dtype="float32",
        tensor_parallel_size=1,
        gpu_memory_utilization=0.5,
        enforce_eager=True,
        max_model_len=90,
        trust_remote_code=True,
        swap_space=4,
    )
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        generated = output.outputs[0]
        print(f"Prompt: {output.prompt!r}, Generated text: {generated.text!r}")
        assert len(generated.token_ids) == len(generated.logprobs) <= 16
        assert generated.finish_reason in ("length", "stop")
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    params = llm.get_default_sampling_params()
    params.max_tokens = 4
    answers = llm.chat([[{"role": "user", "content": "hi"}]] * 2, params, use_tqdm=False)
    assert [answer.prompt for answer in answers] == [text] * 2


if __name__ == "__main__":
    main()
"""


def test_a_vllm_script_runs_with_its_import_changed(model: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    source = VLLM_SCRIPT.replace("from vllm", "from specdec_native")
    script.write_text(source.replace("MODEL", repr(str(model))))
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Generated text:") == 3


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tensor_parallel_size": 99}, ValueError, "tensor_parallel_size.*8"),
        (
            {"quantization": "torchao"},
            ValueError,
            "quantization: 'torchao'.*'none', 'int8', 'int4' or 'fp8'.*GGUF",
        ),
        ({"quantization": "fp8"}, ValueError, "quantization: 'fp8' needs a GPU.*use 'int8'"),
        ({"quantization": "fbgemm_fp8"}, ValueError, "leave it out"),
        ({"quantization": 8}, ValueError, "quantization must be a string"),
        ({"enable_lora": True}, ValueError, "enable_lora"),
        ({"max_modle_len": 5}, TypeError, "max_modle_len.*max_model_len"),
        ({"max_logprobs": -2}, ValueError, "max_logprobs"),
    ],
)
def test_what_llm_cannot_do_is_refused(
    model: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LLM(model, **options)


def test_default_parameters_come_from_the_checkpoint(model: Path, tmp_path: Path) -> None:
    directory = tiny_text_model.add_text(model, tmp_path / "model")
    config = {"temperature": 0.7, "top_p": 0.8, "max_new_tokens": 5, "do_sample": True}
    (directory / "generation_config.json").write_text(json.dumps(config))
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": MAX_MODEL_LEN}
    llm = LLM(directory, **options)
    expected = SamplingParams(temperature=0.7, top_p=0.8, max_tokens=5)
    assert llm.get_default_sampling_params() == expected
    assert len(llm.generate("abc")[0].outputs[0].token_ids) <= 5
    neutral = LLM(directory, generation_config="vllm", **options)
    assert neutral.get_default_sampling_params() == SamplingParams()


def test_llm_takes_a_dtype_of_torch_and_a_tqdm(model: Path) -> None:
    torch = pytest.importorskip("torch")
    llm = LLM(str(model), dtype=torch.float32, max_model_len=MAX_MODEL_LEN)
    assert llm.engine.model_info().dtype == "float32"
    counts: list[int] = []

    class Bar:
        def __init__(self, total: int, **_: Any) -> None:
            counts.append(-total)

        def update(self, n: int) -> None:
            counts.append(n)

        def close(self) -> None:
            counts.append(0)

    llm.generate(["a", "b"], text_params(), use_tqdm=Bar)
    assert counts[0] == -2 and sum(counts[1:]) == 2 and counts[-1] == 0


def test_lora_is_refused(model: Path, engine: Engine) -> None:
    llm = LLM(str(model), dtype="float32", max_model_len=MAX_MODEL_LEN)
    with pytest.raises(ValueError, match="lora_request"):
        llm.generate("a", text_params(), lora_request=object())
    with pytest.raises(TypeError, match="nonsense"):
        llm.generate("a", text_params(), nonsense=1)
