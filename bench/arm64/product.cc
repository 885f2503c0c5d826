// One product, whose instructions count.py counts: arm64_product ISA FORMAT ROWS OUTPUTS INPUTS.
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/isa.h"
#include "testing/quantized_matrix.h"

int main(int argc, char** argv) {
  using namespace specdec;
  if (argc != 6) return std::fputs("arm64_product ISA FORMAT ROWS OUTPUTS INPUTS\n", stderr), 2;
  const std::string_view format = argv[2];  // f32, bf16, or a WeightFormat's name
  const int rows = std::atoi(argv[3]);
  const int64_t n = std::atoll(argv[4]), k = std::atoll(argv[5]);
  const DType dtype = format == "bf16" ? DType::kBF16 : DType::kF32;
  cpu::CpuBackend backend(cpu::parse_isa(argv[1]), 1, dtype);
  WeightFormat stored = WeightFormat::kAct;
  for (const auto one :
       {WeightFormat::kInt8, WeightFormat::kInt8Grouped, WeightFormat::kInt8Grouped16,
        WeightFormat::kInt4Grouped, WeightFormat::kInt4GroupedZero, WeightFormat::kInt4Table}) {
    if (name_of(one) == format) stored = one;
  }
  const std::vector<float> x(rows * k, 0.5f), weight(n * k, 0.25f);
  std::vector<float> out(rows * n);
  WeightView view = {.values = {weight.data(), DType::kF32, {n, k}}};
  testing::QuantizedMatrix codes(n, k, 4, false, 1);  // for formats that take no floats
  if (stored == WeightFormat::kInt4GroupedZero) view = codes.add_zeros(2).view();
  if (stored == WeightFormat::kInt4Table) view = codes.add_table(2).view();
  const auto packed = backend.pack_linear({.parts = {&view, 1}, .format = stored});
  backend.linear(
      {.weight = packed.get(), .in = {.x = x.data(), .num_rows = rows}, .out = out.data()});
}
