"""Conversations of files, the store of examples, and the vocabulary that is counted in it."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec_lab.training.batch import Example
from specdec_lab.training.conversations import read_conversations
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.generate_data import check_target, target_identity
from specdec_lab.training.store import ExampleStore, SourceCursor
from specdec_lab.training.vocabulary import count_answers, coverage, draft_vocabulary
from training_world import assert_equal


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def make_example(num_tokens: int, generator: torch.Generator, has_states: bool = True) -> Example:
    states = torch.randn(num_tokens - 1, 2, 8, generator=generator).bfloat16()
    return Example(
        torch.randint(0, 50, (num_tokens,), generator=generator, dtype=torch.int32),
        torch.rand(num_tokens, generator=generator) < 0.5,
        states if has_states else torch.empty(0, 0, 0, dtype=torch.bfloat16),
        is_greedy=num_tokens % 2 == 0,
    )


def make_store(directory: Path, lengths: Sequence[int], **header: Any) -> list[Example]:
    """A store of two shards; returns what is in them."""
    made = ExampleStore.create(
        directory, {"features": "stored", "shard_bytes": 10**6, "shard_examples": 4, **header}
    )
    generator = torch.Generator().manual_seed(1)
    examples = [make_example(n, generator, made.has_states) for n in lengths]
    made.append(examples[:4], SourceCursor(9, b"a" * 32))
    made.append(examples[4:], SourceCursor(12, b"b" * 32))
    return examples


# -- conversations


def test_reads_every_form_of_conversation(tmp_path: Path) -> None:
    lines = [
        {"prompt": "a", "id": 3},
        {"messages": [{"role": "system", "content": "s"}, user("a"), assistant("b")]},
        {
            "conversations": [
                {"from": "system", "value": "s"},
                {"from": "gpt", "value": "before the user"},
                {"from": "human", "value": "a"},
                {"from": "gpt", "value": "b"},
                {"from": "user", "value": "ü"},
            ]
        },
        {"turns": ["a", "b"], "category": "c"},
    ]
    path = tmp_path / "data.jsonl"
    system = {"role": "system", "content": "s"}
    text = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text("\ufeff" + text)
    assert read_conversations(path) == [
        [user("a")],
        [system, user("a"), assistant("b")],
        [system, user("a"), assistant("b"), user("ü")],
        [user("a"), user("b")],
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "is not valid JSON"),
        ('"text"', "no object"),
        ("[" * 100000, "is not valid JSON"),
        ('{"text": "a"}', r"only the keys 'text'"),
        ("{}", r"only the keys \(none\)"),
        ('{"prompt": 3}', "prompt must be text, got 3"),
        ('{"prompt": " "}', "prompt is empty"),
        ('{"turns": "a"}', "turns must be a list"),
        ('{"turns": ["a", null]}', r"turns\[1\] must be text"),
        ('{"turns": []}', "no turn of the user"),
        ('{"messages": [3]}', r"messages\[0\] is 3"),
        (
            '{"messages": [{"role": "tool", "content": "a"}]}',
            r'messages\[0\]\["role"\] .* \'tool\'',
        ),
        ('{"messages": [{"role": "user"}]}', r'messages\[0\]\["content"\] must be text, got None'),
        ('{"conversations": [{"from": "gpt", "value": "a"}]}', "no turn of the user"),
        ('{"conversations": [{"from": [], "value": "a"}]}', r'\["from"\] must be one of'),
    ],
)
def test_names_the_bad_line_and_what_it_may_be(tmp_path: Path, line: str, fault: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n\n{line}\n{{"prompt": "b"}}\n')
    with pytest.raises(TrainingError, match=f"data.jsonl: line 3: .*{fault}.*may be") as caught:
        read_conversations(path)
    assert caught.value.file == str(path)


def test_refuses_files_without_conversations(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"none\.jsonl: cannot be read"):
        read_conversations(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n \n")
    with pytest.raises(TrainingError, match="has no conversations"):
        read_conversations(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xfc"}')
    with pytest.raises(TrainingError, match="line 1: is not valid JSON"):
        read_conversations(tmp_path / "latin.jsonl")


# -- the store


@pytest.mark.parametrize("features", ["stored", "recomputed"])
def test_a_store_gives_back_what_was_put_in(tmp_path: Path, features: str) -> None:
    lengths = [5, 2, 9, 4, 7, 3]
    examples = make_store(tmp_path, lengths, features=features)
    opened = ExampleStore(tmp_path)
    assert len(opened) == 6
    assert opened.lengths.tolist() == lengths
    assert opened.answer_lengths.tolist() == [int(e.is_answer.sum()) for e in examples]
    assert opened.num_tokens == sum(lengths)
    assert opened.num_answer_tokens == sum(e.num_answer_tokens for e in examples)
    assert opened.cursor == SourceCursor(12, b"b" * 32)
    for given, read in zip(examples, opened, strict=True):
        assert_equal(given, read)
    for i, read in zip([3, 0, 5], opened.load([3, 0, 5]), strict=True):
        assert_equal(examples[i], read)
    assert_equal(opened[-1], examples[5])
    for i in (6, -7):
        with pytest.raises(IndexError, match=f"no {i}"):
            opened[i]


def test_a_shard_is_a_file_that_safetensors_reads(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    examples = make_store(tmp_path, [5, 2, 9, 4, 7])
    tensors = load_file(tmp_path / "examples-00000.safetensors")
    assert tensors["token_ids"].dtype == torch.int32
    assert tensors["starts"].tolist() == [0, 5, 7, 16, 20]
    assert tensors["states"].shape == (16, 2, 8) and tensors["states"].dtype == torch.bfloat16
    assert torch.equal(tensors["states"], torch.cat([e.states for e in examples[:4]]))


def test_damaged_shards_are_noticed(tmp_path: Path) -> None:
    make_store(tmp_path / "whole", [5, 2, 9, 4, 7])
    name = "examples-00001.safetensors"
    content = (tmp_path / "whole" / name).read_bytes()
    for num_bytes in (0, 7, 100, len(content) // 2, len(content) - 1):
        shutil.copytree(tmp_path / "whole", tmp_path / str(num_bytes))
        (tmp_path / str(num_bytes) / name).write_bytes(content[:num_bytes])
        with pytest.raises(TrainingError, match=f"{name}: the shard is damaged"):
            ExampleStore(tmp_path / str(num_bytes))
    (tmp_path / "whole" / "examples-00000.safetensors").unlink()
    with pytest.raises(TrainingError, match=r"examples-00000\.safetensors is missing"):
        ExampleStore(tmp_path / "whole")


def test_a_shard_whose_tensors_do_not_fit_is_noticed(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    make_store(tmp_path, [5, 2, 9, 4, 7])
    path = tmp_path / "examples-00000.safetensors"
    tensors = load_file(path)
    wrong = {
        "starts": torch.tensor([0, 5, 7, 16, 21]),
        "is_answer": tensors["is_answer"][1:],
        "is_greedy": tensors["is_greedy"][1:],
        "states": tensors["states"][1:],
        "token_ids": tensors["token_ids"].long(),
        "digest": None,
    }
    for name, tensor in wrong.items():
        changed = {**tensors, name: tensor}
        save_file({n: t for n, t in changed.items() if t is not None}, path)
        with pytest.raises(TrainingError, match="damaged"):
            ExampleStore(tmp_path)


def test_no_store_or_one_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="there is no store"):
        ExampleStore(tmp_path)
    for text, fault in (("{", "cannot be read"), ('{"format": 2}', '"format" must be 1')):
        (tmp_path / "store.json").write_text(text)
        with pytest.raises(TrainingError, match=fault):
            ExampleStore(tmp_path)
    (tmp_path / "store.json").write_text('{"format": 1, "features": "stored"}')
    with pytest.raises(TrainingError, match='"shard_bytes" is missing'):
        ExampleStore(tmp_path)


def test_shards_are_bounded_by_bytes(tmp_path: Path) -> None:
    made = ExampleStore.create(
        tmp_path, {"features": "stored", "shard_bytes": 400, "shard_examples": 100}
    )
    example = make_example(6, torch.Generator().manual_seed(1))  # 30 + 160 bytes
    assert [made.is_full([example] * n) for n in (1, 2, 3)] == [False, False, True]


def test_a_store_with_other_states_is_refused(
    tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    target = checkpoint("llama")
    made = {"target": target_identity(target), "taps": [1, 2, "final"]}
    make_store(tmp_path / "a", [3] * 5, **made)
    check_target(ExampleStore(tmp_path / "a"), target, [1, 2, "final"])
    with pytest.raises(TrainingError, match=r'taps = \[1, 2, "final"\], and \[1, "final"\]'):
        check_target(ExampleStore(tmp_path / "a"), target, [1, "final"])
    make_store(tmp_path / "b", [3] * 5, features="recomputed", **made)
    check_target(ExampleStore(tmp_path / "b"), target, [1, "final"])


# -- vocabulary


def test_the_draft_vocabulary_is_what_is_written_most(tmp_path: Path) -> None:
    examples = make_store(tmp_path, [40, 30, 20, 50, 60])
    counts = count_answers(ExampleStore(tmp_path), 64)
    wanted = Counter(t for e in examples for t in e.token_ids[e.is_answer].tolist())
    assert counts.tolist() == [wanted[i] for i in range(64)]
    some = Counter(t for i in (4, 0) for t in examples[i].token_ids[examples[i].is_answer].tolist())
    of_some = count_answers(ExampleStore(tmp_path), 64, [4, 0])
    assert of_some.tolist() == [some[i] for i in range(64)]
    for size in (5, 17, 63):
        chosen = draft_vocabulary(counts, size, always=[61, 50, 99])
        ranked = sorted(range(64), key=lambda i: (i not in (61, 50), -wanted[i], i))
        assert chosen.dtype == torch.int64
        assert chosen.tolist() == sorted(ranked[:size])
        share = sum(wanted[i] for i in ranked[:size]) / sum(wanted.values())
        assert coverage(counts, chosen) == pytest.approx(share)
    for size in (0, 64, 100):
        assert draft_vocabulary(counts, size).tolist() == list(range(64))
    assert draft_vocabulary(torch.tensor([0, 0, 3, 0, 1]), 3).tolist() == [0, 2, 4]
    assert coverage(torch.zeros(3), torch.tensor([1])) == 0
    with pytest.raises(TrainingError, match=r"outside of the vocabulary \[0, 20\)"):
        count_answers(ExampleStore(tmp_path), 20)
    with pytest.raises(TrainingError, match="draft_vocab_size must be at least 3"):
        draft_vocabulary(counts, 2, always=[1, 2, 3])
