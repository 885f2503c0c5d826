"""Random JSON schemas of functions' parameters, and values that obey them."""

import random
from typing import Any

_WORDS = ("Rome", "a b", "null", "5", "true", "x\ny", "é", " sp", "", "it's", '"q"', "a/b", "\\n")
_PATTERNS = {
    "^[a-z]+$": ("a", "xyz"),
    "[0-9]": ("4", "a1b"),
    "^a": ("a", "a<b"),
    "b$": ("b", "ab"),
    "^x/y$": ("x/y",),
}
_FORMATS = {
    "date": "2024-02-11",
    "uuid": "0a1b2c3d-0000-1111-2222-333344445555",
    "ipv4": "10.0.255.1",
    "email": "a.b@c.de",
    "date-time": "2024-02-11T01:02:03Z",
}
DEFINITIONS: dict[str, Any] = {
    "short": {"type": "string", "maxLength": 3},
    "tree": {
        "type": "object",
        "properties": {
            "value": {"type": "integer"},
            "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
        },
        "required": ["value"],
        "additionalProperties": False,
    },
}


def random_parameters(noise: random.Random) -> dict[str, Any]:
    """The schema of a function's arguments."""
    names = noise.sample(["city", "days", "x1", "opt", "when"], noise.randrange(5))
    return {
        "type": "object",
        "properties": {name: random_schema(noise) for name in names},
        "required": noise.sample(names, noise.randrange(len(names) + 1)),
        "$defs": DEFINITIONS,
        "additionalProperties": False,
    }


def random_schema(  # noqa: PLR0911, PLR0912
    noise: random.Random, depth: int = 0
) -> dict[str, Any]:
    kinds = ["text", "text", "integer", "number", "boolean", "null", "enum"]
    if depth < 3:
        kinds += ["array", "object", "any", "maybe", "union", "reference", "tuple"]

    def inner() -> dict[str, Any]:
        return random_schema(noise, depth + 1)

    match noise.choice(kinds):
        case "text":
            limits: list[dict[str, Any]] = [
                *({}, {"maxLength": 4}, {"minLength": 1, "maxLength": 4}),
                {"pattern": noise.choice([*_PATTERNS])},
                {"format": noise.choice([*_FORMATS])},
            ]
            return {"type": "string", **noise.choice(limits)}
        case "integer":
            limits = [{}, {"minimum": 3}, {"minimum": -5, "maximum": 7}, {"multipleOf": 5}]
            return {"type": "integer", **noise.choice(limits)}
        case "number":
            return {"type": "number", **noise.choice([{}, {"minimum": 0.5, "maximum": 9}])}
        case "boolean":
            return {"type": "boolean"}
        case "null":
            return {"type": "null"}
        case "enum":
            return noise.choice(
                [
                    {"enum": noise.sample(_WORDS, 3)},
                    {"type": "string", "enum": noise.sample(_WORDS, 2)},
                    {"enum": [1, "a", None, True]},
                    {"const": noise.choice(_WORDS)},
                    {"enum": [{"a": 1, "b": [True, "q"]}, []]},
                ]
            )
        case "array":
            limits = [{}, {"minItems": 1}, {"maxItems": 2}, {"minItems": 2, "maxItems": 3}]
            return {"type": "array", "items": inner(), **noise.choice(limits)}
        case "tuple":
            return {"type": "array", "prefixItems": [inner()], "items": False, "minItems": 1}
        case "object":
            names = noise.sample(["a", "b", "c d", "e"], noise.randrange(4))
            return {
                "type": "object",
                "properties": {name: inner() for name in names},
                "required": noise.sample(names, noise.randrange(len(names) + 1)),
                **noise.choice([{}, {"additionalProperties": inner()}]),
            }
        case "maybe":
            return {"anyOf": [inner(), {"type": "null"}], "default": None}
        case "union":
            return {"type": noise.sample(["string", "integer", "boolean", "null"], 2)}
        case "reference":
            return {"$ref": f"#/$defs/{noise.choice([*DEFINITIONS])}"}
    return {}


def random_value(  # noqa: PLR0911, PLR0912
    noise: random.Random, schema: dict[str, Any], depth: int = 0
) -> Any:
    """A value that obeys a schema of random_schema()."""
    if "$ref" in schema:
        schema = DEFINITIONS[schema["$ref"].rsplit("/", 1)[-1]]
    if "anyOf" in schema:
        schema = noise.choice(schema["anyOf"])
        return random_value(noise, schema, depth)
    if "const" in schema or "enum" in schema:
        return noise.choice(schema.get("enum") or [schema["const"]])
    kind = schema.get("type", "any")
    match noise.choice(kind) if isinstance(kind, list) else kind:
        case "string":
            if "pattern" in schema:
                return noise.choice(_PATTERNS[schema["pattern"]])
            if "format" in schema:
                return _FORMATS[schema["format"]]
            least, most = schema.get("minLength", 0), schema.get("maxLength", 9)
            texts = [word for word in _WORDS if least <= len(word) <= most and word != "null"]
            return noise.choice(texts)
        case "integer":
            return noise.choice([5, 5]) if "minimum" in schema else noise.choice([-10, 0, 15])
        case "number":
            return noise.choice([0.5, 2.25, 7])
        case "boolean":
            return noise.random() < 0.5
        case "array":
            items = schema.get("prefixItems", [])
            if not items:
                least, most = schema.get("minItems", 0), schema.get("maxItems", 3)
                items = [schema["items"]] * (
                    noise.randrange(least, most + 1) if depth < 4 else least
                )
            return [random_value(noise, item, depth + 1) for item in items]
        case "object":
            members = {
                name: random_value(noise, member, depth + 1)
                for name, member in schema["properties"].items()
                if name in schema["required"] or (depth < 4 and noise.random() < 0.5)
            }
            if schema.get("additionalProperties"):
                members["other"] = random_value(noise, schema["additionalProperties"], depth + 1)
            return members
        case "any":
            return noise.choice([None, 5, "x", [1, {"k": True}]])
    return None
