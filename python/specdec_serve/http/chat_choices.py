"""The choices of a chat's answer, whole and streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_native.requests.outputs import CompletionOutput, RequestOutput
from specdec_serve.http.chunks import dumps
from specdec_serve.http.draft_trees import draft_trees_json
from specdec_serve.http.logprobs import TokenNames, chat_logprobs
from specdec_serve.http.protocol.chat import ChatCompletionRequest
from specdec_serve.http.service import Generation, Service
from specdec_serve.http.tools.answer import AnswerReader, WholeAnswer, deltas_of
from specdec_serve.http.tools.request import ToolUse
from specdec_serve.http.usage import reasoning_tokens


class _Choices:
    """The common part of the choices of whole and of streamed answers."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        messages: list[dict[str, Any]],
        tools: ToolUse | None,
        generation: Generation,
        service: Service,
    ) -> None:
        last = messages[-1]
        self._body = body
        self._tools = tools
        self._params = generation.requests[0].params
        self._service = service
        self._format = service.answer_format
        self._all_readers: list[AnswerReader] = []
        self._role = service.options.response_role if body.add_generation_prompt else last["role"]
        self._echoed = ""  # comes before the text of each choice
        if body.echo and last["role"] == self._role:
            self._echoed = last.get("content") or ""
        tokenizer = service.engine.tokenizer if service.engine.has_tokenizer else None
        self._names = TokenNames(tokenizer, as_token_ids=body.return_tokens_as_token_ids)

    def num_reasoning_tokens(self) -> int | None:
        """The tokens of all reasoning so far; None for a model that does not mark any."""
        if self._format.reasoning is None:
            return None
        return sum(reasoning_tokens(self._service, reader.thoughts) for reader in self._all_readers)

    def _make_reader(self) -> AnswerReader | None:
        """The reader of a choice; None where the text is all content."""
        shows = self._body.include_reasoning
        reader = AnswerReader.of(self._tools, self._format, self._params, shows_reasoning=shows)
        self._all_readers += [] if reader is None else [reader]
        return reader

    def _logprobs(self, part: CompletionOutput) -> str:
        if not self._body.logprobs:
            return "null"
        num_top = self._body.top_logprobs or 0
        return chat_logprobs(self._names, part.logprobs, num_top, part.text_lengths)

    def _draft_trees(self, part: CompletionOutput) -> str:
        """The member draft_trees, if requested and the engine speculates."""
        if part.draft_trees is None or part.acceptance is None:
            return ""
        return f',"draft_trees":{draft_trees_json(self._names, part.draft_trees)}'

    def _finish_reason(self, part: CompletionOutput, *, has_calls: bool) -> str | None:
        """The reason; "tool_calls" where the model chose to make calls and ended by itself."""
        if has_calls and part.finish_reason == "stop" and self._tools is not None:
            return "stop" if self._tools.choice == "named" else "tool_calls"
        return part.finish_reason


class Messages(_Choices):
    """The choices of a whole answer."""

    def choice(self, index: int, part: CompletionOutput, output: RequestOutput) -> str:
        """A choice with its message."""
        ids = part.token_ids if self._body.return_token_ids else None
        answer = self._read(part.text)
        content = answer.content
        if self._echoed:
            content = self._echoed + (content or "")
        calls = f',"tool_calls":{dumps(answer.calls)}' if answer.calls else ""
        reasoning = dumps(answer.reasoning)
        reason = self._finish_reason(part, has_calls=answer.has_calls)
        return (
            f'{{"index":{index},"message":{{"role":{dumps(self._role)},'
            f'"content":{dumps(content)},"refusal":null,"annotations":null,'
            f'"audio":null,"function_call":null{calls},"reasoning":{reasoning},'
            f'"reasoning_content":{reasoning}}},'
            f'"logprobs":{self._logprobs(part)},"finish_reason":{dumps(reason)},'
            f'"stop_reason":{dumps(part.stop_reason)},"token_ids":{dumps(ids)}'
            f"{self._draft_trees(part)}}}"
        )

    def _read(self, text: str) -> WholeAnswer:
        reader = self._make_reader()
        return WholeAnswer(text) if reader is None else reader.read_whole(text)


class Deltas(_Choices):
    """The choices of a stream."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        messages: list[dict[str, Any]],
        tools: ToolUse | None,
        generation: Generation,
        service: Service,
    ) -> None:
        super().__init__(body, messages, tools, generation, service)
        self._begun = [False] * body.n
        for _ in range(body.n):
            self._make_reader()
        self._readers = self._all_readers  # none, or one for each choice

    def opening(self, num_choices: int) -> list[str]:
        """The role, once per choice."""
        return [
            f'{{"index":{i},"delta":{{"role":{dumps(self._role)},"content":""}},"logprobs":null,'
            '"finish_reason":null}'
            for i in range(num_choices)
        ]

    def news(self, index: int, part: CompletionOutput, output: RequestOutput) -> Sequence[str]:
        """The new part of a choice; a token without text has an empty content."""
        text = part.text
        if self._readers:
            return self._news_of_reader(index, part)
        if self._echoed and not self._begun[index]:
            self._begun[index] = True
            text = self._echoed + text
        return (self._choice(index, part, f'{{"content":{dumps(text)}}}'),)

    def _news_of_reader(self, index: int, part: CompletionOutput) -> Sequence[str]:
        """New text and calls, which may be held back; token ids and logprobs are not."""
        reader = self._readers[index]
        events = reader.read_shown(part.text, is_last=part.finish_reason is not None)
        deltas = deltas_of(events)
        if self._echoed and not self._begun[index]:
            self._begun[index] = True
            deltas.insert(0, f'{{"content":{dumps(self._echoed)}}}')
        body = self._body
        tells_tokens = body.logprobs or body.return_token_ids or part.draft_trees
        if not deltas and (tells_tokens or part.finish_reason is not None):
            deltas = ["{}"]
        earlier = [
            f'{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":null}}'
            for delta in deltas[:-1]
        ]
        last = [self._choice(index, part, delta) for delta in deltas[-1:]]
        return earlier + last

    def _choice(self, index: int, part: CompletionOutput, delta: str) -> str:
        more, reason = "", part.finish_reason
        if reason is not None:
            has_calls = bool(self._readers) and self._readers[index].has_calls
            reason = self._finish_reason(part, has_calls=has_calls)
            more = f',"stop_reason":{dumps(part.stop_reason)}'
        if self._body.return_token_ids:
            more += f',"token_ids":{dumps(part.token_ids)}'
        more += self._draft_trees(part)
        return (
            f'{{"index":{index},"delta":{delta},"logprobs":{self._logprobs(part)},'
            f'"finish_reason":{dumps(reason)}{more}}}'
        )
