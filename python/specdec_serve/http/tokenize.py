"""POST /tokenize and /detokenize, GET /tokenizer_info: text and tokens without the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastapi
from starlette.responses import Response

from specdec_native.common.checks import check_text
from specdec_native.requests.request_builder import check_length
from specdec_native.text.tokenizer import Tokenizer
from specdec_native.text.tokenizer_files import optional_json
from specdec_serve.http.chunks import dumps
from specdec_serve.http.errors import ApiError, bad_request
from specdec_serve.http.messages import plain_messages
from specdec_serve.http.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from specdec_serve.http.service import Result, Service, body_bytes, is_long
from specdec_serve.http.templates import template_options


def add_routes(app: fastapi.FastAPI, service: Service) -> None:
    """Adds the routes."""

    async def in_thread(num_bytes: int, work: Callable[[Tokenizer], Result]) -> Result:
        try:
            return await service.in_thread(num_bytes, work, service.engine.tokenizer)
        except Exception as error:
            raise service.as_api_error(error) from error

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, http: fastapi.Request) -> Response:
        service.check_model(body.model)
        body.check()
        adds_specials = body.add_special_tokens
        if adds_specials is None:
            adds_specials = body.messages is None  # a template writes special tokens itself

        def write(tokenizer: Tokenizer, token_ids: list[int]) -> str:
            names = tokenizer.convert_ids_to_tokens(token_ids) if body.return_token_strs else None
            return dumps(
                {
                    "count": len(token_ids),
                    "max_model_len": service.max_model_len,
                    "tokens": token_ids,
                    "token_strs": names,
                }
            )

        answer = await of_tokens(
            service,
            body_bytes(http.headers),
            _text_maker(body, service),
            write,
            field="prompt" if body.messages is None else "messages",
            add_special_tokens=adds_specials,
        )
        return Response(answer, media_type="application/json")

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, http: fastapi.Request) -> Response:
        service.check_model(body.model)
        text = await in_thread(
            body_bytes(http.headers), lambda tokenizer: _decode(body.tokens, tokenizer, service)
        )
        return Response(dumps({"prompt": text}), media_type="application/json")

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        if not service.options.tokenizer_info:
            raise ApiError(404, "start the server with --enable-tokenizer-info-endpoint")
        return await in_thread(0, _tokenizer_config)


async def of_tokens(
    service: Service,
    num_bytes: int,
    make_text: Callable[[], str],
    use: Callable[[Tokenizer, list[int]], Result],
    *,
    field: str,
    add_special_tokens: bool,
) -> Result:
    """What `use` makes of a text's tokens. All functions run in threads.

    `num_bytes` is the length of the request's body, `field` the text's name in errors. Raises
    ApiError.
    """

    def work(text: str) -> Result:
        tokenizer = service.engine.tokenizer
        if is_long(len(text)):  # shorter texts may be counted even if they do not fit
            check_length(field, text, tokenizer, service.max_model_len)
        [token_ids] = tokenizer.encode_batch([text], add_special_tokens)
        return use(tokenizer, token_ids)

    try:
        text = await service.in_thread(num_bytes, make_text)
        return await service.in_thread(max(num_bytes, len(text)), work, text)
    except Exception as error:
        raise service.as_api_error(error) from error


def _text_maker(body: TokenizeRequest, service: Service) -> Callable[[], str]:
    """A function for a thread that gives the text to tokenize."""
    if body.messages is None:
        text = body.prompt or ""
        return lambda: check_text("prompt", text)
    messages = plain_messages(body.messages)
    options = template_options(
        service,
        tools=body.tools,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
    )

    def render() -> str:
        prompt = service.engine.chat_prompt(
            messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            **options,
        )
        return prompt.text or ""

    return render


def _decode(token_ids: list[int], tokenizer: Tokenizer, service: Service) -> str:
    size = max(tokenizer.vocab_size, service.engine.model_info().vocab_size)
    for token_id in token_ids:
        if not 0 <= token_id < size:
            raise bad_request(
                f"tokens: has the token id {token_id}, which is out of vocabulary: ids are in "
                f"[0, {size})",
                "tokens",
            )
    return tokenizer.decode(token_ids)


def _tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer_config.json beside the tokenizer; special tokens and chat template as in use."""
    directory = tokenizer.name_or_path
    config = optional_json(Path(directory) / "tokenizer_config.json") if directory else {}
    config.setdefault("tokenizer_class", type(tokenizer).__name__)
    config |= tokenizer.special_tokens_map
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    return config
