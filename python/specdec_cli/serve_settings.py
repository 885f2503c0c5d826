"""Turns the flags of `specdec-native serve` into options of model, engine, API and listener."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specdec_cli.models import DEFAULT_MODEL
from specdec_cli.serve_flags import GROUPS
from specdec_cli.serve_parser import UsageError
from specdec_cli.serve_vllm_flags import REFUSED, WITHOUT_EFFECT
from specdec_native import _core
from specdec_vllm.arguments import ENGINE_ARGUMENTS, REASONS, engine_options
from specdec_vllm.speculative_arguments import ARGUMENTS as SPECULATIVE_ARGUMENTS

if TYPE_CHECKING:
    from specdec_serve.http.server_options import ListenOptions, ServerOptions

# Options whose flags have other names.
_RENAMED = {
    "max_num_queued_reqs": "max_queued_requests",
    "max_num_queued_tokens": "max_queued_tokens",
    "trust_request_chat_template": "request_chat_template",
    "exclude_tools_when_tool_choice_none": "exclude_unused_tools",
    "per_request_spec_decode_metrics": "acceptance_metrics",
    "enable_per_request_metrics": "request_metrics",
    "enable_prompt_tokens_details": "prompt_tokens_details",
    "enable_force_include_usage": "force_include_usage",
    "sse_keep_alive_interval": "sse_keep_alive_seconds",
    "enable_server_load_tracking": "track_load",
    "enable_tokenizer_info_endpoint": "tokenizer_info",
    "enable_request_id_headers": "request_id_headers",
    "enable_log_requests": "log_requests",
    "uvicorn_log_level": "log_level",
    "h11_max_incomplete_event_size": "max_header_bytes",
    "h11_max_header_count": "max_headers",
}
# Flags that are not engine arguments.
_SERVER_FLAGS = {"first_argument", *(flag.name for flags in GROUPS.values() for flag in flags)}
_SERVER_FLAGS -= {*ENGINE_ARGUMENTS, *SPECULATIVE_ARGUMENTS}
_KEY_VARIABLES = ("SPECDEC_API_KEY", "VLLM_API_KEY")
_DEV_MODE_VARIABLE = "VLLM_SERVER_DEV_MODE"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of a server. `without_effect` are given flags that change nothing."""

    model: str
    engine: dict[str, Any]
    server: ServerOptions
    listen: ListenOptions
    without_effect: list[str]


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Settings from the given flags. Raises UsageError for a refused flag."""
    from specdec_serve.http.server_options import ListenOptions, ServerOptions  # noqa: PLC0415

    _check(given)
    model = _model(given)
    server = {name: value for name, value in given.items() if name in _SERVER_FLAGS}
    rest = {name: value for name, value in given.items() if name not in {*server, *REFUSED}}
    ignored = [name for name in rest if name in REASONS or name in WITHOUT_EFFECT]
    try:
        engine = engine_options({k: v for k, v in rest.items() if k not in ignored})
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    names = tuple(given.get("served_model_name") or (model,))
    return Settings(
        model,
        engine,
        ServerOptions(
            model_names=names,
            api_keys=_api_keys(given),
            root_path=given.get("root_path", "").rstrip("/"),
            openapi=not given.get("disable_fastapi_docs", False),
            page=not given.get("disable_page", False),
            log_stats=not given.get("disable_log_stats", False),
            fingerprint=_fingerprint(given, model, engine),
            tool_call_parser=_tool_call_parser(given),
            operator_endpoints=given.get(
                "enable_operator_endpoints", os.environ.get(_DEV_MODE_VARIABLE) == "1"
            ),
            **_options(server, ServerOptions),
        ),
        ListenOptions(
            access_log=not given.get("disable_uvicorn_access_log", False),
            unlogged_paths=_paths(given.get("disable_access_log_for_endpoints", "")),
            about=_about(engine),
            **_options(server, ListenOptions),
        ),
        ignored,
    )


def _check(given: Mapping[str, Any]) -> None:
    if not str(given.get("root_path", "/")).startswith("/"):
        raise UsageError("--root-path must begin with /")
    for name, (allowed, advice) in REFUSED.items():
        if name in given and given[name] not in allowed:
            raise UsageError(f"--{name.replace('_', '-')} is not supported: {advice}")


def _model(given: Mapping[str, Any]) -> str:
    named = {given[name] for name in ("first_argument", "model") if name in given}
    if not named:
        raise UsageError(
            "MODEL is missing: a directory, a .gguf file or a model name, before the flags, as in "
            f"`specdec-native serve {DEFAULT_MODEL} --port 8000`"
        )
    if len(named) > 1:
        raise UsageError(f"give one model, not {' and '.join(sorted(map(str, named)))}")
    return str(named.pop())


def _options(given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Given values of flags that have the names of fields of `kind`."""
    names = {field.name for field in dataclasses.fields(kind)} - {"root_path", "tool_call_parser"}
    options = {_RENAMED.get(flag, flag): value for flag, value in given.items()}
    return {n: tuple(v) if isinstance(v, list) else v for n, v in options.items() if n in names}


def _api_keys(given: Mapping[str, Any]) -> tuple[str, ...]:
    keys = given.get("api_key")
    if keys is None:
        keys = [os.environ[name] for name in _KEY_VARIABLES if os.environ.get(name)]
    if not all(keys):
        raise UsageError("--api-key needs a key that is not empty")
    return tuple(keys)


def _tool_call_parser(given: Mapping[str, Any]) -> str | None:
    """The tool-call parser; "none" where automatic tool choice is turned off."""
    if not given.get("enable_auto_tool_choice", True):
        return "none"
    return given.get("tool_call_parser")


def _fingerprint(given: Mapping[str, Any], model: str, engine: Mapping[str, Any]) -> str | None:
    mode = given.get("fingerprint_mode", "full")
    if mode == "none":
        return None
    if mode == "custom":
        if not given.get("fingerprint_value"):
            raise UsageError("--fingerprint-mode custom needs --fingerprint-value")
        return str(given["fingerprint_value"])
    config = json.dumps([model, engine], sort_keys=True, default=str)
    version = _core.__version__
    return f"specdec-native-{version}-{hashlib.sha256(config.encode()).hexdigest()[:8]}"


def _about(engine: Mapping[str, Any]) -> str:
    config = engine.get("speculative_config")
    if config is None:
        return "no drafts"
    return f"drafts by {config.get('method') or config.get('model')}"


def _paths(text: str) -> tuple[str, ...]:
    return tuple(path.strip() for path in text.split(",") if path.strip())
