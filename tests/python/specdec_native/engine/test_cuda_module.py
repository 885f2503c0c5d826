"""A module built with CUDA, on a machine without a GPU: as good as any other, and says what is
missing when it is asked for one. scripts/test.sh cuda builds such a module."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_native import SamplingParams, _core
from specdec_native.engine import Engine

if not _core.build_info().has_cuda:
    pytest.skip("built without CUDA", allow_module_level=True)
if any(device.name.startswith("cuda") for device in _core.list_devices()):
    pytest.skip("there is a GPU", allow_module_level=True)


def test_it_says_what_it_was_built_for() -> None:
    assert "80" in _core.build_info().cuda_note
    assert "CUTLASS" in _core.build_info().cuda_note
    assert [device.name for device in _core.list_devices()] == ["cpu"]


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7"])
def test_a_gpu_that_is_not_there_is_named(checkpoint: Callable[[str], Path], device: str) -> None:
    with pytest.raises(RuntimeError, match=r'cuda:\d.*device="cpu"') as raised:
        Engine(checkpoint("llama"), device=device)
    assert type(raised.value).__name__ == "Unavailable"


def test_auto_is_the_cpu(checkpoint: Callable[[str], Path]) -> None:
    engine = Engine(checkpoint("llama"), device="auto")
    assert engine.model_info().device == "cpu"
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    assert engine.stats().num_generation_tokens == 2
