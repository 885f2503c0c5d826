"""Samples user turns from the target itself, as in Magpie (arXiv 2406.08464).

A chat model that gets its template up to the beginning of the user's text writes such a text.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.training.errors import TrainingError
from specdec_lab.training.files import write_errors
from specdec_native.engine import Engine
from specdec_native.requests.inputs import TokensPrompt
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.text.chat_template import Message

_MARK = "\ue0a5"  # stands where the user's text goes
_ROUND = 256  # turns sampled at a time
_FEWEST_CHARACTERS = 12
_MOST_EMPTY_ROUNDS = 4


class SampledTurns:
    """User turns sampled from the target, the same ones for the same seed.

    Turns that do not end within `max_tokens`, that have hardly any text, or that repeat an earlier
    turn are left out.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        seed: int,
        systems: Sequence[str | None] = (None,),
        max_tokens: int = 96,
        temperature: float = 1.0,
        top_p: float = 0.95,
        on_round: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_round` is called before each round of sampling; a round has many turns."""
        self._engine = engine
        self._seed = seed
        self._systems = systems
        self._beginnings = [_user_turn_begins(engine, system) for system in systems]
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._top_p = top_p
        self._on_round = on_round

    @property
    def settings(self) -> dict[str, Any]:
        """Everything beside the engine that the turns depend on, for JSON."""
        return {
            "seed": self._seed,
            "systems": list(self._systems),
            "max_tokens": self._max_tokens,
            "temperature": self._temperature,
            "top_p": self._top_p,
        }

    def conversations(self, kept: Path | None = None) -> Iterator[list[Message]]:
        """Conversations of one user turn each, without end.

        Sampled rounds are appended to the file `kept` and not sampled again, except an incomplete
        last line.
        """
        if kept is None:
            yield from itertools.chain.from_iterable(self._rounds([]))
            return
        earlier = _read_rounds(kept)
        yield from itertools.chain.from_iterable(earlier)
        for conversations in self._rounds(earlier):
            with write_errors(kept), kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(conversations) + "\n")
            yield from conversations

    def _rounds(self, earlier: Sequence[Sequence[list[Message]]]) -> Iterator[list[list[Message]]]:
        """The rounds that follow the `earlier` ones."""
        num_empty = 0
        seen = {messages[-1]["content"] for messages in itertools.chain.from_iterable(earlier)}
        for number in itertools.count(len(earlier)):
            conversations: list[list[Message]] = []
            for system, turn in self._sample_round(number):
                if turn is None or turn in seen:
                    continue
                seen.add(turn)
                user: Message = {"role": "user", "content": turn}
                before: list[Message] = []
                if system is not None:
                    before = [{"role": "system", "content": system}]
                conversations.append([*before, user])
            num_empty = 0 if conversations else num_empty + 1
            if num_empty == _MOST_EMPTY_ROUNDS:
                raise TrainingError(
                    f"the target makes up no new turns of a user (of {num_empty * _ROUND} sampled, "
                    "none ended, had text and was new); give prompts by --data"
                )
            yield conversations

    def _sample_round(self, number: int) -> Iterator[tuple[str | None, str | None]]:
        """System messages, each with the user's turn; None for a turn that is left out."""
        self._on_round()
        first_seed = (self._seed << 32) + number * _ROUND
        chosen = [i % len(self._systems) for i in range(_ROUND)]
        outputs = self._engine.generate(
            [TokensPrompt(prompt_token_ids=self._beginnings[i].token_ids) for i in chosen],
            [
                SamplingParams(
                    seed=first_seed + i,
                    stop_token_ids=[self._beginnings[system].end_id],
                    max_tokens=self._max_tokens,
                    temperature=self._temperature,
                    top_p=self._top_p,
                )
                for i, system in enumerate(chosen)
            ],
            use_tqdm=False,
        )
        for i, output in zip(chosen, outputs, strict=True):
            completion = output.outputs[0]
            turn = completion.text.strip()
            is_good = completion.finish_reason == "stop" and len(turn) >= _FEWEST_CHARACTERS
            yield self._systems[i], turn if is_good else None


@dataclasses.dataclass(frozen=True)
class _Beginning:
    """The template before a user's turn, and the token that ends that turn."""

    token_ids: list[int]
    end_id: int


def _user_turn_begins(engine: Engine, system: str | None) -> _Beginning:
    messages: list[Message] = [{"role": "user", "content": _MARK}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    text = engine.tokenizer.render_chat(messages, add_generation_prompt=True)
    before, _, after = text.partition(_MARK)
    if not after.strip():
        raise TrainingError(
            "the chat template does not show the user's text, so no user turns can be sampled; "
            "give prompts by --data"
        )
    encode = engine.tokenizer.encode
    return _Beginning(
        token_ids=encode(before, add_special_tokens=False),
        end_id=encode(after.lstrip(), add_special_tokens=False)[0],
    )


def _read_rounds(file: Path) -> list[list[list[Message]]]:
    """The rounds of a file. Truncates the file after its last complete line."""
    if not file.is_file():
        return []
    content = file.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        with file.open("r+b") as changed:
            changed.truncate(end)
    try:
        return [json.loads(line) for line in content[:end].splitlines()]
    except ValueError as fault:
        raise TrainingError(
            f"is damaged ({fault}); delete the file, and its turns are sampled again", file
        ) from fault
