"""Users' turns of many kinds, for training."""

import itertools
import json
import re
from pathlib import Path

import training_runs
from specdec_lab.training import varied_prompts
from specdec_lab.training.conversations import read_conversations
from specdec_lab.training.prompt_parts import FILLERS, FOLLOW_UPS, SYSTEMS, TEMPLATES

PASSAGES = ("The first text.", "The second text.")


def take(count: int, seed: int) -> list[list[str]]:
    return list(itertools.islice(varied_prompts.prompt_conversations(seed, PASSAGES), count))


def written(file: Path) -> list[list[str]]:
    return [json.loads(line)["turns"] for line in file.read_text().splitlines()]


def runs_of_eight(text: str) -> set[str]:
    words = re.sub(r"\W+", " ", text.lower()).split()
    return {" ".join(words[i : i + 8]) for i in range(len(words) - 7)}


def test_every_field_has_fillers() -> None:
    templates = [*itertools.chain.from_iterable(TEMPLATES.values()), *FOLLOW_UPS, *SYSTEMS]
    fields = {field for text in templates for field in re.findall(r"\{(\w+)\}", text)}
    assert fields - {"n", "big", "passage"} <= FILLERS.keys()
    assert all(len(set(items)) >= 4 for items in FILLERS.values())
    assert not [text for turns in take(3000, 1) for text in turns if re.search(r"\{\w+\}", text)]


def test_a_seed_decides_and_no_conversation_is_repeated() -> None:
    turns = take(3000, 1)
    assert turns == take(3000, 1)
    assert len({turn[0] for turn in turns}) == 3000
    others = {turn[0] for turn in take(3000, 2)}
    assert sum(turn[0] in others for turn in turns) < 1000
    # One in six has a second turn, and one in six of these a third.
    lengths = [len(turn) for turn in turns]
    assert 400 < lengths.count(2) + lengths.count(3) < 600 and lengths.count(3) > 40
    assert any(passage in turn[0] for turn in turns for passage in PASSAGES)


def test_prompts_that_share_words_with_others_are_left_out(tmp_path: Path) -> None:
    first, second, other = (tmp_path / f"{name}.jsonl" for name in ("first", "second", "other"))
    assert varied_prompts.main([str(first), "--count", "400", "--seed", "3"]) == 0
    assert len(written(first)) == 400
    known = [turns[0] for turns in written(first)[::7] if len(turns[0].split()) >= 8]
    other.write_text("".join(json.dumps({"x": [f"So: {text}"]}) + "\n" for text in known))
    arguments = [str(second), "--count", "400", "--seed", "3", "--not-in", str(other)]
    assert varied_prompts.main(arguments) == 0
    kept = [text for turns in written(second) for text in turns]
    forbidden = set().union(*map(runs_of_eight, known))
    assert len(known) > 20 and not [text for text in kept if runs_of_eight(text) & forbidden]
    assert len(written(second)) == 400  # others took their places


def test_a_share_is_made_up_by_the_model(toy_target: Path, tmp_path: Path) -> None:
    target = training_runs.make_target(toy_target, tmp_path / "target")
    file, plain = tmp_path / "prompts.jsonl", tmp_path / "plain.jsonl"
    given = ["--count", "24", "--seed", "5"]
    assert varied_prompts.main([str(plain), *given]) == 0
    made_up = ["--made-up-by", str(target), "--made-up-share", "0.25", "--max-num-seqs", "32"]
    assert varied_prompts.main([str(file), *given, *made_up]) == 0
    conversations = written(file)
    templates = [turns for turns in conversations if turns in written(plain)]
    assert (len(conversations), len(templates)) == (24, 18)
    assert templates == written(plain)[:18]
    assert [m["role"] for turns in read_conversations(file) for m in turns].count("system") == 0
