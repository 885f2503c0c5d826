"""Makes checked requests from a caller's input: tokenizes, applies chat templates and defaults."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_native import _core
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.generation_config import sampling_values
from specdec_native.checkpoints.text_files import read_json_object
from specdec_native.common.checks import check_text
from specdec_native.requests.bad_words import BadWordsCompiler, without_bad_choices
from specdec_native.requests.batch_logits_processors import BatchOfOne
from specdec_native.requests.core_params import to_core_params
from specdec_native.requests.grammar_compiler import GrammarCompiler
from specdec_native.requests.inputs import (
    Prompt,
    check_cache_salt,
    pair_with_params,
    pair_with_priority,
)
from specdec_native.requests.reasoning_grammar import ReasoningGrammars
from specdec_native.requests.request import Request
from specdec_native.requests.sampling_params import RequestOutputKind, SamplingParams
from specdec_native.requests.structured_outputs import StructuredOutputsParams
from specdec_native.text.chat_template import Message
from specdec_native.text.infill import Infiller
from specdec_native.text.reasoning import ReasoningStart
from specdec_native.text.stop_strings import StopStrings
from specdec_native.text.tokenizer import Tokenizer
from specdec_native.text.tokenizer_backends import TokenizerNotFoundError

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class GenerationDefaults:
    """Sampling defaults for requests that set none themselves.

    Attributes:
        params: sampling parameters.
        max_tokens: the configured default, or None.
        most_tokens: a server's upper limit, whatever a request asks for. As in vLLM, a max_tokens
            that was configured for this engine, and not by the checkpoint, is such a limit.
    """

    params: SamplingParams
    max_tokens: int | None
    most_tokens: int | None


class GenerationConfig:
    """Where default sampling parameters come from; see Engine's generation_config."""

    def __init__(self, source: str | os.PathLike[str], overrides: Mapping[str, Any] | None) -> None:
        """Raises ValueError where there is no such folder or `overrides` is no dict."""
        if overrides is not None and not isinstance(overrides, Mapping):
            raise ValueError(f"override_generation_config must be a dict, got {overrides!r:.80}")
        self._overrides = dict(overrides or {})
        self.folder: Path | None = None  # None: the checkpoint's
        self._is_neutral = source == "vllm"
        if source not in ("auto", "vllm"):
            self.folder = Path(source)
            if not (self.folder / "generation_config.json").is_file():
                raise ValueError(
                    'generation_config must be "auto", "vllm" or a folder with '
                    f"generation_config.json, got {os.fspath(source)!r}"
                )

    def read(self, checkpoint: Path) -> GenerationDefaults:
        """Reads the defaults. Raises ValueError for a bad value."""
        file = (self.folder or checkpoint) / "generation_config.json"
        config: dict[str, Any] = {}
        if not self._is_neutral and file.is_file():
            config = dict(read_json_object(file))
        config |= self._overrides
        values = sampling_values(config, file)
        try:
            params = SamplingParams(**values)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{error}", file) from error
        max_tokens = values.get("max_tokens")
        is_limit = self.folder is not None or self._overrides.get("max_new_tokens") is not None
        return GenerationDefaults(params, max_tokens, max_tokens if is_limit else None)


@dataclasses.dataclass
class CheckpointText:
    """The tokenizer of an engine, or why there is none."""

    tokenizer: Tokenizer | None
    missing_because: str = ""

    def need_tokenizer(self, what: str) -> Tokenizer:
        """The tokenizer. Raises ValueError if there is none."""
        if self.tokenizer is None:
            raise ValueError(f"{what} needs a tokenizer: {self.missing_because}")
        return self.tokenizer


def load_text(
    directory: Path,
    given: Any,
    chat_template: str | os.PathLike[str] | None,
    trust_remote_code: bool,
) -> CheckpointText:
    """Loads the checkpoint's tokenizer, or the one `given` as an object, name or directory.

    A checkpoint without a tokenizer still works with token ids; using text is then an error.
    """
    if given is not None and not isinstance(given, (str, os.PathLike)):
        return CheckpointText(Tokenizer.wrap(given))
    if given is not None:
        directory = Path(given) if Path(given).is_dir() else hub.resolve_model(given)
    try:
        tokenizer = Tokenizer.from_directory(
            directory, chat_template=chat_template, trust_remote_code=trust_remote_code
        )
    except TokenizerNotFoundError as error:
        if given is not None:
            raise
        return CheckpointText(None, str(error))
    return CheckpointText(tokenizer)


class RequestBuilder:
    """Makes requests for one model. Threads may share it."""

    def __init__(
        self,
        directory: Path,
        text: CheckpointText,
        model_info: _core.ModelInfo,
        *,
        generation: GenerationConfig,
        max_logprobs: int,
        structured_outputs_config: Mapping[str, bool] | None = None,
        logits_processors: Sequence[BatchOfOne] = (),
    ) -> None:
        self.text = text
        self._directory = directory
        self._generation = generation
        self._model_info = model_info
        self._max_logprobs = max_logprobs
        self._num_spec_tokens = model_info.num_speculative_tokens or None
        self._logits_processors = logits_processors
        self.eos_token_ids = self._find_eos_token_ids()
        if text.tokenizer is not None:
            vocab_size = model_info.vocab_size
            self._grammars = GrammarCompiler(
                text.tokenizer, vocab_size, self.eos_token_ids, structured_outputs_config
            )
            self._bad_words = BadWordsCompiler(text.tokenizer, vocab_size, self.eos_token_ids)
            self._reasoning = ReasoningGrammars(text.tokenizer, self._bad_words.texts)

    def default_params(self) -> SamplingParams:
        """The sampling parameters of a request that brings none."""
        return self.generation_defaults().params

    def generation_defaults(self) -> GenerationDefaults:
        """Sampling defaults for requests that set none themselves."""
        return self._generation.read(self._directory)

    def chat_prompt(self, messages: Sequence[Message], **options: Any) -> Prompt:
        """The prompt of a conversation; `options` are those of Tokenizer.render_chat.

        Raises ValueError for a message that the checkpoint's template does not show. A template
        that the caller brings may leave messages out.
        """
        tokenizer = self.text.need_tokenizer("chat")
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
            raise ValueError(
                f'messages must be a list of {{"role", "content"}} dicts, got {messages!r:.80}'
            )
        is_own = options.get("chat_template") is not None
        text = tokenizer.render_chat(messages, must_show_all=not is_own, **options)
        check_text("messages", text)
        return Prompt(text, None, add_special_tokens=False)  # the template has written them

    def infiller(self, files: Sequence[tuple[str, str]], **texts: str) -> Infiller:
        """What makes fill-in prompts, after a look at the texts, which errors call by their names.

        Raises ValueError for a model without fill-in tokens, and a text that can never fit.
        """
        tokenizer = self.text.need_tokenizer("suffix")
        infiller = self._infiller
        for i, (name, text) in enumerate(files):
            texts[f"files[{i}]"] = f"{name}\n{text}"
        for name, text in texts.items():
            check_text(name, text)
            check_length(name, text, tokenizer, self._model_info.max_model_len)
        return infiller

    @functools.cached_property
    def _infiller(self) -> Infiller:
        return Infiller(self.text.need_tokenizer("suffix"))

    def build(
        self,
        prompts: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        request_ids: Sequence[str],
        *,
        kind: RequestOutputKind | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[Request]:
        """One request per prompt; `kind` replaces the output_kind of the parameters.

        `priority` is one for all or one for each; None stands for 0.

        Raises ValueError naming the first prompt or parameter that is bad.
        """
        if sampling_params is None:
            sampling_params = self.default_params()
        paired = pair_with_params(sampling_params, len(prompts))
        priorities = pair_with_priority(priority, len(prompts))
        names = [f"prompts[{i}]" if len(prompts) > 1 else "prompt" for i in range(len(prompts))]
        self._tokenize(prompts, names)
        checked: dict[Any, tuple[SamplingParams, _core.PreparedParams, StopStrings]] = {}
        requests = []
        for i, (prompt, params) in enumerate(zip(prompts, paired, strict=True)):
            token_ids = prompt.token_ids or []
            if prompt.cache_salt is not None:
                check_cache_salt("cache_salt", prompt.cache_salt)
            start = self._reasoning_start(params, prompt)
            if (id(params), start) not in checked:
                good, prepared_params = self._check_params(params, kind, start)
                checked[id(params), start] = good, prepared_params, StopStrings(good.stop_strings)
            good, prepared_params, stop = checked[id(params), start]
            prepared = _core.PreparedRequest(
                prepared_params,
                token_ids,
                cache_salt=prompt.cache_salt or "",
                priority=priorities[i],
                resumed_token_ids=prompt.resumed_token_ids,
                prompt_name=names[i],
            )
            requests.append(
                Request(
                    request_ids[i],
                    prompt=prompt.text,
                    prompt_token_ids=token_ids,
                    params=good,
                    prepared=prepared,
                    tokenizer=self.text.tokenizer,
                    num_spec_tokens=self._most_spec_tokens(good),
                    cache_salt=prompt.cache_salt,
                    priority=priorities[i],
                    stop=stop,
                    resumed_token_ids=prompt.resumed_token_ids,
                )
            )
        return requests

    def _most_spec_tokens(self, params: SamplingParams) -> int | None:
        if self._num_spec_tokens is None or params.num_speculative_tokens is None:
            return self._num_spec_tokens
        return min(self._num_spec_tokens, params.num_speculative_tokens)

    def _tokenize(self, prompts: list[Prompt], names: Sequence[str]) -> None:
        for prompt, name in zip(prompts, names, strict=True):
            if prompt.token_ids is None and prompt.truncate_to is None:
                tokenizer = self.text.need_tokenizer("a prompt given as text")
                check_length(name, prompt.text or "", tokenizer, self._model_info.max_model_len)
        for special in (True, False):
            texts = [p for p in prompts if p.token_ids is None and p.add_special_tokens is special]
            if not texts:
                continue
            tokenizer = self.text.need_tokenizer("a prompt given as text")
            encoded = tokenizer.encode_batch([prompt.text or "" for prompt in texts], special)
            for prompt, token_ids in zip(texts, encoded, strict=True):
                prompt.token_ids = token_ids
        for prompt in prompts:
            was_cut = prompt.truncate()
            if prompt.is_echoed and (was_cut or prompt.text is None):
                self._write_text(prompt)

    def _write_text(self, prompt: Prompt) -> None:
        """Sets a prompt's text to the text of its tokens."""
        tokenizer, token_ids = self.text.tokenizer, prompt.token_ids or []
        # Invalid ids are refused later, where prompts are checked.
        if tokenizer is not None and all(0 <= t < 2**31 for t in token_ids):
            is_text = prompt.text is not None
            prompt.text = tokenizer.decode(token_ids, skip_special_tokens=is_text)

    def _reasoning_start(self, params: SamplingParams, prompt: Prompt) -> ReasoningStart | None:
        """Where the answer begins; None where that does not matter."""
        if params.reasoning is None and params.thinking_token_budget is None:
            return None
        self.text.need_tokenizer("thinking_token_budget")
        return params.reasoning_start or self._reasoning.start(params, prompt)

    def _check_params(
        self, given: SamplingParams, kind: RequestOutputKind | None, start: ReasoningStart | None
    ) -> tuple[SamplingParams, _core.PreparedParams]:
        params = given.clone()
        params.reasoning_start = start
        if kind is not None:
            params.output_kind = kind
        params.validate()
        if self._num_spec_tokens is None:
            params.num_speculative_tokens = None  # nothing drafts, so there is nothing to limit
        if params.stop and self.text.tokenizer is None:
            self.text.need_tokenizer("stop")
        for i, word in enumerate(params.bad_words or ()):
            tokenizer = self.text.need_tokenizer("bad_words")
            check_length(f"bad_words[{i}]", word, tokenizer, self._model_info.max_model_len)
        vocab_size = self._model_info.vocab_size
        limit = vocab_size if self._max_logprobs == -1 else self._max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(params, name)
            if value is not None and (vocab_size if value == -1 else value) > limit:
                raise ValueError(
                    f"{name}={value} asks for more than max_logprobs={self._max_logprobs}; ask for "
                    "fewer, or make the engine with a larger max_logprobs (-1: no limit)"
                )
            if value is not None and value > vocab_size:
                setattr(params, name, -1)
        if self._logits_processors:
            functions = [each.function_of(params) for each in self._logits_processors]
            params.logits_processors = [*(params.logits_processors or ()), *filter(None, functions)]
        core_params = to_core_params(params, eos_token_ids=self.eos_token_ids)
        core_params.prediction = self._predicted_tokens(params)
        if isinstance(params.structured_outputs, StructuredOutputsParams):
            self.text.need_tokenizer("structured_outputs")
            allowed = without_bad_choices(params.structured_outputs, params.bad_words or ())
            core_params.grammar = self._grammars.compile(allowed)
        if start is not None:
            core_params.grammar = self._reasoning.before(core_params.grammar, params)
        if params.bad_words:
            words = self._bad_words.compile(params)
            core_params.grammar = _core.without(words, core_params.grammar)
        return params, _core.PreparedParams(self._model_info, core_params)

    def _predicted_tokens(self, params: SamplingParams) -> list[int]:
        """The tokens to draft from; none where nothing drafts, as OpenAI's clients expect."""
        prediction = params.prediction or ()
        if prediction and self._num_spec_tokens is None:
            _warn_of_ignored_predictions()
            return []
        most = self._model_info.max_model_len
        if isinstance(prediction, str):
            tokenizer = self.text.need_tokenizer("a prediction given as text")
            check_length("prediction", prediction, tokenizer, most)
            prediction = tokenizer.encode(prediction, add_special_tokens=False)
        if len(prediction) > most:
            _core.PreparedRequest.refuse_length("prediction", str(len(prediction)), most)
        return list(prediction)

    def _find_eos_token_ids(self) -> list[int]:
        vocab_size = self._model_info.vocab_size
        folder = self._generation.folder
        ids = [] if folder is None else _core.load_eos_token_ids(str(folder))
        ids = ids or _core.load_eos_token_ids(str(self._directory))
        if unknown := [token_id for token_id in ids if token_id >= vocab_size]:
            # The model never draws such tokens: harmless, as in transformers.
            logger.warning(
                "%s: eos_token_id %s of generation_config.json or config.json is outside the "
                "vocabulary [0, %d) and ignored",
                self._directory,
                ", ".join(map(str, unknown[:5])),
                vocab_size,
            )
            ids = [token_id for token_id in ids if token_id < vocab_size]
        if self.text.tokenizer is not None:
            eos = self.text.tokenizer.eos_token_id
            if eos is not None and eos not in ids and eos < vocab_size:
                ids.append(eos)
        return ids


@functools.cache
def _warn_of_ignored_predictions() -> None:
    """Warns once."""
    logger.warning(
        "prediction is ignored: this engine does not speculate; give it a speculative_config, such "
        'as {"method": "ngram"}'
    )


def check_length(name: str, text: str, tokenizer: Tokenizer, max_model_len: int) -> None:
    """Raises ValueError for a text that can never fit into max_model_len tokens.

    The check does not tokenize: the bytes of the longest token give a lower bound.
    """
    if len(text) < max_model_len:  # fewest_tokens() are never more than the characters
        return
    fewest = tokenizer.fewest_tokens(text)
    if fewest >= max_model_len:
        amount = f"{len(text)} characters, which are at least {fewest}"
        _core.PreparedRequest.refuse_length(name, amount, max_model_len)
