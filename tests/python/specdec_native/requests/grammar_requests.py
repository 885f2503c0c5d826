"""Engines, parameters and masks of requests that ask for a grammar."""

from pathlib import Path
from typing import Any

import tiny_text_model
from specdec_native import Engine, RequestOutput, SamplingParams, StructuredOutputsParams

END = tiny_text_model.END
VOCAB_SIZE = 160
PROMPT = "say it as JSON:"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["main", "alpha"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "size", "kind"],
    "additionalProperties": False,
}


def make_engine(model: Path, **options: Any) -> Engine:
    defaults: dict[str, Any] = {"dtype": "float32", "max_model_len": 192, "max_num_seqs": 64}
    return Engine(model, **(defaults | options))


def params(seed: int = 0, **options: Any) -> SamplingParams:
    fields: dict[str, Any] = {"max_tokens": 120, "seed": seed, "temperature": 1.0}
    structured = {k: options.pop(k) for k in list(options) if k in GRAMMAR_FIELDS}
    if structured:
        fields["structured_outputs"] = StructuredOutputsParams(**structured)
    return SamplingParams(**(fields | options))


GRAMMAR_FIELDS = {
    *("json", "regex", "choice", "grammar", "json_object", "structural_tag"),
    *("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"),
}


def answers(outputs: list[RequestOutput]) -> list[Any]:
    found = []
    for output in outputs:
        completion = output.outputs[0]
        assert completion.logprobs is not None
        logprobs = [{t: e.logprob for t, e in p.items()} for p in completion.logprobs]
        found.append((list(completion.token_ids), logprobs, completion.finish_reason))
    return found


def id_of(char: str) -> int:
    if char == "\n":
        return tiny_text_model.FIRST_CHAR + len(tiny_text_model.CHARS)
    return tiny_text_model.FIRST_CHAR + tiny_text_model.CHARS.index(char)


def allowed(mask: Any) -> set[int]:
    return {t for t in range(VOCAB_SIZE) if mask[t // 32] >> (t % 32) & 1}
