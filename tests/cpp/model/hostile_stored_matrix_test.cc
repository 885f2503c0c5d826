// Matrices of several tensors whose shapes, dtypes, contents and number were changed: each is read
// or refused with a CheckpointError, and no byte outside of the tensors is touched (which
// AddressSanitizer sees).
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/log.h"
#include "model/weight_store.h"
#include "testing/checkpoint_files.h"

namespace specdec {
namespace {

using testing::SafetensorsWriter;
using testing::TempDirectory;

constexpr int64_t kRows = 24;
constexpr int64_t kInputs = 192;
constexpr int kMutations = 150;  // per layout

struct Tensor {
  std::string dtype;
  std::vector<int64_t> shape;
};
using Tensors = std::map<std::string, Tensor>;

struct Layout {
  const char* name;
  Tensors tensors;
  StoredScheme scheme = {};
};

std::vector<Layout> layouts() {
  const int64_t n = kRows, k = kInputs;
  const Tensor state = {"U8", {24}};
  return {
      {"gptq",
       {{"x.qweight", {"I32", {k / 8, n}}},
        {"x.qzeros", {"I32", {3, n / 8}}},
        {"x.scales", {"F16", {3, n}}},
        {"x.g_idx", {"I32", {k}}}}},
      {"gptq3",
       {{"x.qweight", {"I32", {k * 3 / 32, n}}},
        {"x.qzeros", {"I32", {3, 3}}},
        {"x.scales", {"F16", {3, n}}}}},
      {"awq",
       {{"x.qweight", {"I32", {k, n / 8}}},
        {"x.qzeros", {"I32", {3, n / 8}}},
        {"x.scales", {"F16", {3, n}}}},
       {.block = {}, .is_awq = true}},
      {"packed",
       {{"x.weight_packed", {"I32", {n, k / 8}}},
        {"x.weight_scale", {"BF16", {n, 3}}},
        {"x.weight_zero_point", {"I32", {n / 8, 3}}},
        {"x.weight_g_idx", {"I32", {k}}}}},
      {"int8",
       {{"x.weight", {"I8", {n, k}}},
        {"x.weight_scale", {"F32", {n, 1}}},
        {"x.weight_zero_point", {"I8", {n, 1}}}}},
      {"nvfp4",
       {{"x.weight_packed", {"U8", {n, k / 2}}},
        {"x.weight_scale", {"F8_E4M3", {n, k / 16}}},
        {"x.weight_global_scale", {"F32", {1}}}}},
      {"mxfp4", {{"x.weight_packed", {"U8", {n, k / 2}}}, {"x.weight_scale", {"U8", {n, k / 32}}}}},
      {"mxfp8", {{"x.weight", {"F8_E4M3", {n, k}}}, {"x.weight_scale", {"U8", {n, k / 32}}}}},
      {"nf4",
       {{"x.weight", {"U8", {n * k / 2, 1}}},
        {"x.weight.absmax", {"U8", {n * k / 64}}},
        {"x.weight.quant_map", {"F32", {16}}},
        {"x.weight.nested_absmax", {"F32", {1}}},
        {"x.weight.nested_quant_map", {"F32", {256}}},
        {"x.weight.quant_state.bitsandbytes__nf4", state}}},
      {"int8 by SCB",
       {{"x.weight", {"I8", {n, k}}}, {"x.SCB", {"F32", {n}}}, {"x.weight_format", {"U8", {}}}}},
      {"native",
       {{"x.weight", {"U8", {n, k / 2}}},
        {"x.weight.scales", {"F16", {n, k / 32}}},
        {"x.weight.table", {"I8", {16}}}}},
  };
}

int64_t size_of_dtype(const std::string& name) {
  if (name == "I32" || name == "F32") return 4;
  return name == "F16" || name == "BF16" ? 2 : 1;
}

class Mutation {
 public:
  explicit Mutation(unsigned seed) : random_(seed) {}

  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }

  void apply(Tensors& tensors) {
    auto chosen = tensors.begin();
    std::advance(chosen, below(static_cast<int>(tensors.size())));
    Tensor& tensor = chosen->second;
    constexpr const char* kDTypes[] = {"I32", "F32", "F16", "BF16", "U8", "I8", "F8_E4M3"};
    constexpr int64_t kExtents[] = {0, 1, 2, 3, 5, 8, 16, 23, 24, 25, 48, 192, 193, 2304};
    switch (below(5)) {
      case 0:
        tensors.erase(chosen);
        return;
      case 1:
        tensor.dtype = kDTypes[below(7)];
        return;
      case 2:
        if (!tensor.shape.empty())
          tensor.shape[below(static_cast<int>(tensor.shape.size()))] = kExtents[below(14)];
        return;
      case 3:
        tensor.shape.push_back(kExtents[below(14)]);
        return;
      default:
        if (!tensor.shape.empty()) tensor.shape.pop_back();
    }
  }

  // Small numbers of every dtype, or any bytes.
  std::string content(const Tensor& tensor) {
    int64_t size = size_of_dtype(tensor.dtype);
    for (const int64_t extent : tensor.shape) size *= extent;
    std::string bytes(static_cast<size_t>(size), '\0');
    if (below(3) == 0) return bytes;
    const bool any = below(2) == 0;
    for (char& byte : bytes) byte = static_cast<char>(any ? below(256) : below(3));
    return bytes;
  }

 private:
  std::mt19937 random_;
};

TEST(HostileStoredMatrix, IsReadOrRefused) {
  set_log_sink([](LogLevel, const std::string&) {});
  TempDirectory directory;
  int num_read = 0, num_refused = 0;
  for (const Layout& layout : layouts()) {
    for (unsigned seed = 0; seed < kMutations; ++seed) {
      SCOPED_TRACE(::testing::Message() << layout.name << " " << seed);
      Mutation mutation(seed);
      Tensors tensors = layout.tensors;
      for (int i = mutation.below(3); i > 0 && !tensors.empty(); --i) mutation.apply(tensors);
      SafetensorsWriter writer;
      for (const auto& [name, tensor] : tensors) {
        writer.add(name, tensor.dtype, tensor.shape, mutation.content(tensor));
      }
      directory.write("model.safetensors", writer.bytes());
      StoredScheme scheme = layout.scheme;
      scheme.keeps_codes = mutation.below(2) == 0;
      scheme.group_size = mutation.below(2) == 0 ? 0 : 64;
      const int64_t begin = mutation.below(2) * 8;
      try {
        WeightStore store(directory.path(), scheme);
        const WeightView view = store.matrix("x.weight", kRows, kInputs, {begin, 8});
        EXPECT_EQ(view.rows(), 8);
        EXPECT_EQ(view.in_features(), kInputs);
        ++num_read;
      } catch (const CheckpointError&) {
        ++num_refused;
      }
    }
  }
  set_log_sink(nullptr);
  EXPECT_GT(num_read, 50);
  EXPECT_GT(num_refused, 50);
}

}  // namespace
}  // namespace specdec
