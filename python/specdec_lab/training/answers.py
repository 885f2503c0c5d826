"""Has the target answer conversations, many at a time, and turns each into an example."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence

import torch
from torch import Tensor

from specdec_lab.training.batch import Example
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.recomputed import tapped_states
from specdec_lab.training.store import no_states
from specdec_native.common.checks import check_integer, check_number
from specdec_native.engine import Engine
from specdec_native.requests.inputs import TokensPrompt
from specdec_native.requests.sampling_params import RequestOutputKind, SamplingParams
from specdec_native.requests.stream import RequestStream
from specdec_native.text.chat_template import Message

_WINDOW = 3  # conversations under way for each one that the engine runs at once


@dataclasses.dataclass(frozen=True)
class AnswerOptions:
    """How conversations are answered.

    Attributes:
        max_answer_tokens: the limit of one answer.
        sampled_share: share of the conversations with sampled answers; the others' are greedy.
        temperature: the temperature of sampled answers.
        max_length: tokens of a conversation, at most the engine's max_model_len. A turn that does
            not fit is left out together with all later turns.
        seed: seeds the choice of sampled conversations, and the sampling.
        keep_answers: take the assistant's turns as they are, and compute only states.
    """

    max_answer_tokens: int = 256
    sampled_share: float = 0.2
    temperature: float = 1.0
    max_length: int = 1024
    seed: int = 0
    keep_answers: bool = False

    def __post_init__(self) -> None:
        check_integer("max_answer_tokens", self.max_answer_tokens, minimum=1)
        check_integer("max_length", self.max_length, minimum=2)
        check_integer("seed", self.seed, minimum=0)
        check_number("sampled_share", self.sampled_share, minimum=0.0, maximum=1.0)
        check_number("temperature", self.temperature, minimum=0.0, maximum=2.0, above_minimum=True)


@dataclasses.dataclass(frozen=True)
class Answered:
    """The result of a conversation.

    Attributes:
        index: the conversation's index.
        example: None where the conversation does not fit into max_length or has no answer tokens to
            learn from.
    """

    index: int
    example: Example | None


@dataclasses.dataclass
class _Turn:
    """A prompt and the answer to it."""

    token_ids: list[int]
    num_prompt_tokens: int


@dataclasses.dataclass
class _Dialogue:
    """A running conversation."""

    index: int
    coming: collections.deque[Message]
    history: list[Message] = dataclasses.field(default_factory=list)
    turns: list[_Turn] = dataclasses.field(default_factory=list)
    prompt: list[int] = dataclasses.field(default_factory=list)
    stream: RequestStream | None = None  # of the answer to the prompt
    states: Tensor = dataclasses.field(default_factory=no_states)
    is_greedy: bool = True
    seed: int = 0
    is_over: bool = False


class Answerer:
    """Answers conversations through an engine.

    Attributes:
        num_left_out: conversations without an example so far.
    """

    def __init__(self, engine: Engine, options: AnswerOptions, *, with_states: bool) -> None:
        """`with_states`: whether examples have states, for which the engine needs taps."""
        self._engine = engine
        self._tokenizer = engine.tokenizer
        self._options = options
        info = engine.model_info()
        self._max_length = min(options.max_length, info.max_model_len)
        self._capacity = _WINDOW * info.max_num_seqs
        self._with_states = with_states
        self._end_ids = set(engine.eos_token_ids)
        self.num_left_out = 0

    def answer(
        self,
        conversations: Iterable[Sequence[Message]],
        *,
        first: int = 0,
        is_enough: Callable[[int], bool] = lambda num_under_way: False,
    ) -> Generator[Answered, None, None]:
        """Yields the result of each conversation, in order.

        Args:
            conversations: read ahead of the results, so that the engine has enough to do.
            first: index of the first conversation.
            is_enough: called with the number of running conversations; True if no more should be
                started now. With no running conversation, True ends the iteration.
        Raises TrainingError where a conversation cannot be rendered, or the engine has no taps.
        """
        source = enumerate(conversations, first)
        window: collections.deque[_Dialogue] = collections.deque()
        try:
            while True:
                while len(window) < self._capacity and not is_enough(len(window)):
                    index, messages = next(source, (-1, None))
                    if messages is None:
                        break
                    window.append(self._begin(index, messages))
                if not window:
                    return
                if window[0].is_over:
                    yield self._answered(window.popleft())
                    continue
                self._take(window[0])  # waits
                for dialogue in window:
                    if dialogue.stream is not None and dialogue.stream.finished:
                        self._take(dialogue)
        finally:
            streams = [dialogue.stream for dialogue in window if dialogue.stream is not None]
            with contextlib.suppress(RuntimeError):  # the engine has failed or is closed
                for stream in streams:
                    stream.abort()
                for stream in streams:
                    stream.close()

    def _begin(self, index: int, messages: Sequence[Message]) -> _Dialogue:
        digest = hashlib.sha256(f"{self._options.seed} {index}".encode()).digest()
        draw = int.from_bytes(digest[:8], "big") / 2**64
        dialogue = _Dialogue(
            index,
            collections.deque(messages),
            is_greedy=draw >= self._options.sampled_share,
            seed=int.from_bytes(digest[8:16], "big") >> 1,
        )
        if self._options.keep_answers:
            self._ask_for_states(dialogue)
        else:
            self._ask(dialogue)
        return dialogue

    def _ask(self, dialogue: _Dialogue) -> None:
        """Asks for the answer to the user's next turn, or ends the conversation."""
        while dialogue.coming:
            message = dialogue.coming.popleft()
            if message["role"] == "assistant":
                continue
            dialogue.history.append(message)
            if message["role"] == "user":
                break
        else:
            dialogue.is_over = True
            return
        prompt = self._encode(dialogue, dialogue.history, is_prompt=True)
        room = min(self._options.max_answer_tokens, self._max_length - len(prompt))
        if room < 1:
            dialogue.is_over = True
            return
        goes_on = any(message["role"] == "user" for message in dialogue.coming)
        params = SamplingParams(
            temperature=0.0 if dialogue.is_greedy else self._options.temperature,
            seed=(dialogue.seed + len(dialogue.turns)) % 2**63,
            max_tokens=room,
            detokenize=goes_on,  # the next prompt needs the text
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )
        self._start(dialogue, prompt, params)

    def _ask_for_states(self, dialogue: _Dialogue) -> None:
        """Takes the conversation as it is."""
        dialogue.is_greedy = False  # how they were written is not known
        messages = list(dialogue.coming)
        while messages and messages[-1]["role"] != "assistant":
            messages.pop()
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                dialogue.turns.append(self._kept_turn(dialogue, messages[: i + 1]))
        dialogue.coming.clear()
        is_learned = any(turn.num_prompt_tokens < self._max_length for turn in dialogue.turns)
        if not is_learned:
            dialogue.turns.clear()
        if not is_learned or not self._with_states:
            dialogue.is_over = True
            return
        token_ids = dialogue.turns[-1].token_ids[: self._max_length]
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )
        self._start(dialogue, token_ids[:-1], params)

    def _kept_turn(self, dialogue: _Dialogue, messages: Sequence[Message]) -> _Turn:
        """A turn up to its answer, which is the last message, with the answer's end token."""
        prompt = self._encode(dialogue, messages[:-1], is_prompt=True)
        token_ids = self._encode(dialogue, messages, is_prompt=False)
        begin = _num_equal(prompt, token_ids)
        ends = (i for i in range(begin, len(token_ids)) if token_ids[i] in self._end_ids)
        return _Turn(token_ids[: next(ends, len(token_ids)) + 1], begin)

    def _encode(
        self, dialogue: _Dialogue, messages: Sequence[Message], *, is_prompt: bool
    ) -> list[int]:
        try:
            text = self._tokenizer.render_chat(messages, add_generation_prompt=is_prompt)
            return self._tokenizer.encode(text, add_special_tokens=False)
        except ValueError as fault:
            raise TrainingError(f"conversation {dialogue.index}: {fault}") from fault

    def _start(self, dialogue: _Dialogue, prompt: list[int], params: SamplingParams) -> None:
        dialogue.prompt = prompt
        dialogue.stream = self._engine.stream(TokensPrompt(prompt_token_ids=prompt), params)

    def _take(self, dialogue: _Dialogue) -> None:
        """Waits for a request's result, adds it, and starts the next request."""
        output = None if dialogue.stream is None else next(dialogue.stream, None)
        dialogue.stream = None
        completion = None if output is None else output.outputs[0]
        if completion is None or completion.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"the answer to conversation {dialogue.index} was aborted")
        if self._with_states:
            dialogue.states = tapped_states(completion).to(torch.bfloat16)
        if self._options.keep_answers:
            dialogue.is_over = True
            return
        prompt = dialogue.prompt
        dialogue.turns.append(_Turn([*prompt, *completion.token_ids], len(prompt)))
        dialogue.history.append({"role": "assistant", "content": completion.text})
        self._ask(dialogue)

    def _answered(self, dialogue: _Dialogue) -> Answered:
        if not dialogue.turns:
            self.num_left_out += 1
            return Answered(dialogue.index, None)
        token_ids = dialogue.turns[-1].token_ids[: self._max_length]
        # A later prompt may tokenise an answer differently, or omit parts of it.
        is_answer = torch.zeros(len(token_ids), dtype=torch.bool)
        for turn in dialogue.turns:
            is_answer[turn.num_prompt_tokens : _num_equal(turn.token_ids, token_ids)] = True
        example = Example(
            torch.tensor(token_ids, dtype=torch.int32),
            is_answer,
            dialogue.states,
            dialogue.is_greedy,
        )
        return Answered(dialogue.index, example)


def _num_equal(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
