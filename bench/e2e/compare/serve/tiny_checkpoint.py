"""Makes a model so small that the server dominates the time, with a tokenizer all servers read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

_VOCAB_SIZE = 1024
_TEXT_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)


def make(source: Path, target: Path) -> Path:
    """Writes a Llama of one layer to `target`, with the first tokens of `source`'s tokenizer.

    `source` is a checkpoint with byte-level BPE, such as SmolLM2's.
    """
    import torch
    import transformers

    if (target / "config.json").is_file():
        return target
    target.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    bpe = tokenizer["model"]
    bpe["vocab"] = {token: i for token, i in bpe["vocab"].items() if i < _VOCAB_SIZE}
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in bpe["merges"]]
    bpe["merges"] = [pair for pair in pairs if "".join(pair) in bpe["vocab"]]
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in _TEXT_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, target)
    config = transformers.AutoConfig.from_pretrained(source)
    config.vocab_size = _VOCAB_SIZE
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 64, 128, 1
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 2, 1, 32
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(target)
    return target
