"""The flags of `specdec-native serve`, under vLLM's names, with their defaults."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from specdec_cli.command_options import SPECULATION_FLAGS, Flag, flag_of, integer, number
from specdec_native import _core
from specdec_serve.http.tools.parsers import REASONING_PARSERS, TOOL_CALL_PARSERS

_UNITS = {unit: 1000**i for i, unit in enumerate("kmgt", 1)}
_UNITS |= {unit: 1024**i for i, unit in enumerate("KMGT", 1)}


def size(text: str) -> int:
    """A number such as 4096, 8k (8,000) or 8K (8,192)."""
    factor = _UNITS.get(text[-1:], 1)
    try:
        value = float(text if factor == 1 else text[:-1]) * factor
        if value == int(value) >= 0:
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{text!r} is not a number such as 4096, 8k (8,000) or 8K (8,192)")


def whole_number(text: str) -> int:
    """A number of at least 0."""
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def size_or_auto(text: str) -> int | str:
    """A size, or "auto"."""
    return "auto" if text in ("auto", "-1") else size(text)


def json_value(text: str) -> Any:
    """Any JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not valid JSON: {error}") from None


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is not a JSON object")
    return value


def json_strings(text: str) -> tuple[str, ...]:
    """A JSON list of strings."""
    value = json_value(text)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f'{text!r} is not a JSON list such as ["*"]')
    return tuple(value)


_ENGINE_KINDS: Mapping[str, Callable[[str], Any]] = {
    "max_model_len": size_or_auto,
    "seed": integer,
    "num_threads": integer,
}

GROUPS: dict[str, list[Flag]] = {
    "Listening": [
        Flag("host", "Address to listen at; all if left out."),
        Flag("port", "Port, by default 8000; 0 for any that is free.", integer),
        Flag("uds", "Path of a unix socket to listen at, instead of host and port."),
        Flag("root_path", "Where a proxy has put the server, such as /llm."),
        Flag("ssl_keyfile", "File of the private key, for TLS."),
        Flag("ssl_certfile", "File of the certificate, for TLS."),
        Flag("ssl_ca_certs", "File of the authorities that sign certificates of clients."),
        Flag(
            "ssl_cert_reqs",
            "0: clients need no certificate; 1: optional; 2: required.",
            integer,
        ),
        Flag("ssl_ciphers", "Ciphers of TLS 1.2 and below, as OpenSSL writes them."),
        Flag("shutdown_timeout", "Seconds that requests may go on after SIGTERM (0).", number),
        Flag("api_server_count", "1: one process serves.", integer),
        Flag("h11_max_incomplete_event_size", "Bytes of a request's headers at most.", size),
        Flag("h11_max_header_count", "Headers of a request at most (256).", integer),
    ],
    "Access": [
        Flag(
            "api_key",
            "Keys of which requests to /v1, /infill and operators' endpoints must bring one, as "
            "'Authorization: Bearer KEY'. Also $SPECDEC_API_KEY or $VLLM_API_KEY.",
            many=True,
        ),
        Flag("allowed_origins", 'CORS: origins, as JSON such as ["*"].', json_strings),
        Flag("allowed_methods", "CORS: methods, as JSON.", json_strings),
        Flag("allowed_headers", "CORS: headers, as JSON.", json_strings),
        Flag("allow_credentials", "CORS: whether credentials are allowed.", bool),
        Flag("middleware", "Import path of an ASGI class to put around. Repeatable.", many=True),
        Flag("disable_fastapi_docs", "Do not answer /openapi.json.", bool),
        Flag("disable_page", "Do not answer / with the chat page.", bool),
        Flag(
            "enable_operator_endpoints",
            "Answer /server_info and /reset_prefix_cache, as $VLLM_SERVER_DEV_MODE=1 does, too.",
            bool,
        ),
    ],
    "Model": [
        Flag(
            "served_model_name",
            "Names that requests may give; the first is reported. MODEL if left out.",
            many=True,
        ),
        Flag("model", "The model, where it is not the first argument."),
        Flag("tokenizer", "Directory or name of another checkpoint's tokenizer."),
        Flag("revision", "Branch, tag or commit of a model name."),
        Flag("generation_config", "auto, vllm (none), or a folder with generation_config.json."),
        Flag("override_generation_config", "JSON put over it.", json_object),
        Flag("hf_overrides", "JSON put over config.json.", json_object),
        Flag("skip_tokenizer_init", "Take and give token ids only.", bool),
        Flag("trust_remote_code", "Run tokenizer code of the checkpoint.", bool),
        Flag("max_logprobs", "Logprobs a request may ask for (20); -1 for no limit.", integer),
    ],
    "Chat": [
        Flag("chat_template", "File, Jinja source or name of one to use in place of the default."),
        Flag(
            "default_chat_template_kwargs",
            "Variables of the template, as JSON; a request's go over them.",
            json_object,
        ),
        Flag("response_role", "Role of the answers (assistant)."),
        Flag(
            "enable_auto_tool_choice",
            "Let the model decide whether to call tools (on, where the server knows how it calls).",
            bool,
        ),
        Flag(
            "tool_call_parser",
            "How the model writes calls of tools; without it, as its chat template shows.",
            choices=TOOL_CALL_PARSERS,
        ),
        Flag(
            "reasoning_parser",
            "How the model marks what it thinks; without it, as its chat template shows.",
            choices=REASONING_PARSERS,
        ),
        Flag(
            "exclude_tools_when_tool_choice_none",
            'Do not show tools to the model where tool_choice is "none".',
            bool,
        ),
        Flag("trust_request_chat_template", "Let requests bring templates (in a sandbox).", bool),
    ],
    "Speculation": [
        dataclasses.replace(
            SPECULATION_FLAGS[0],
            help='JSON such as {"method": "ngram"}; or one key at a time, '
            "--speculative-config.method ngram.",
            kind=json_object,
        ),
        *SPECULATION_FLAGS[1:],
        Flag(
            "per_request_spec_decode_metrics",
            "What answers say about drafts.",
            choices=("none", "summary", "detailed"),
        ),
    ],
    "Engine": [
        flag_of(
            option,
            _ENGINE_KINDS.get(option.name) or {"int": size, "float": number}.get(option.type),
        )
        for option in _core.EngineConfig.options
    ],
    "Limits": [
        Flag("max_num_queued_reqs", "Requests that wait, beyond which answers are 503.", size),
        Flag("max_num_queued_tokens", "The same for the tokens of their prompts.", size),
        Flag(
            "max_n_sequences", "Completions of a request at most, n of each prompt (16384).", size
        ),
        Flag("max_body_bytes", "Longer bodies are answered with 413 (64 MiB).", size),
        Flag("slo_ttft", "Seconds to the first token of a request that counts as good.", number),
        Flag("slo_tpot", "Seconds for each further token of such a request.", number),
    ],
    "Logs": [
        Flag("enable_log_requests", "Log parameters and prompts of requests.", bool),
        Flag("max_log_len", "Characters of a prompt that are logged at most.", size),
        Flag("disable_log_stats", "No summary line every 10 seconds.", bool),
        Flag("enable_request_id_headers", "Answer with X-Request-Id.", bool),
        Flag(
            "uvicorn_log_level",
            "Of the HTTP server (info).",
            choices=("critical", "error", "warning", "info", "debug", "trace"),
        ),
        Flag("disable_uvicorn_access_log", "No line for every answer.", bool),
        Flag("disable_access_log_for_endpoints", "No line for these paths: /health,/metrics."),
    ],
    "Answers": [
        Flag("enable_prompt_tokens_details", "Say how many prompt tokens were cached.", bool),
        Flag("enable_force_include_usage", "End every stream with usage.", bool),
        Flag(
            "fingerprint_mode",
            "What system_fingerprint says (full).",
            choices=("full", "hash", "custom", "none"),
        ),
        Flag("fingerprint_value", "The fingerprint of --fingerprint-mode custom."),
        Flag(
            "structured_outputs_config",
            'JSON such as {"disable_any_whitespace": true, "disable_additional_properties": true}, '
            "which then holds for all requests.",
            json_object,
        ),
        Flag(
            "logits_processors",
            "Classes of vLLM's form that change logits, as module:Class. Repeatable.",
            many=True,
        ),
        Flag(
            "sse_keep_alive_interval", "Seconds of silence before a comment; 0: none.", whole_number
        ),
        Flag(
            "stream_interval",
            "Tokens of a stream's chunk, but the first and last (1).",
            integer,
        ),
        Flag("enable_per_request_metrics", "Say how long a request took.", bool),
        Flag("enable_server_load_tracking", "Answer /load.", bool),
        Flag("enable_tokenizer_info_endpoint", "Answer /tokenizer_info.", bool),
    ],
}
