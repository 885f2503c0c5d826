"""/openapi.json says what is served."""

import json

import jsonschema
import pytest

from server_world import MODEL, serving
from specdec_native import Engine

BODIES = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens", "/infill", "/tokenize", "/detokenize"),
)


@pytest.mark.parametrize("path", BODIES)
def test_bodies_models_and_errors_are_described(engine: Engine, path: str) -> None:
    with serving(engine, model_names=(MODEL, "other")) as world:
        schema = world.client.get("/openapi.json").json()
        operation = schema["paths"][path]["post"]
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        body = schema["components"]["schemas"][reference.rpartition("/")[2]]
        assert body["properties"]["model"]["enum"] == [MODEL, "other", None]
        assert "422" not in operation["responses"]
        for status in ("400", "404", "413", "500", "503"):
            assert status in operation["responses"]
        content = operation["responses"]["404"]["content"]["application/json"]["schema"]
        described = schema["components"]["schemas"][content["$ref"].rpartition("/")[2]]
        jsonschema.validate(world.post(path, **example(path), model="x").json(), described)
        assert "ValidationError" not in json.dumps(schema)


def example(path: str) -> dict[str, object]:
    examples: dict[str, dict[str, object]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
        "/v1/responses": {"input": "a"},
        "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
        "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
        "/detokenize": {"tokens": [5]},
        "/infill": {"input_prefix": "a", "input_suffix": "b"},
    }
    return examples.get(path, {"prompt": "a"})
