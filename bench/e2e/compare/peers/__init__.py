"""The peers, one file each: a description (PEER) and what runs in its worker (make_backend)."""

from __future__ import annotations

from .base import AUTO, ISAS, Peer, head_method
from .llama_cpp import PEER as LLAMA_CPP
from .openvino import PEER as OPENVINO
from .specdec import PEER as SPECDEC
from .transformers import PEER as TRANSFORMERS
from .vllm import PEER as VLLM

PEERS: tuple[Peer, ...] = (SPECDEC, LLAMA_CPP, VLLM, OPENVINO, TRANSFORMERS)

__all__ = ["AUTO", "ISAS", "PEERS", "SPECDEC", "Peer", "head_method"]
