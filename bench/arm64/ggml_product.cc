// The same product by llama.cpp's repacked loops: ggml_product ISA FORMAT ROWS OUTPUTS INPUTS.
// count.py compiles it with ggml's src/ggml-cpu/arch/arm/repack.cpp. As llama.cpp does, whole fours
// of rows are one call, and every row after them is another.
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
// Declarations from repack.h, which itself would need all of ggml.
extern "C" {
using Product = void(int n, float* s, size_t bs, const void* vx, const void* vy, int nr, int nc);
Product ggml_gemv_q4_0_4x4_q8_0, ggml_gemm_q4_0_4x4_q8_0;
Product ggml_gemv_q4_0_4x8_q8_0, ggml_gemm_q4_0_4x8_q8_0;
Product ggml_gemv_q8_0_4x4_q8_0, ggml_gemm_q8_0_4x4_q8_0;
Product ggml_gemv_q8_0_4x8_q8_0, ggml_gemm_q8_0_4x8_q8_0;
}

int main(int argc, char** argv) {
  if (argc != 6) return std::fputs("ggml_product ISA FORMAT ROWS OUTPUTS INPUTS\n", stderr), 2;
  const bool i8mm = std::string_view(argv[1]) != "neon_dotprod";
  const bool int4 = std::string_view(argv[2]).starts_with("int4");
  const int rows = std::atoi(argv[3]), n = std::atoi(argv[4]), k = std::atoi(argv[5]);
  Product* one = int4   ? i8mm ? ggml_gemv_q4_0_4x8_q8_0 : ggml_gemv_q4_0_4x4_q8_0
                 : i8mm ? ggml_gemv_q8_0_4x8_q8_0
                        : ggml_gemv_q8_0_4x4_q8_0;
  Product* fours = int4   ? i8mm ? ggml_gemm_q4_0_4x8_q8_0 : ggml_gemm_q4_0_4x4_q8_0
                   : i8mm ? ggml_gemm_q8_0_4x8_q8_0
                          : ggml_gemm_q8_0_4x4_q8_0;
  const std::vector<char> weight(size_t(n) * k / 32 * 34), x(size_t(rows + 4) * k / 32 * 34);
  std::vector<float> out(size_t(rows + 4) * n);
  const int whole = rows / 4 * 4;
  if (whole > 0) fours(k, out.data(), n, weight.data(), x.data(), whole, n);
  for (int row = whole; row < rows; ++row) {
    one(k, out.data() + row * n, n, weight.data(), x.data(), 1, n);
  }
}
