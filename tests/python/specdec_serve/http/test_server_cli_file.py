"""Flags of `specdec-native serve` in a file."""

import shlex
from pathlib import Path

import pytest

from command_line import serve_flags
from specdec_cli.serve_settings import Settings, settings_of


def settings(line: str) -> Settings:
    return settings_of(serve_flags(shlex.split(line)))


def test_a_file_holds_flags_and_the_line_goes_over_it(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        """
        model: m
        port: 81
        max-model-len: 8k
        enable_prefix_caching: false
        enable-request-id-headers: true
        served-model-name: [a, b]
        api_key: [k1, k2]
        allowed-origins: ["*"]
        uds: null
        speculative_config: {method: ngram, num_speculative_tokens: 3}
        enable_chunked_prefill: true
        """
    )
    made = settings(f"--config {file} --port 82 --api-key mine")
    assert made.model == "m" and made.listen.port == 82 and made.listen.uds is None
    assert made.engine == {
        "max_model_len": 8000,
        "enable_prefix_caching": False,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    }
    assert made.server.model_names == ("a", "b") and made.server.api_keys == ("mine",)
    assert made.server.allowed_origins == ("*",) and made.server.request_id_headers
    assert made.without_effect == ["enable_chunked_prefill"]
    assert settings(f"other --config {file}").model == "other"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: [", "not valid YAML"),
        ("- a", "must hold names of flags"),
        ("prot: 5", "there is no flag --prot; did you mean --port"),
        ("port: abc", "--port: 'abc' is not a whole number"),
        ("max-model-len: 1\nmax_model_len: 2", "is there twice"),
        ("config: other.yaml", "config"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match="serve.yaml") as caught:
        settings(f"m --config {file}")
    assert message in str(caught.value)
    with pytest.raises(FileNotFoundError):
        settings(f"m --config {tmp_path / 'none.yaml'}")
