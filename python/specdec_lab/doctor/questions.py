"""What the target is asked while drafts are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_lab.evaluation.prompts import PROMPTS
from specdec_native.engine import Engine
from specdec_native.requests.inputs import TokensPrompt
from specdec_native.requests.sampling_params import SamplingParams

_MORE = (
    "Translate into French: The library opens at nine and closes at six.",
    "What is the difference between a virus and a bacterium?",
    "Write a bash command that finds the ten largest files in a folder.",
    "A train leaves at 14:20 and arrives at 17:05. How long does it take? Explain your steps.",
    "Give me a recipe for pancakes with exact amounts.",
    "Summarise in two sentences why the Roman Republic ended.",
    "Write a polite e-mail that asks for a meeting to be moved to Thursday.",
    "List five uses of baking soda at home.",
    "What does HTTP status 404 mean, and when would a server send 410?",
    "Write a regular expression for dates such as 2024-03-17 and explain its parts.",
    "How do I prepare for a job interview in one evening?",
    "Tell me a short story about a lighthouse keeper and a lost dog.",
    "Explain recursion with an example in JavaScript.",
    "Which planets have rings? Answer with a table.",
    "Compare cats and dogs as pets for someone who works all day.",
    "Write a haiku about the first snow.",
)
QUESTIONS: tuple[str, ...] = (*(prompt.text for prompt in PROMPTS), *_MORE)
"""Questions of many kinds, so that no reading gains by the kind."""

_STARTS = 24  # texts that a target without a tokenizer begins
_START_TOKENS = 10


def token_prompts(
    target: Path, texts: tuple[str, ...], engine_options: dict[str, Any]
) -> list[list[int]]:
    """The texts as the target's chat wants them, in tokens.

    A target without a tokenizer is asked to go on from texts that it made up itself.
    """
    with Engine(target, **engine_options) as engine:
        if not engine.has_tokenizer:
            return _made_up(engine)
        tokenizer = engine.tokenizer
        if tokenizer.chat_template is None:
            return [list(tokenizer.encode(text)) for text in texts]
        return [
            list(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], add_generation_prompt=True
                )
            )
            for text in texts
        ]


def _made_up(engine: Engine) -> list[list[int]]:
    vocab_size = engine.model_info().vocab_size
    starts = [1 + i * (vocab_size - 2) // _STARTS for i in range(_STARTS)]
    params = [
        SamplingParams(
            temperature=1.0, seed=i, max_tokens=_START_TOKENS, ignore_eos=True, detokenize=False
        )
        for i in range(_STARTS)
    ]
    prompts = [TokensPrompt(prompt_token_ids=[start]) for start in starts]
    outputs = engine.generate(prompts, params, use_tqdm=False)
    return [
        [start, *output.outputs[0].token_ids] for start, output in zip(starts, outputs, strict=True)
    ]
