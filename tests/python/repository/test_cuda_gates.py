"""The gates for compiled CUDA kernels (scripts/cuda_gates.py) let through what is as it was meant
and nothing else. Needs nvcc and the disassembler: scripts/test.sh cuda gets both."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import cuda_gates
import cuda_toolkit
import pytest

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build"
ARCHITECTURES = ["80", "90a"]

# A product on tensor cores with 16-byte loads, as kernels should be.
GOOD = """
__global__ void product(float4* out, const uint4* a, const uint2* b) {
  const uint4 x = a[threadIdx.x];
  const uint2 y = b[threadIdx.x];
  float4 d = {0, 0, 0, 0};
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d.x), "+f"(d.y), "+f"(d.z), "+f"(d.w)
      : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(y.x), "r"(y.y));
  out[threadIdx.x] = d;
}
"""
# The same name without tensor cores.
SCALAR = """
__global__ void product(float* out, const float* a, const float* b) {
  out[threadIdx.x] = a[threadIdx.x] * b[threadIdx.x];
}
"""
# More values alive at once than the registers it is allowed.
SPILLING = """
__global__ void __launch_bounds__(1024) product(float* out, const float* in) {
  float x[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) x[i] = in[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 128; ++i) out[i * 1024 + threadIdx.x] = x[127 - i] * x[(i * 37) % 128];
}
"""
# An array indexed at run time, which no register can be.
INDEXED = """
__global__ void product(float* out, const float* in, int n) {
  float x[16];
  for (int i = 0; i < 16; ++i) x[(i * n) % 16] = in[i];
  out[threadIdx.x] = x[n + threadIdx.x % 4];
}
"""
# More than static arrays may have.
STATIC = """
__global__ void product(float* out, const float* in) {
  __shared__ float x[257];
  x[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = x[256 - threadIdx.x];
}
"""
# Kernels that a rule forbids.
DOUBLE = """
__global__ void product(float* out, const float* a, const float* b) {
  out[threadIdx.x] = static_cast<float>(double{a[threadIdx.x]} * double{b[threadIdx.x]} + 1.0);
}
"""
RULES = cuda_gates.read_rules(["product  *  HMMA LDG.*\\.128 !D(ADD|MUL|FMA)  # as in the table"])


@pytest.fixture(scope="module")
def disassembler() -> Path:
    folder = BUILD / "cuda-disassembler" / cuda_toolkit.CUDA_FOLDER / "bin"
    if not (folder / "cuobjdump").is_file():
        pytest.skip("no disassembler: scripts/test.sh cuda gets one")
    return folder


def compile_kernel(source: str, directory: Path) -> Path:
    nvcc = cuda_toolkit.installed_nvcc(BUILD / "cuda-toolkit")
    if nvcc is None:
        pytest.skip("no nvcc: scripts/test.sh cuda gets one")
    path = directory / "kernel.cu"
    path.write_text(source)
    targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES]
    command = [str(nvcc), "-std=c++20", "-O3", *targets, "-c", str(path)]
    subprocess.run([*command, "-o", str(path.with_suffix(".o"))], check=True)
    return path.with_suffix(".o")


def failures(source: str, directory: Path, disassembler: Path) -> list[str]:
    kernels = cuda_gates.read_kernels([compile_kernel(source, directory)], disassembler)
    assert [kernel.architecture for kernel in kernels] == ["sm_80", "sm_90a"]
    assert {kernel.name for kernel in kernels} == {"product"}
    assert all(kernel.registers > 0 for kernel in kernels)
    return cuda_gates.violations(kernels, RULES)


def test_kernel_as_it_was_meant_passes(tmp_path: Path, disassembler: Path) -> None:
    assert failures(GOOD, tmp_path, disassembler) == []


def test_kernel_without_tensor_cores_fails(tmp_path: Path, disassembler: Path) -> None:
    found = failures(SCALAR, tmp_path, disassembler)
    assert found == [
        f"product ({arch}): no {code} instruction"
        for arch in ("sm_80", "sm_90a")
        for code in ("HMMA", "LDG.*\\.128")
    ]


@pytest.mark.parametrize("source", [SPILLING, INDEXED], ids=["spilled", "indexed"])
def test_kernel_in_local_memory_fails(source: str, tmp_path: Path, disassembler: Path) -> None:
    found = [line for line in failures(source, tmp_path, disassembler) if "spilled" in line]
    assert [line.split(":")[0] for line in found] == ["product (sm_80)", "product (sm_90a)"]


def test_too_much_static_shared_memory_fails(tmp_path: Path, disassembler: Path) -> None:
    found = [line for line in failures(STATIC, tmp_path, disassembler) if "static" in line]
    assert len(found) == len(ARCHITECTURES)
    assert all("1028 bytes" in line for line in found), found
    within = failures(STATIC.replace("257", "256"), tmp_path, disassembler)
    assert [line for line in within if "static" in line] == []


def test_limit_of_static_shared_memory_is_that_of_launches() -> None:
    header = (ROOT / "cuda/gpu/device.h").read_text()
    found = re.search(r"kMaxStaticSharedBytes = (\d+);", header)
    assert found is not None
    assert int(found[1]) == cuda_gates.MAX_STATIC_SHARED_BYTES


def test_forbidden_instruction_fails(tmp_path: Path, disassembler: Path) -> None:
    found = [line for line in failures(DOUBLE, tmp_path, disassembler) if "D(ADD" in line]
    assert [line.split(":")[0] for line in found] == ["product (sm_80)", "product (sm_90a)"]
    assert not any("no D(ADD" in line for line in found)


def test_a_frame_is_allowed_up_to_its_size() -> None:
    (rule,) = cuda_gates.read_rules(["fold_kernel  *  stack=256"])

    def found(stack_bytes: int, name: str = "fold_kernel<4>", local_bytes: int = 0) -> list[str]:
        kernel = cuda_gates.Kernel(name, "sm_80", stack_bytes=stack_bytes, local_bytes=local_bytes)
        kernel.opcodes.update({"LDL.128": 3, "STL": 2})
        named = cuda_gates.Kernel("fold_kernel<1>", "sm_80")  # so that the rule has one
        return cuda_gates.violations([kernel, named], [rule])

    assert found(256) == []
    assert "272 bytes of stack" in found(272)[0]
    assert "8 of local memory" in found(256, local_bytes=8)[0]
    assert "256 bytes of stack" in found(256, name="other_kernel")[0]


def test_too_many_registers_fail() -> None:
    rules = cuda_gates.read_rules(["product sm_90a registers=128"])
    kernels = [cuda_gates.Kernel("product", "sm_90a", registers=n) for n in (128, 129)]
    assert cuda_gates.violations(kernels, rules) == [
        "product (sm_90a): 129 registers, of 128 at most"
    ]


def test_code_of_kernels_that_run_together_has_a_budget() -> None:
    kernels = [
        cuda_gates.Kernel(name, "sm_90a", opcodes=Counter({"HMMA": count}))
        for name, count in [("product<1>", 100), ("product<2>", 300), ("attend", 200)]
    ]

    def found(line: str) -> list[str]:
        assert cuda_gates.read_rules([line]) == []
        return cuda_gates.violations(kernels, [], cuda_gates.read_budgets([line]))

    assert found("code<=8000 sm_90a product attend  # the longest of each: 300 + 200") == []
    (wrong,) = found("code<=7999 sm_90a product attend")
    assert wrong.startswith("8000 bytes of code (sm_90a), of 7999: product<2> 4800, attend 3200")
    assert found("code<=4800 sm_90a product<1> attend") == []
    (wrong,) = found("code<=8000 sm_90a product join")
    assert "no kernel 'join'" in wrong


def test_rule_that_no_kernel_fits_fails() -> None:
    kernel = cuda_gates.Kernel("product", "sm_80")
    rules = cuda_gates.read_rules(["# a comment", "", "produce sm_80 HMMA", "product sm_90a HGMMA"])
    assert len(cuda_gates.violations([kernel], rules)) == 2


def test_order_of_instructions_can_be_asked_for() -> None:
    kernel = cuda_gates.Kernel("product", "sm_90a")
    kernel.opcodes.update(["LDG.E.128", "ACQBULK", "LDG.E", "STG.E", "LDG.E.128"])
    assert kernel.has("LDG<ACQBULK")
    assert kernel.has(r"LDG.*\.128<ACQBULK<STG")
    for wanted in ("STG<ACQBULK", "LDG<HMMA", "HMMA<LDG"):
        assert not kernel.has(wanted)


def test_no_kernels_at_all_fails() -> None:
    assert cuda_gates.violations([], []) == ["no kernels in these objects"]


@pytest.mark.parametrize(
    ("demangled", "short"),
    [
        (
            "void specdec::cuda::native::(anonymous namespace)::norm<specdec::cuda::native::Bf16, "
            "(specdec::NormKind)1>(specdec::cuda::NormParams)",
            "norm<Bf16, (NormKind)1>",
        ),
        ("scale(float*, void (*)(int))", "scale"),
        ("scale", "scale"),
    ],
)
def test_names_are_readable(demangled: str, short: str) -> None:
    assert cuda_gates.shorten(demangled) == short


def test_slowest_sources_come_first(tmp_path: Path) -> None:
    (tmp_path / ".ninja_log").write_text(
        "# ninja log v5\n0\t2500\t1\tcuda/norm.cu.o\tx\n0\t9000\t1\thost.cc.o\tx\n"
        "100\t4100\t1\tcuda/product.cu.o\tx\n"
    )
    assert cuda_gates.slowest_sources(tmp_path) == [(4.0, "product.cu.o"), (2.5, "norm.cu.o")]
