"""The flags of `specdec-native serve`: what each sets, what is refused, and vLLM's commands."""

import json
import shlex
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from command_line import run, serve_flags
from conftest import HeadMaker
from server_life import living
from server_process import serve
from server_world import MODEL
from specdec_cli.serve_flags import GROUPS
from specdec_cli.serve_parser import UsageError
from specdec_cli.serve_settings import Settings, settings_of
from specdec_native import Engine, __version__
from specdec_native.options.engine_options import OPTIONS
from specdec_vllm.arguments import ENGINE_ARGUMENTS, FIXED_ARGUMENTS, REASONS
from tiny_text_model import TEXT_TOKEN_IDS, text_params

BODY: dict[str, Any] = {
    "prompt": "abcabcabc",
    "seed": 5,
    "max_tokens": 24,
    "ignore_eos": True,
    "allowed_token_ids": TEXT_TOKEN_IDS,
}


def settings(line: str) -> Settings:
    return settings_of(serve_flags(shlex.split(line)))


def refused(line: str) -> str:
    with pytest.raises(UsageError) as caught:
        settings(line)
    return str(caught.value)


# -- what flags set


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("--api-key a b --api-key c", {"api_keys": ("a", "b", "c")}),
        ("--allowed-origins '[\"https://x\"]'", {"allowed_origins": ("https://x",)}),
        ("--allowed-methods '[\"GET\"]'", {"allowed_methods": ("GET",)}),
        ("--allowed-headers '[\"x\"]'", {"allowed_headers": ("x",)}),
        ("--allow-credentials", {"allow_credentials": True}),
        ("--middleware a.B --middleware c.d", {"middleware": ("a.B", "c.d")}),
        ("--served-model-name A B", {"model_names": ("A", "B")}),
        ("--root-path /llm", {"root_path": "/llm"}),
        ("--root-path /llm/", {"root_path": "/llm"}),
        ("--root-path /", {"root_path": ""}),
        ("--disable-fastapi-docs", {"openapi": False}),
        ("--disable-page", {"page": False}),
        ("--response-role bot", {"response_role": "bot"}),
        ("--trust-request-chat-template", {"request_chat_template": True}),
        (
            "--enable-auto-tool-choice --tool-call-parser hermes",
            {"tool_call_parser": "hermes", "exclude_unused_tools": False},
        ),
        ("--tool-call-parser llama3_json", {"tool_call_parser": "llama3_json"}),
        ("--reasoning-parser openai_gptoss", {"reasoning_parser": "openai_gptoss"}),
        (
            "--enable-auto-tool-choice --tool-call-parser openai",
            {"tool_call_parser": "openai", "reasoning_parser": None},
        ),
        ("--no-enable-auto-tool-choice", {"tool_call_parser": "none"}),
        ("--exclude-tools-when-tool-choice-none", {"exclude_unused_tools": True}),
        (
            "--default-chat-template-kwargs '{\"enable_thinking\": false}'",
            {"default_chat_template_kwargs": {"enable_thinking": False}},
        ),
        (
            "",
            {
                "allowed_origins": (),
                "middleware": (),
                "default_chat_template_kwargs": {},
                "sse_keep_alive_seconds": 0.0,
            },
        ),
        ("--per-request-spec-decode-metrics detailed", {"acceptance_metrics": "detailed"}),
        ("--max-num-queued-reqs 3", {"max_queued_requests": 3}),
        ("--max-num-queued-tokens 8k", {"max_queued_tokens": 8000}),
        ("--max-body-bytes 1M", {"max_body_bytes": 1 << 20}),
        ("--slo-ttft 0.5 --slo-tpot=.05", {"slo_ttft": 0.5, "slo_tpot": 0.05}),
        ("--enable-log-requests --max-log-len 9", {"log_requests": True, "max_log_len": 9}),
        ("--enable-request-id-headers", {"request_id_headers": True}),
        ("--enable-prompt-tokens-details", {"prompt_tokens_details": True}),
        ("--enable-force-include-usage", {"force_include_usage": True}),
        ("--enable_force_include_usage", {"force_include_usage": True}),
        ("--no-enable-force-include-usage", {"force_include_usage": False}),
        ("--fingerprint-mode none", {"fingerprint": None}),
        ("--fingerprint-mode custom --fingerprint-value me", {"fingerprint": "me"}),
        ("--sse-keep-alive-interval 15", {"sse_keep_alive_seconds": 15.0}),
        ("--stream-interval 4", {"stream_interval": 4}),
        ("--enable-per-request-metrics", {"request_metrics": True}),
        ("--enable-server-load-tracking", {"track_load": True}),
        ("--enable-tokenizer-info-endpoint", {"tokenizer_info": True}),
    ],
)
def test_flags_of_the_api(flags: str, options: dict[str, Any]) -> None:
    server = settings(f"m {flags}").server
    assert {name: getattr(server, name) for name in options} == options


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("--host ::1 --port 81", {"host": "::1", "port": 81}),
        ("--uds server.sock", {"uds": "server.sock"}),
        ("--ssl-keyfile k --ssl-certfile c", {"ssl_keyfile": "k", "ssl_certfile": "c"}),
        ("--ssl-ca-certs a --ssl-cert-reqs 2", {"ssl_ca_certs": "a", "ssl_cert_reqs": 2}),
        ("--shutdown-timeout 7", {"shutdown_timeout": 7}),
        ("--uvicorn-log-level warning", {"log_level": "warning"}),
        ("--disable-uvicorn-access-log", {"access_log": False}),
        ("--disable-access-log-for-endpoints /a,/b", {"unlogged_paths": ("/a", "/b")}),
        ("--h11-max-header-count 5", {"max_headers": 5}),
        ("--h11-max-incomplete-event-size 4K", {"max_header_bytes": 4096}),
    ],
)
def test_flags_of_the_listener(flags: str, options: dict[str, Any]) -> None:
    listen = settings(f"m {flags}").listen
    assert {name: getattr(listen, name) for name in options} == options


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("", {}),
        ("--max-model-len 8k", {"max_model_len": 8000}),
        ("--max-model-len 1K", {"max_model_len": 1024}),
        ("--max-model-len auto", {}),
        ("--max-num-seqs=8 --max-num-batched-tokens 2k", None),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--generation-config vllm", {"generation_config": "vllm"}),
        (
            "--override-generation-config.temperature 0.5",
            {"override_generation_config": {"temperature": 0.5}},
        ),
        ("--hf-overrides.rope.theta 1e4", {"hf_overrides": {"rope": {"theta": 1e4}}}),
        ("--chat-template x.jinja", {"chat_template": "x.jinja"}),
        ("--max-logprobs -1", {"max_logprobs": -1}),
        ("--num-gpu-blocks-override 32", {"num_kv_blocks": 32}),
        ("-q int8 --cpu-isa avx2 --threads 2 --device cpu", None),
        (
            "-tp 2 -dp 1 -pp 3 --api-server-count 1",
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 3},
        ),
        ("--kv-cache-memory-bytes 4e9", {"kv_cache_memory_bytes": 4 * 10**9}),
        (
            "-qint8 --chat-template '--a=b c' --",
            {"quantization": "int8", "chat_template": "--a=b c"},
        ),
        ("--hf-overrides.b -x", {"hf_overrides": {"b": "-x"}}),
        ('-sc \'{"method": "ngram"}\'', {"speculative_config": {"method": "ngram"}}),
        (
            "-sc.method ngram --speculative-config.num-speculative-tokens 3",
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        ),
        (
            '-sc \'{"method": "ngram"}\' --speculative_config.num_speculative_tokens=3',
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        ),
        (
            "--spec-method draft_model --spec-model d --spec-tokens 4",
            {
                "speculative_config": {
                    "method": "draft_model",
                    "model": "d",
                    "num_speculative_tokens": 4,
                }
            },
        ),
    ],
)
def test_flags_of_the_engine(flags: str, options: dict[str, Any] | None) -> None:
    made = settings(f"m {flags}")
    if options is None:
        names = ("max_num_seqs", "max_num_batched_tokens", "quantization", "cpu_isa", "num_threads")
        given = {name: made.engine[name] for name in names if name in made.engine}
        assert given in (
            {"max_num_seqs": 8, "max_num_batched_tokens": 2000},
            {"quantization": "int8", "cpu_isa": "avx2", "num_threads": 2},
        )
    else:
        assert made.engine == options
    assert made.model == "m" and made.without_effect == []


def test_every_option_of_the_engine_and_every_argument_of_vllms_is_a_flag() -> None:
    known = {*OPTIONS, *ENGINE_ARGUMENTS, *FIXED_ARGUMENTS, *REASONS} - {"taps"}
    for name in known:
        if name.startswith("_"):
            continue
        with pytest.raises(UsageError) as caught:
            serve_flags([f"--{name.replace('_', '-')}=1", "--nothing-like-it"])
        assert "there is no flag --" + name.replace("_", "-") not in str(caught.value), name


@pytest.mark.parametrize("mode", ["full", "hash"])
def test_a_fingerprint_is_that_of_the_version_and_the_settings(mode: str) -> None:
    lines = [f"m --fingerprint-mode {mode} {rest}" for rest in ("", "", "-sc.method ngram")]
    first, same, other = [settings(line).server.fingerprint for line in lines]
    assert first == same != other and first is not None
    assert first.startswith(f"specdec-native-{__version__}-")


def test_keys_come_from_the_environment_unless_they_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "theirs")
    assert settings("m").server.api_keys == ("theirs",)
    monkeypatch.setenv("SPECDEC_API_KEY", "ours")
    assert settings("m").server.api_keys == ("ours", "theirs")
    assert settings("m --api-key mine").server.api_keys == ("mine",)
    assert "not empty" in refused("m --api-key ''")


def test_endpoints_of_operators_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a flag, or as vLLM's are."""
    monkeypatch.delenv("VLLM_SERVER_DEV_MODE", raising=False)
    assert not settings("m").server.operator_endpoints
    assert settings("m --enable-operator-endpoints").server.operator_endpoints
    for value, is_on in (("0", False), ("1", True)):
        monkeypatch.setenv("VLLM_SERVER_DEV_MODE", value)
        assert settings("m").server.operator_endpoints is is_on
    assert not settings("m --no-enable-operator-endpoints").server.operator_endpoints


def test_flags_without_a_meaning_are_accepted_and_named() -> None:
    made = settings(
        "--enable-chunked-prefill --no-async-scheduling --disable-log-requests m "
        "--cudagraph-capture-sizes 1 2 4 --compilation-config.mode 3 -cc.cudagraph_mode FULL "
        "--limit-mm-per-prompt.image 2 --swap-space 4"
    )
    assert made.model == "m" and made.engine == {}
    assert set(made.without_effect) == {
        *("enable_chunked_prefill", "async_scheduling", "disable_log_requests", "swap_space"),
        *("cudagraph_capture_sizes", "compilation_config", "limit_mm_per_prompt"),
    }


# -- what is refused


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("m --max-modle-len 5", "did you mean --max-model-len"),
        ("m --speculative-conf.method ngram", "did you mean --speculative-config"),
        ("m n", "unexpected argument 'n'"),
        ("m --api-key=k n", "unexpected argument 'n'"),
        ("m --first-argument n", "there is no flag --first-argument; --help"),
        ("m --gpu-memory-utilization x", "'x' is not a number"),
        ("", "MODEL is missing"),
        ("--port 80", "specdec-native serve SmolLM2-135M-Instruct"),
        ("m --model n", "give one model, not m and n"),
        ("m --port abc", "--port: 'abc' is not a whole number"),
        ("m --max-model-len 8q", "--max-model-len: '8q' is not a number such as"),
        ("m --max-body-bytes=-1", "is not a number such as"),
        ("m --root-path llm", "must begin with /"),
        ("m --sse-keep-alive-interval=-1", "is not a whole number"),
        ("m --sse-keep-alive-interval 0.5", "is not a whole number"),
        ("m --sse-keep-alive-interval nan", "is not a whole number"),
        ("m --speculative-config '{'", "is not valid JSON"),
        ("m --speculative-config '[]'", "is not a JSON object"),
        ("m --allowed-origins '*'", "is not valid JSON"),
        ("m --allowed-origins '[1]'", "is not a JSON list"),
        ("m --default-chat-template-kwargs '{'", "is not valid JSON"),
        ("--served-model-name name m", "before the flags"),
        ("m --speculative-config.method", "needs a value"),
        ("m -tp two", "-tp: 'two' is not a number"),
        ("m -dp 2", "start one process for each replica"),
        ("m --api-server-count 2", "--api-server-count is not supported"),
        ("m --enable-auto-tool-choice --tool-call-parser mine", "'hermes', 'qwen3_json'"),
        ("m --tool-parser-plugin x.py", "--tool-parser-plugin is not supported"),
        ("m --reasoning-parser mine", "choose from 'openai_gptoss'"),
        ("m --lora-modules a=b", "merge the adapter"),
        ("m --fingerprint-mode custom", "--fingerprint-value"),
        ("m --per-request-spec-decode-metrics all", "invalid choice"),
        ("m --enable-lora", "merge the adapter"),
    ],
)
def test_flags_that_are_refused(line: str, message: str) -> None:
    assert message in refused(line)


def test_wrong_usage_is_one_line_and_exit_code_2() -> None:
    result = run("serve", "m", "--max-modle-len", 5)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("error: there is no flag") and result.stderr.count("\n") == 1


def test_help_is_shown_whatever_else_is_wrong() -> None:
    result = run("serve", "m", "--max-modle-len", "--help")
    assert result.returncode == 0 and "Listening:" in result.stdout


def test_without_a_model_serve_says_that_it_is_missing() -> None:
    result = run("serve")
    assert result.returncode == 2 and result.stdout == ""
    assert "MODEL" in result.stderr and result.stderr.count("\n") == 1


def test_help_lists_every_flag_in_its_group() -> None:
    text = run("serve", "--help-all").stdout
    for title, flags in GROUPS.items():
        assert f"\n{title}:\n" in text
        for flag in flags:
            assert f"--{flag.name.replace('_', '-')}" in text
    for name in OPTIONS:
        assert f"--{name.replace('_', '-')}" in text
    assert "--enable-chunked-prefill" in text
    assert "serve" in run("--help").stdout


def test_without_its_packages_serve_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; sys.argv[1:] = ['serve', 'm'];"
        "import specdec_native.__main__ as m; m.main()"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "pip install 'specdec-native[serve]'" in result.stderr


# -- vLLM's commands, with the program's name changed


@pytest.fixture(scope="module")
def expected(model: Path) -> str:
    engine = Engine(model)
    return engine.generate(BODY["prompt"], text_params(), use_tqdm=False)[0].outputs[0].text


def test_a_draft_model_as_on_vllms_page(model: Path, expected: str, tmp_path: Path) -> None:
    config = {"model": str(model), "num_speculative_tokens": 5, "method": "draft_model"}
    with (
        serve(
            *(model, "--seed", 42, "-tp", 1, "--gpu-memory-utilization", 0.8),
            *("--max-model-len", 200, "--speculative-config", json.dumps(config)),
            *("--disable-log-requests", "--per-request-spec-decode-metrics", "summary"),
            *("--served-model-name", "first", "second"),
        ) as process,
        openai.OpenAI(base_url=f"{process.url}/v1", api_key="EMPTY") as client,
    ):
        assert "first, second" in process.first_line and "draft_model" in process.first_line
        assert [card.id for card in client.models.list()] == ["first", "second"]
        extra = {"ignore_eos": True, "allowed_token_ids": TEXT_TOKEN_IDS}
        answer = client.completions.create(
            model="second", prompt=BODY["prompt"], seed=5, max_tokens=24, extra_body=extra
        )
        assert answer.choices[0].text == expected
        process.process.terminate()
        assert process.process.wait(60) == 0
        assert process.process.stderr is not None
        log = process.process.stderr.read()
        assert log.count("without effect") == 1 and "--disable-log-requests" in log


def test_a_head_from_a_file_over_a_unix_socket(
    model: Path, head: HeadMaker, expected: str, tmp_path: Path
) -> None:
    file, uds = tmp_path / "serve.yaml", tmp_path / "socket"
    speculation = {"model": str(head("eagle")), "method": "eagle", "num_speculative_tokens": 2}
    file.write_text(
        json.dumps(
            {
                "speculative-config": {**speculation, "draft_tensor_parallel_size": 1},
                "api-key": ["sesame-1", "sesame-2"],
                "enable-log-requests": True,
            }
        )
    )
    with serve(model, "--config", file, "--uds", uds) as process:
        assert process.url == f"unix:{uds}"
        transport = httpx.HTTPTransport(uds=str(uds))
        with httpx.Client(transport=transport, base_url="http://server", timeout=60) as client:
            assert client.post("/v1/completions", json=BODY).status_code == 401
            client.headers["authorization"] = "Bearer sesame-2"
            answer = client.post("/v1/completions", json=BODY)
        assert answer.json()["choices"][0]["text"] == expected
        process.process.terminate()
        assert process.process.wait(60) == 0 and not uds.exists()
        assert process.process.stderr is not None
        log = process.process.stderr.read()
        assert "abcabcabc" in log and "sesame" not in process.first_line + log


@pytest.mark.parametrize(
    "config",
    [
        {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
        {"method": "suffix", "num_speculative_tokens": 32},
    ],
    ids=lambda config: config["method"],
)
def test_drafters_without_a_model_as_on_vllms_page(
    model: Path, expected: str, config: dict[str, Any]
) -> None:
    made = settings_of(serve_flags([str(model), "--speculative-config", json.dumps(config)]))
    assert config["method"] in made.listen.about
    with (
        Engine(made.model, **made.engine) as engine,
        living(engine, {}) as life,
        httpx.Client(base_url=life.url, timeout=60) as client,
    ):
        answer = client.post("/v1/completions", json=BODY).json()
        assert answer["choices"][0]["text"] == expected
        drafts = engine.stats().speculative_decoding
        assert drafts is not None
        assert drafts.num_spec_tokens == config["num_speculative_tokens"]


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key and a certificate that it signed for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2 "
        "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return key, certificate


def test_tls(engine: Engine, certificate: tuple[Path, Path]) -> None:
    key, file = certificate
    trust = ssl.create_default_context(cafile=str(file))
    with living(engine, {"ssl_keyfile": str(key), "ssl_certfile": str(file)}) as life:
        assert life.url.startswith("https://127.0.0.1:")
        with httpx.Client(base_url=life.url, verify=trust, timeout=60) as client:
            models = client.get("/v1/models").json()
            assert models["data"][0]["id"] == MODEL
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{life.url}/health")  # which does not trust it
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{life.url}/health".replace("https", "http"))
        assert httpx.get(f"{life.url}/health", verify=trust).status_code == 200


def test_bad_files_of_tls_are_named(engine: Engine, certificate: tuple[Path, Path]) -> None:
    for options in (
        {"ssl_certfile": "nowhere.pem"},
        {"ssl_certfile": str(certificate[0])},
        {"ssl_keyfile": str(certificate[0])},
    ):
        with pytest.raises(ValueError, match="TLS"), living(engine, options):
            pass
