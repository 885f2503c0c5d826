"""Small functions that scripts import from vLLM's utilities."""

from __future__ import annotations

import functools
import logging
import os
import random
import socket
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_native import _core
from specdec_native.checkpoints import hub
from specdec_native.text.chat_template import Message
from specdec_native.text.tokenizer import Tokenizer

EngineDeadError = _core.EngineFailed
AnyTokenizer = TokenizerLike = Tokenizer
ChatCompletionMessageParam = Message


def get_tokenizer(
    tokenizer_name: str | os.PathLike[str],
    *_: Any,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **__: Any,
) -> Tokenizer:
    """The tokenizer of a checkpoint, by its directory or name. Raises ValueError without one."""
    directory = Path(tokenizer_name)
    if not directory.is_dir():
        directory = hub.resolve_model(tokenizer_name, revision=revision, weights=False)
    return Tokenizer.from_directory(directory, trust_remote_code=trust_remote_code)


def resolve_hf_chat_template(
    tokenizer: Any,
    chat_template: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **_: Any,
) -> str | None:
    """The source of the template that a conversation is written with; None without one."""
    try:
        template: str = tokenizer.get_chat_template(chat_template, tools=tools)
    except ValueError:
        return None
    return template


resolve_chat_template = resolve_hf_chat_template


def set_random_seed(seed: int | None) -> None:
    """Seeds Python's random numbers, and NumPy's and torch's where they are loaded.

    An engine's samples depend on its own `seed` alone.
    """
    if seed is None:
        return
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def random_uuid() -> str:
    """32 random hexadecimal digits."""
    return uuid.uuid4().hex


def get_open_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as server:
        server.bind(("", 0))
        port: int = server.getsockname()[1]
        return port


def get_ip() -> str:
    """This machine's address towards others, or $VLLM_HOST_IP; 127.0.0.1 without a network."""
    if address := os.environ.get("VLLM_HOST_IP"):
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 80))  # sends nothing
        except OSError:
            return "127.0.0.1"
        found: str = probe.getsockname()[0]
        return found


def init_logger(name: str) -> logging.Logger:
    """logging's logger of that name, with info_once() and the like, as vLLM's have them."""
    logger = logging.getLogger(name)
    for level in ("debug", "info", "warning"):
        setattr(logger, f"{level}_once", functools.cache(getattr(logger, level)))
    return logger


class Platform:
    """What engines run on by default: the first GPU that can be used, else the CPU."""

    @functools.cached_property
    def _devices(self) -> list[_core.DeviceInfo]:
        devices = [device for device in _core.list_devices() if not device.unusable]
        gpus = [device for device in devices if device.name != "cpu"]
        return gpus or devices

    @property
    def device_type(self) -> str:
        """The kind of device: "cuda" or "cpu"."""
        return self._devices[0].name.partition(":")[0]

    def device_count(self) -> int:
        """GPUs that can be used; 1 where there are none."""
        return len(self._devices)

    def get_device_name(self, device_id: int = 0) -> str:
        """The model of a device."""
        return self._devices[device_id].model

    def is_cpu(self) -> bool:
        """Whether engines run on the CPU."""
        return self.device_type == "cpu"

    def is_cuda(self) -> bool:
        """Whether engines run on an NVIDIA GPU."""
        return self.device_type == "cuda"

    is_cuda_alike = is_cuda

    def is_rocm(self) -> bool:
        """False, as of other devices."""
        return False

    is_tpu = is_xpu = is_hpu = is_neuron = is_out_of_tree = is_rocm

    def seed_everything(self, seed: int | None = None) -> None:
        """set_random_seed()."""
        set_random_seed(seed)


current_platform = Platform()
