"""The loop of the trainer: batches, losses over micro-batches, acceptance, and what ends it."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import training_world
from specdec_lab.training.batch import Example, collate
from specdec_lab.training.batch_order import BatchOrder, split_held_out
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.gpu_examples import ResidentExamples
from specdec_lab.training.predicted_acceptance import Acceptance, Answer, answers, evaluate, walk
from specdec_lab.training.training_options import TrainingOptions, differences

pytestmark = pytest.mark.usefixtures("one_torch_thread")

OPTIONS = TrainingOptions(
    max_depth=2, batch_tokens=160, epochs=6, learning_rate=0.007, optimizer="adamw", evaluations=4
)
LENGTHS = np.random.default_rng(3).integers(5, 200, 400)


def order_of(epochs: float = 2.5, seed: int = 4) -> BatchOrder:
    return BatchOrder(LENGTHS, range(10, 400), batch_tokens=900, epochs=epochs, seed=seed)


# -- which examples make a batch


def test_an_epoch_has_every_example_once() -> None:
    made = order_of()
    steps = [made.batch(step) for step in range(made.num_steps)]
    epochs = [made.index_of(step).epoch for step in range(made.num_steps)]
    for epoch in (0, 1):
        of_epoch = [i for e, batch in zip(epochs, steps, strict=True) if e == epoch for i in batch]
        assert sorted(of_epoch) == list(range(10, 400))
    third = [i for e, batch in zip(epochs, steps, strict=True) if e == 2 for i in batch]
    assert len(set(third)) == len(third) and 0.3 < len(third) / 390 < 0.7


def test_batches_are_small_enough_and_hardly_padded() -> None:
    made = order_of(1.0)
    padded = 0
    for step in range(made.num_steps):
        lengths = LENGTHS[made.batch(step)]
        padded += int(lengths.max()) * len(lengths)
        assert int(lengths.max()) * len(lengths) <= 900
    assert padded < 1.25 * LENGTHS[10:].sum()


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    one, other = order_of(), order_of()
    # Asked for in another order, as after a resumption.
    backwards = {step: other.batch(step) for step in reversed(range(other.num_steps))}
    assert all(one.batch(step) == backwards[step] for step in range(one.num_steps))
    assert one.batch(0) != order_of(seed=5).batch(0)
    assert one.batch(0) != one.batch(next(s for s in range(99) if one.index_of(s).epoch == 1))


def test_examples_that_are_added_later_stay_in_their_part() -> None:
    trained, held_out = split_held_out(LENGTHS, 0.1, seed=0)
    assert sorted(trained + held_out) == list(range(400)) and 20 < len(held_out) < 60
    assert split_held_out(LENGTHS[:90], 0.1, seed=0)[1] == [i for i in held_out if i < 90]


# -- the loss


def plain_loss(head: training_world.LinearHead, chosen: list[Example]) -> Tensor:
    """The loss of one batch, by loops over examples and places."""
    losses: list[list[Tensor]] = [[] for _ in range(head.max_depth)]
    rows = head.target.lm_head[head.draft_ids]
    for example in chosen:
        hidden = example.states[:, -1].float()
        for position in range(1, len(example.token_ids) - 1):
            following = int(example.token_ids[position + 1])
            if not example.is_answer[position + 1] or following >= len(head.draft_ids):
                continue
            wanted = (rows @ hidden[position]).softmax(-1)
            for d in range(min(head.max_depth, position)):
                state = torch.tanh(hidden[position - d - 1] @ head.matrices[d]) * 4
                losses[d].append(-(wanted * (rows @ state).log_softmax(-1)).sum())
    return sum((0.8**d * torch.stack(x).mean() for d, x in enumerate(losses)), torch.zeros(()))


@pytest.mark.parametrize("micro_batch_tokens", [0, 40])
def test_the_loss_and_its_gradient_are_those_of_a_plain_loop(micro_batch_tokens: int) -> None:
    given = training_world.examples(12)
    options = dataclasses.replace(
        OPTIONS, batch_tokens=4000, micro_batch_tokens=micro_batch_tokens, clip_norm=0.0
    )
    head, trainer = training_world.trainer(options, given, num_draft_ids=17)
    expected = plain_loss(head, given.examples)
    (gradient,) = torch.autograd.grad(expected, head.matrices)
    result = trainer.step()
    assert result.loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert result.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-4)


def test_bfloat16_changes_little() -> None:
    given = training_world.examples(12)
    _, exact = training_world.trainer(OPTIONS, given)
    _, rounded = training_world.trainer(OPTIONS, given, autocast=torch.bfloat16)
    one, other = exact.step(), rounded.step()
    assert one.loss != other.loss
    assert other.loss == pytest.approx(one.loss, rel=0.02)
    assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=0.05)


# -- the whole of it


def test_a_head_learns_and_its_best_weights_are_kept() -> None:
    given = training_world.examples(60)
    held_out = training_world.examples(5, seed=8).examples
    head, trainer = training_world.trainer(OPTIONS, given)
    seen: list[float] = []

    def accept() -> Acceptance:
        acceptance = evaluate(head, held_out, 2, max_length=99, batch_tokens=99)
        seen.append(acceptance.tokens_per_step)
        if len(seen) > 2:  # as if it had become worse
            with torch.no_grad():
                head.matrices.zero_()
            return Acceptance(acceptance.proposed, [0, 0])
        return acceptance

    begin = evaluate(head, held_out, 2, max_length=99, batch_tokens=99).tokens_per_step
    trainer.run(accept)
    assert len(seen) == 4 and trainer.course.best == 1
    assert seen[1] > begin + 0.5
    trainer.load_best()
    again = evaluate(head, held_out, 2, max_length=99, batch_tokens=99)
    assert again.tokens_per_step == seen[1]


def test_patience_ends_a_training() -> None:
    options = dataclasses.replace(OPTIONS, patience=2, evaluations=10)
    _, trainer = training_world.trainer(options, training_world.examples(40))
    lengths: Iterator[int] = iter([3, 5, 4, 5, 9, 9, 9])
    trainer.run(lambda: Acceptance([10, 10], [next(lengths), 0]))
    assert len(trainer.course.evaluations) == 4 and trainer.course.best == 1
    assert trainer.is_finished


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_names_step_and_examples(value: float) -> None:
    given = training_world.examples(20)
    given.examples[13].states[5] = value
    head, trainer = training_world.trainer(OPTIONS, given)
    before = []
    with pytest.raises(TrainingError, match=r"loss of step \d+ is (nan|inf).*\b13\b.*checkpoint"):
        while True:
            before.append(head.matrices.detach().clone())
            trainer.step()
    assert torch.equal(head.matrices, before[-1])


def test_a_state_goes_on_as_if_nothing_had_happened() -> None:
    given = training_world.examples(30)
    options = dataclasses.replace(OPTIONS, optimizer="muon")
    head, trainer = training_world.trainer(options, given)
    states = {}
    while not trainer.is_finished:
        if trainer.course.step in (0, 1, 7):
            # Through a file, as torch.load would give it back.
            states[trainer.course.step] = torch.utils._pytree.tree_map(
                lambda x: x.clone() if isinstance(x, Tensor) else x, trainer.state_dict()
            )
        trainer.step()
    for state in states.values():
        other_head, other = training_world.trainer(options, given)
        other.load_state_dict(state)
        while not other.is_finished:
            other.step()
        assert torch.equal(other_head.matrices, head.matrices)
        assert other.course.num_tokens == trainer.course.num_tokens


# -- acceptance


def naive_walk(text: list[int], drafts: list[list[int]], answer: Answer) -> list[tuple[int, int]]:
    steps: list[tuple[int, int]] = []
    root = answer.start
    while True:
        left = text[root + 1 : answer.end - 1]  # the last token comes from a step's own pass
        drafted = drafts[root][: len(left)]
        if not drafted:
            return steps
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == left[accepted]:
            accepted += 1
        steps.append((len(drafted), accepted))
        root += accepted + 1


@pytest.mark.parametrize("depth", [1, 3, 7])
def test_walks_equal_a_plain_loop(depth: int) -> None:
    generator = torch.Generator().manual_seed(depth)
    for length in (2, 3, 5, 40):
        text = torch.randint(2, (length,), generator=generator)
        drafts = torch.randint(2, (length, depth), generator=generator)
        for start in range(1, length):
            for end in range(start + 1, length + 1):
                answer = Answer(start, end)
                expected = naive_walk(text.tolist(), drafts.tolist(), answer)
                assert walk(text, drafts, answer) == expected


def test_answers_are_runs_after_a_prompt() -> None:
    is_answer = torch.tensor([1, 1, 0, 1, 1, 0, 0, 1]).bool()
    assert list(answers(is_answer)) == [Answer(3, 5), Answer(7, 8)]
    assert not list(answers(torch.zeros(3).bool()))


def test_acceptance_does_not_depend_on_batches() -> None:
    held_out = training_world.examples(9, seed=2).examples
    head = training_world.LinearHead(torch.arange(training_world.VOCAB_SIZE))
    head.initialise(torch.Generator().manual_seed(1))
    one, other = (evaluate(head, held_out, 2, max_length=20, batch_tokens=n) for n in (1, 500))
    assert one == other and one.num_steps > 50


# -- the rest


def test_examples_that_stay_on_a_device_are_the_same() -> None:
    given = training_world.examples(10)
    num_bytes = 3 * given.examples[0].states.nbytes + 200
    resident = ResidentExamples(given, torch.device("cpu"), num_bytes)
    for chosen in ([3, 1, 2], [2, 3, 9], [1, 2, 3]):
        for one, other in zip(resident.load(chosen), given.load(chosen), strict=True):
            assert torch.equal(one.states, other.states)
            assert torch.equal(one.token_ids, other.token_ids)
    assert 1 <= len(resident._residents) < 9
    assert torch.equal(collate(resident.load([0]), 99).states, collate(given.load([0]), 99).states)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "eagle4"}, "method: must be one of eagle3, "),
        ({"max_depth": 0}, "max_depth: must be from 1 to 16, got 0"),
        ({"epochs": 0.0}, "epochs: must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate: must be at least 0, got nan"),
        ({"held_out": 0.9}, "held_out: must be from 0 to 0.5, got 0.9"),
        ({"training_dtype": "float64"}, "training_dtype: must be one of auto, "),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        TrainingOptions(**options)  # type: ignore[arg-type]


def test_only_some_options_may_change_on_the_way() -> None:
    changed = dataclasses.replace(OPTIONS, num_threads=5, checkpoint_minutes=1.0, loss="kl")
    assert list(differences(OPTIONS, changed)) == [("loss", "ce", "kl")]
