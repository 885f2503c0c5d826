"""A tokenizer of bytes, with marks."""

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from specdec_native.text.tokenizer import Tokenizer

END = 2
FIRST_MARK = 3 + 256
VOCAB_SIZE = 320  # room for marks


def byte_tokenizer(*, special: Iterable[str] = (), plain: Iterable[str] = ()) -> Tokenizer:
    """`special` marks are left out of texts, `plain` ones are not."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    inner = tokenizers.Tokenizer(models.BPE(vocab, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<pad>", "<s>", "</s>", *sorted(special)])
    inner.add_tokens(sorted(plain))
    return Tokenizer.wrap(inner)
