"""Tiny models that several ranks can share, and engines of them."""

import contextlib
import json
from pathlib import Path
from typing import Any

from specdec_native import Engine, SamplingParams

# Every slice of the attention and of the MLP has something: 1, 2, 3, 4 and 8 ranks can share it.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 331,
    "hidden_size": 64,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}
EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "vocab_size": 331,
    "hidden_size": 64,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
DSPARK = EAGLE3 | {
    "architectures": ["Qwen3DSparkModel"],
    "model_type": "qwen3",
    "block_size": 5,
    "mask_token_id": 1,
    "target_layer_ids": [0, 2],
    "markov_rank": 32,
}
PROMPTS = [
    [5, 9, 17, 5, 9, 17, 5, 9],
    list(range(20, 61)),
    [3],
    [7, 7, 7, 7, 7, 7, 8, 7, 7, 7],
    [*range(20, 50), 1, 2],
]


def write(directory: Path, config: dict[str, Any]) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def make_engine(model: Path, **options: Any) -> Engine:
    defaults: dict[str, Any] = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "num_threads": 1,
        "max_num_batched_tokens": 24,  # prompts come in chunks
        "max_num_seqs": 4,
        "num_kv_blocks": 64,
        "distributed_timeout_seconds": 20,
    }
    return Engine(str(model), **(defaults | options))


Answers = list[tuple[list[int], list[dict[int, float]]]]

# How many requests run together, and rows of a step: other mates, and prompts in other chunks.
MIXES: list[dict[str, int]] = [
    {"max_num_seqs": 4, "max_num_batched_tokens": 24},
    {"max_num_seqs": 1, "max_num_batched_tokens": 7},
    {"max_num_seqs": 2, "max_num_batched_tokens": 64},
    {"max_num_seqs": 5, "max_num_batched_tokens": 16},
]


def answers_of(model: Path, vocabulary: int = 331, **options: Any) -> Answers:
    """Tokens and log-probabilities, greedy and sampled, of prompts that run together."""
    engine = make_engine(model, **options)
    try:
        params = [
            SamplingParams(
                max_tokens=14,
                temperature=0.0 if i % 2 else 1.0,
                seed=i,
                logprobs=3,
                ignore_eos=True,
            )
            for i in range(len(PROMPTS))
        ]
        prompts = [[token % vocabulary for token in prompt] for prompt in PROMPTS]
        outputs = engine.generate(prompts, params)
    finally:
        engine.close()
    return [
        (
            list(output.outputs[0].token_ids),
            [
                {token: entry.logprob for token, entry in position.items()}
                for position in output.outputs[0].logprobs or []
            ],
        )
        for output in outputs
    ]


def processes_of(engine: int) -> dict[int, int]:
    """The processes of the ranks of the engine in that process, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = (folder / "cmdline").read_text().split("\0")
            if "specdec_native.ranks" in words and words[-3].startswith(f"{engine}:"):
                found[int(words[-2])] = int(folder.name)
    return found
