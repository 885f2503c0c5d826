"""A server's options; `specdec-native serve` fills them in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

AcceptanceDetail = Literal["none", "summary", "detailed"]


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """Options of the API. `ListenOptions` has the address and the shutdown.

    Attributes:
        model_names: names that requests may give as `model`; the first is reported.
        api_keys: a request must give one of these keys; empty for no check.
        allowed_origins, allowed_methods, allowed_headers, allow_credentials: CORS.
        root_path: the prefix that a proxy puts before paths, such as /llm, without a final slash.
        openapi: whether /openapi.json describes the API.
        page: whether / is the chat page.
        middleware: import paths of ASGI classes or functions put around the API.
        max_body_bytes: longer bodies are answered with 413.
        max_body_seconds: slower bodies are answered with 408; a body gets a second more per 64 KiB.
        max_n_sequences: limit of a request's completions, n for each of its prompts.
        max_queued_requests: if more requests wait for their first step, new ones are answered with
            503; None for no limit.
        max_queued_tokens: the same limit for the tokens of waiting prompts.
        response_role: role of the answer's messages.
        request_chat_template: whether a request may bring a chat template (it runs in the sandbox).
        default_chat_template_kwargs: variables of the chat template; a request's take precedence.
        tool_call_parser: how calls are written where tool_choice is "auto", a name of
            TOOL_CALL_PARSERS; None: as the chat template shows.
        reasoning_parser: how reasoning is marked, a name of REASONING_PARSERS; None: as the chat
            template shows.
        exclude_unused_tools: whether to hide tools from the model where tool_choice is "none".
        acceptance_metrics: what answers report about drafts.
        request_metrics: whether answers report their times.
        prompt_tokens_details: whether usage reports cached prompt tokens.
        force_include_usage: whether streams end with usage, asked for or not.
        fingerprint: the value of `system_fingerprint`; None for null.
        sse_keep_alive_seconds: a stream gets a comment after this time without events; 0 for none.
        stream_interval: least number of tokens in a chunk of a stream, except the first and last.
        track_load: whether /load counts.
        tokenizer_info: whether /tokenizer_info answers.
        operator_endpoints: whether /server_info and /reset_prefix_cache answer.
        request_id_headers: whether answers carry X-Request-Id.
        log_requests: whether prompts and parameters are logged.
        max_log_len: characters of a prompt that are logged at most; None for all.
        log_stats: whether a summary is logged every ten seconds while there is work.
        slo_ttft, slo_tpot: a request counts as good within these seconds to the first token and per
            further token; None for no limit.
    """

    model_names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    root_path: str = ""
    openapi: bool = True
    page: bool = True
    middleware: tuple[str, ...] = ()
    max_body_bytes: int = 64 << 20
    max_body_seconds: float = 60.0
    max_n_sequences: int = 16384
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    response_role: str = "assistant"
    request_chat_template: bool = False
    default_chat_template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    exclude_unused_tools: bool = False
    acceptance_metrics: AcceptanceDetail = "none"
    request_metrics: bool = False
    prompt_tokens_details: bool = False
    force_include_usage: bool = False
    fingerprint: str | None = None
    sse_keep_alive_seconds: float = 0.0
    stream_interval: int = 1
    track_load: bool = False
    tokenizer_info: bool = False
    operator_endpoints: bool = False
    request_id_headers: bool = False
    log_requests: bool = False
    max_log_len: int | None = None
    log_stats: bool = True
    slo_ttft: float | None = None
    slo_tpot: float | None = None


@dataclasses.dataclass(frozen=True)
class ListenOptions:
    """How a server listens, logs and ends.

    Attributes:
        host: address to listen at; None for all.
        port: 0 for any that is free.
        uds: path of a unix socket, instead of host and port.
        ssl_keyfile, ssl_certfile, ssl_ca_certs, ssl_ciphers: TLS files and ciphers.
        ssl_cert_reqs: whether clients need a certificate, a value of ssl.VerifyMode.
        shutdown_timeout: seconds that running requests get at the server's end.
        log_level: uvicorn's log level.
        access_log: whether a line is logged for every answer.
        unlogged_paths: paths whose answers are not logged.
        max_header_bytes, max_headers: limits of a request; more are answered with 431 and 400.
        about: the model's description in the first log line.
    """

    host: str | None = None
    port: int = 8000
    uds: str | None = None
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_cert_reqs: int = 0
    ssl_ciphers: str | None = None
    shutdown_timeout: float = 0.0
    log_level: str = "info"
    access_log: bool = True
    unlogged_paths: tuple[str, ...] = ()
    max_header_bytes: int = 64 << 10
    max_headers: int = 256
    about: str = ""
