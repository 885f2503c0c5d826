"""An engine in this process as a benchmark's client."""

from __future__ import annotations

import asyncio
import dataclasses

from specdec_lab.benchmark.answers import Acceptance, Answer, Question
from specdec_native.engine import Engine
from specdec_native.requests.outputs import SpeculativeDecodingMetrics
from specdec_native.requests.sampling_params import RequestOutputKind, SamplingParams


class EngineClient:
    """An Engine. Chunks are its outputs, without a server between.

    Attributes:
        name: the model's name.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        is_chat: bool = False,
        temperature: float | None = 0.0,
        ignore_eos: bool = False,
    ) -> None:
        """`is_chat`: apply the chat template to prompts. `temperature`: None for the model's."""
        self.name = name
        self._engine = engine
        self._is_chat = is_chat
        params = engine.get_default_sampling_params()
        if temperature is not None:
            params = SamplingParams(temperature=temperature)
        self._params = dataclasses.replace(
            params, ignore_eos=ignore_eos, output_kind=RequestOutputKind.DELTA
        )

    async def ask(self, question: Question) -> Answer:
        """The answer; one that fails has an error."""
        clock = asyncio.get_running_loop().time
        params = dataclasses.replace(
            self._params, max_tokens=question.max_tokens, seed=question.seed
        )
        answer = Answer(question, clock())
        pieces: list[str] = []
        try:
            if self._is_chat:
                question = chat_tokens(self._engine, question)
            async with self._engine.stream([question.prompt], params) as stream:
                async for output in stream:
                    if output.outputs:
                        answer.arrivals.append(clock())
                        pieces.append(output.outputs[0].text)
                        answer.num_output_tokens += len(output.outputs[0].token_ids)
                    if output.prompt_token_ids is not None:
                        answer.num_prompt_tokens = len(output.prompt_token_ids)
                    if output.finished and output.metrics is not None:
                        answer.acceptance = acceptance_of(output.metrics.speculative_decoding)
        except (ValueError, RuntimeError, MemoryError) as error:
            answer.error = str(error) or type(error).__name__
        if answer.error is None and not answer.arrivals:
            answer.error = "the answer has no tokens"
        answer.text = "".join(pieces)
        return answer

    async def acceptance(self) -> Acceptance | None:
        """How all drafts so far fared."""
        return acceptance_of((await asyncio.to_thread(self._engine.stats)).speculative_decoding)

    async def count_tokens(self, text: str) -> int | None:
        """The tokens of a prompt; None without a tokenizer."""
        engine = self._engine
        return len(engine.tokenizer.encode(text)) if engine.has_tokenizer else None

    async def close(self) -> None:
        """Frees the model."""
        await asyncio.to_thread(self._engine.close)


def chat_tokens(engine: Engine, question: Question) -> Question:
    """The question with the chat template applied to its text; token ids stay as they are."""
    if not isinstance(question.prompt, str):
        return question
    prompt = engine.chat_prompt([{"role": "user", "content": question.prompt}])
    tokens = engine.tokenizer.encode(prompt.text or "", prompt.add_special_tokens)
    return dataclasses.replace(question, prompt=tokens)


def acceptance_of(metrics: SpeculativeDecodingMetrics | None) -> Acceptance | None:
    """The counts of an engine or of one request."""
    if metrics is None:
        return None
    return Acceptance(
        metrics.num_spec_steps,
        metrics.num_draft_tokens,
        metrics.num_accepted_draft_tokens,
        tuple(metrics.accepted_per_position),
    )
