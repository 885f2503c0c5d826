"""Prepares a training: examples to train on and to evaluate on, and the draft vocabulary."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specdec_lab.training.answers import AnswerOptions
from specdec_lab.training.batch import Example
from specdec_lab.training.batch_order import split_held_out
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.generate_data import check_target, make_data, target_identity
from specdec_lab.training.head_methods import METHODS
from specdec_lab.training.loader import Examples
from specdec_lab.training.made_up_prompts import SampledTurns
from specdec_lab.training.store import ExampleStore
from specdec_lab.training.tapped_examples import Tap, open_examples, taps_of
from specdec_lab.training.training_options import DataOptions, TrainingOptions
from specdec_lab.training.vocabulary import count_answers, coverage, draft_vocabulary
from specdec_native.common.progress import make_step_bar
from specdec_native.engine import Engine

_logger = logging.getLogger("specdec_native")

_FEWEST_EXAMPLES = 20


@dataclasses.dataclass(frozen=True)
class Begun:
    """The data that a training began with. It resumes with the same even if the store has grown.

    Attributes:
        target: identity of the target.
        num_examples: how many of the store's examples, from the first, are used.
        num_tokens: tokens of these examples.
        draft_ids: int64 [draft vocabulary], rising.
        coverage: share of the answers' tokens that are in the draft vocabulary.
        dtype: the name of the dtype of matrix products.
    """

    target: str
    num_examples: int
    num_tokens: int
    draft_ids: Tensor
    coverage: float
    dtype: str

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The examples of a training.

    Attributes:
        examples: `lengths` and `load(indices)`.
        lengths: tokens of each example, at most options.max_length.
        trained: indices of the examples that are trained on.
        evaluated: the held-out examples that the head is evaluated on: greedy ones, if any.
        begun: what the training has to resume with.
        facts: facts for the report.
        engine_dtype: the dtype in which the target computed.
    """

    examples: Examples
    lengths: npt.NDArray[np.int64]
    trained: list[int]
    evaluated: list[Example]
    begun: Begun
    facts: dict[str, Any]
    engine_dtype: str


def make_store(
    target: Path,
    directory: Path,
    taps: Sequence[Tap],
    *,
    data: DataOptions,
    options: TrainingOptions,
    engine_options: Mapping[str, Any],
) -> None:
    """Has the target make the missing examples of a store.

    Raises TrainingError for bad data, a store made for something else, or a full disk.
    """
    begin = time.monotonic()
    if ExampleStore.exists(directory):
        store = ExampleStore(directory)
        check_target(store, target, store.header["taps"])
        has_tokens = 0 < data.answer_tokens <= store.num_answer_tokens
        wants_all = not (data.answer_tokens or data.conversations or data.data)
        if has_tokens or wants_all or 0 < data.conversations <= len(store):
            return
        if store.has_states:
            taps = store.header["taps"]
    if data.data and not Path(data.data).is_file():
        raise TrainingError("there is no such file; give --data a JSONL file", data.data)
    stored: list[Tap] = list(taps) if data.features == "stored" else []
    answers = AnswerOptions(
        max_answer_tokens=data.max_answer_tokens,
        sampled_share=data.sampled_share,
        temperature=data.temperature,
        max_length=options.max_length,
        seed=options.seed,
        keep_answers=data.keep_answers,
    )
    bar = make_step_bar("answer tokens", data.answer_tokens)
    num_before = ExampleStore(directory).num_answer_tokens if ExampleStore.exists(directory) else 0

    num_done = num_before

    def show(done: int, _: int) -> None:
        nonlocal num_done
        num_done = done
        rate = max(done - num_before, 0) / max(time.monotonic() - begin, 1e-9)
        bar.update(done, f"{rate:.0f} tokens/s")

    def show_round() -> None:
        bar.update(num_done, "the model makes up prompts")

    try:
        with Engine(target, **{**engine_options, **({"taps": stored} if stored else {})}) as engine:
            source: Any = data.data
            if not source:
                if engine.tokenizer.chat_template is None:
                    raise TrainingError(
                        "the model has no chat template from which user turns could be sampled; "
                        "give prompts by --data",
                        target,
                    )
                source = SampledTurns(engine, seed=options.seed, on_round=show_round)
            make_data(
                engine,
                target,
                directory,
                source,
                answers,
                taps=stored,
                num_answer_tokens=data.answer_tokens,
                num_conversations=data.conversations,
                at_most=bool(data.data) and data.leaves_amount_open,
                progress=show,
            )
    finally:
        bar.close()


def prepare(
    target: Path,
    config: Mapping[str, Any],
    directory: Path,
    *,
    options: TrainingOptions,
    engine_options: Mapping[str, Any],
    begun: Begun | None,
    dtype: str,
) -> Prepared:
    """Opens a store and divides its examples; in the same way as before if the training has begun.

    Raises TrainingError where there are too few examples, where the draft vocabulary is not
    possible, or where the training began with another store.
    """
    store = ExampleStore(directory)
    check_target(store, target, store.header["taps"])
    taps = taps_of(options, config)
    examples = open_examples(store, target, taps, engine_options)
    if begun is None:
        begun = _begin(store, target, config, options, dtype)
    elif begun.target != target_identity(target)["fingerprint"]:
        raise TrainingError(
            "the training began with another model, or this one has changed since; train into "
            "another directory",
            target,
        )
    lengths = store.lengths[: begun.num_examples]
    if (len(lengths), int(lengths.sum())) != (begun.num_examples, begun.num_tokens):
        raise TrainingError(
            f"the training began with other examples, {begun.num_examples} with "
            f"{begun.num_tokens} tokens; give --data-dir the store of then, or train into another "
            "directory",
            directory,
        )
    trained, held_out = split_held_out(lengths, options.held_out, options.seed)
    evaluated = _evaluated(examples, held_out, options.evaluation_tokens)
    if len(lengths) < _FEWEST_EXAMPLES or not evaluated or not trained:
        raise TrainingError(
            f"of {len(lengths)} examples, at least {_FEWEST_EXAMPLES} of which are needed, "
            f"{len(trained)} are left to train on, and {len(evaluated)} with answers of 3 tokens "
            "and more are held out; give more by --answer-tokens or --conversations, or change "
            "--held-out",
            directory,
        )
    facts = {
        "examples": begun.num_examples,
        "tokens": begun.num_tokens,
        "answer_tokens": int(store.answer_lengths[: begun.num_examples].sum()),
        "examples_trained_on": len(trained),
        "answers_evaluated_on": len(evaluated),
        "answer_tokens_evaluated_on": sum(e.num_answer_tokens for e in evaluated),
        "vocabulary": int(config["vocab_size"]),
        "draft_vocabulary": len(begun.draft_ids),
        "coverage_of_answers": round(begun.coverage, 5),
        "store": str(directory),
    }
    return Prepared(
        examples,
        np.minimum(lengths, options.max_length),
        trained,
        evaluated,
        begun,
        facts,
        str(store.header["engine"]["dtype"]),
    )


def _begin(
    store: ExampleStore,
    target: Path,
    config: Mapping[str, Any],
    options: TrainingOptions,
    dtype: str,
) -> Begun:
    draft_ids, counts = _vocabulary(store, config, options)
    return Begun(
        target=target_identity(target)["fingerprint"],
        num_examples=len(store),
        num_tokens=store.num_tokens,
        draft_ids=draft_ids,
        coverage=coverage(counts, draft_ids),
        dtype=dtype,
    )


def _evaluated(examples: Examples, held_out: Sequence[int], max_tokens: int) -> list[Example]:
    """Held-out examples with about `max_tokens` answer tokens at most; greedy ones, if any."""
    chosen: dict[bool, list[Example]] = {True: [], False: []}
    num_tokens = {True: 0, False: 0}
    for index in held_out:
        (example,) = examples.load([index])
        is_greedy = example.is_greedy
        if example.num_answer_tokens > 2 and num_tokens[is_greedy] < max_tokens:
            chosen[is_greedy].append(example)
            num_tokens[is_greedy] += example.num_answer_tokens
        if num_tokens[True] >= max_tokens:
            break
    if not chosen[True] and chosen[False]:
        _logger.warning(
            "no answer that is held out is known to be the target's own greedy one: the trainer "
            "foretells the acceptance of these texts, and the engine that of greedy answers"
        )
    return chosen[True] or chosen[False]


def _vocabulary(
    store: ExampleStore, config: Mapping[str, Any], options: TrainingOptions
) -> tuple[Tensor, Tensor]:
    vocab_size = int(config["vocab_size"])
    size = options.draft_vocab_size
    if METHODS[options.method].scores_all:
        size = 0
    elif size > vocab_size and size != TrainingOptions().draft_vocab_size:
        raise TrainingError(
            f"draft_vocab_size: the target has {vocab_size} tokens, got {size}; give "
            "--draft-vocab-size 0 for all of them"
        )
    ends = config.get("eos_token_id")
    always = [ends] if isinstance(ends, int) else list(ends or [])
    counts = count_answers(store, vocab_size)
    return draft_vocabulary(counts, size, always), counts
