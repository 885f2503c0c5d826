"""A small Qwen3.5 learns to answer in English, and an MTP layer is made and trained for it.

The model has 0.2 million parameters and reads characters, so the whole test takes a minute of one
core.
"""

import json
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import make_checkpoints
import tiny_text_model
import train_heads
from specdec_lab.training.training_options import DataOptions, TrainingOptions
from specdec_lab.training.training_report import Report
from specdec_lab.training.training_run import train_head
from specdec_native import Engine, SamplingParams

pytestmark = pytest.mark.usefixtures("one_torch_thread")

DEPTH = 3
LENGTH = 112
NUM_TEXTS = 512
MODEL = make_checkpoints.Variant(
    "Qwen3_5",
    make_checkpoints.QWEN3_HYBRID
    | {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "hidden_size": 96,
        "intermediate_size": 192,
        "head_dim": 24,
        "tie_word_embeddings": True,
    },
    text_config=True,
)
NUMBERS = ("two", "three", "four", "five", "six", "seven")
COLOURS = ("red", "green", "blue", "white", "black", "brown")
THINGS = ("apples", "birds", "boats", "cups", "dogs", "hats", "kites", "pens", "shoes")
NAMES = ("anna", "boris", "clara", "david", "emma", "felix")


def dialogue(generator: random.Random) -> tuple[str, str]:
    """What a user says, and an answer to it."""
    number, thing = generator.randrange(1, len(NUMBERS)), generator.choice(THINGS)
    colour, name = generator.choice(COLOURS), generator.choice(NAMES)
    return (
        f"{NUMBERS[number]} {colour} {thing}",
        f"{name} has {NUMBERS[number]} {colour} {thing}. if {name} gives one away, then "
        f"{NUMBERS[number - 1]} {colour} {thing} are left.",
    )


def texts() -> Tensor:
    """Dialogues in the form of the chat template, cut or padded: int64 [texts, LENGTH]."""
    generator, rows = random.Random(5), []
    for _ in range(NUM_TEXTS):
        question, answer = dialogue(generator)
        text = f"user:{question};assistant:{answer}"
        ids = [tiny_text_model.CHARS.index(char) + tiny_text_model.FIRST_CHAR for char in text]
        ids += [tiny_text_model.END] * (LENGTH - len(ids))
        rows.append(ids[:LENGTH])
    return torch.tensor(rows)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, rows = make_checkpoints.build(MODEL).train(), texts()
    assert 0.1e6 < sum(p.numel() for p in model.parameters()) < 0.4e6

    def loss_of(chosen: Tensor) -> Tensor:
        batch = rows[chosen]
        logits = model(batch).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    train_heads.optimise(list(model.parameters()), loss_of, steps=200, rate=8e-3, batch=12)
    directory = tmp_path_factory.mktemp("text")
    model.save_pretrained(directory / "model")
    return tiny_text_model.add_text(directory / "model", directory / "target")


@pytest.fixture(scope="module")
def trained(target: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """The head's directory and the report of its training."""
    folder = tmp_path_factory.mktemp("trained")
    prompts, generator = folder / "prompts.jsonl", random.Random(6)
    lines = [json.dumps({"prompt": dialogue(generator)[0]}) for _ in range(150)]
    prompts.write_text("\n".join(lines))
    report = train_head(
        target,
        folder / "out",
        TrainingOptions(
            method="mtp",
            max_depth=DEPTH,
            draft_vocab_size=0,
            epochs=4,
            batch_tokens=1024,
            held_out=0.2,
            evaluations=2,
            learning_rate=5e-3,
            num_threads=1,
        ),
        DataOptions(data=str(prompts), max_answer_tokens=90, sampled_share=0.0),
        head_dtype="float32",
        engine_options={"dtype": "float32", "num_threads": 1, "max_model_len": 160},
    )
    assert report is not None
    return folder / "out/head", report


def test_drafts_are_mostly_right(trained: tuple[Path, Report]) -> None:
    _, report = trained
    assert report.engine is not None
    assert report.engine.num_same_answers == report.engine.num_answers > 20
    predicted = report.acceptance.tokens_per_step  # from states that are stored in 16 bits
    assert report.engine.acceptance.tokens_per_step == pytest.approx(predicted, rel=0.02)
    # A model of the 30 characters that knew their frequencies alone would be right in 15 of 100.
    assert report.acceptance.rates[0] > 0.7
    assert report.acceptance.tokens_per_step > 2.0


@pytest.mark.parametrize("num_tokens", range(1, 6))
def test_answers_are_those_without_drafts(
    target: Path, trained: tuple[Path, Report], num_tokens: int
) -> None:
    generator = random.Random(7)
    prompts = [f"user:{dialogue(generator)[0]};assistant:" for _ in range(8)]
    config = {"model": str(trained[0]), "num_speculative_tokens": num_tokens}
    params = [
        SamplingParams(temperature=temperature, seed=3, max_tokens=70, ignore_eos=True)
        for temperature in (0.0, 0.8)
    ]
    answers, lengths = [], []
    for speculative in (None, {**config, "draft_length_policy": "fixed"}):
        with Engine(
            target, dtype="float32", max_model_len=160, speculative_config=speculative
        ) as engine:
            outputs = [output for some in params for output in engine.generate(prompts, some)]
        answers.append([output.outputs[0].token_ids for output in outputs])
        metrics = [output.outputs[0].speculative_decoding for output in outputs]
        lengths.append(sum(m.num_accepted_draft_tokens for m in metrics if m is not None))
    assert answers[0] == answers[1]
    assert lengths[1] > 8 * 2 * 70 * 0.3
