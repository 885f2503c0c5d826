"""A tiny random checkpoint with a tokenizer of single ASCII characters and a chat template."""

import json
import shutil
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from specdec_native import CompletionOutput, Engine, RequestOutput, SamplingParams

END = 2  # the end-of-sequence token of make_checkpoints
FIRST_CHAR = 3
CHARS = [chr(code) for code in range(32, 127)]
TEXT_TOKEN_IDS = list(range(FIRST_CHAR, FIRST_CHAR + len(CHARS)))
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 96}
PARAMS = SamplingParams(
    temperature=0, max_tokens=20, ignore_eos=True, allowed_token_ids=TEXT_TOKEN_IDS
)


def add_text(checkpoint: Path, target: Path) -> Path:
    """Copies a checkpoint to `target` and gives it a tokenizer."""
    shutil.copytree(checkpoint, target)
    specials = ["<s>", "<pad>", "</s>"]
    vocab = {token: i for i, token in enumerate([*specials, *CHARS])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<pad>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "</s>", "chat_template": CHAT_TEMPLATE})
    )
    return target


# Tokens of several characters, each made of two tokens before it.
PIECES = (
    *('{"', '":', '",', ", ", "na", "me", "name", '"}', "in", "ing"),
    *("tr", "tru", "true", "al", "fal", "fals"),
)


def add_byte_text(checkpoint: Path, target: Path) -> Path:
    """Copies a checkpoint to `target` and gives it a byte-level BPE tokenizer with a few merges."""
    add_text(checkpoint, target)
    specials = ["<s>", "<pad>", "</s>"]
    pieces = [piece.replace(" ", "\u0120") for piece in PIECES]
    chars = [char.replace(" ", "\u0120") for char in CHARS]
    tokens = [*specials, *chars, "\u010a"]
    merges = []
    for piece in pieces:
        cut = next(i for i in range(len(piece) - 1, 0, -1) if {piece[:i], piece[i:]} <= {*tokens})
        merges.append((piece[:cut], piece[cut:]))
        tokens.append(piece)
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(target / "tokenizer.json"))
    return target


def lengthen(model: Path) -> Path:
    """Gives a copy of a tiny model with rotary positions 4,096 of them."""
    file = model / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return model


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def text_params(**options: Any) -> SamplingParams:
    """Parameters that give readable text of a fixed length."""
    defaults: dict[str, Any] = {
        "seed": 5,
        "max_tokens": 24,
        "ignore_eos": True,
        "allowed_token_ids": TEXT_TOKEN_IDS,
    }
    return SamplingParams(**(defaults | options))


def only(outputs: list[RequestOutput]) -> CompletionOutput:
    assert len(outputs) == 1 and outputs[0].finished
    assert len(outputs[0].outputs) == 1
    return outputs[0].outputs[0]


def is_idle(engine: Engine) -> bool:
    stats = engine.stats()
    return stats.num_running == stats.num_waiting == 0 and not engine.has_unfinished_requests()
