// The likeliest tokens that a projection finds are the argmax of the outputs that it stores.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "testing/device_kinds.h"
#include "testing/values.h"

namespace specdec::cuda::testing {
namespace {

using specdec::testing::random_values;

constexpr int kIn = 64, kOut = 1009, kRows = 17;
constexpr float kInf = std::numeric_limits<float>::infinity();

// As samplers do without edits: NaN counts as -inf, values above 1e30 as 1e30, and the first of
// equals wins.
int32_t likeliest(const float* outputs, const std::vector<int32_t>& token_ids) {
  int32_t best = 0;
  float greatest = -kInf;
  for (int i = 0; i < kOut; ++i) {
    const float value = std::isnan(outputs[i]) ? -kInf : std::fmin(outputs[i], 1e30f);
    if (value == -kInf || value < greatest) continue;
    if (value == greatest && token_ids[i] > best) continue;
    greatest = value;
    best = token_ids[i];
  }
  return best;
}

class BestTokens : public ::testing::TestWithParam<DeviceKind> {
 protected:
  BestTokens() : world_(GetParam(), DType::kBF16), identity_(kOut) {
    std::iota(identity_.begin(), identity_.end(), 0);
    weights_ = random_values(kOut * kIn, 1);
    // Pairs of equal outputs, far apart.
    for (int i = 0; i < 200; ++i) {
      for (int k = 0; k < kIn; ++k) weights_[(i + 700) * kIn + k] = weights_[i * kIn + k];
    }
    rows_ = random_values(kRows * kIn, 2);
    for (int k = 0; k < kIn; ++k) {
      rows_[1 * kIn + k] = std::numeric_limits<float>::quiet_NaN();  // all outputs are NaN
      rows_[3 * kIn + k] *= 1e36f;                                   // several outputs overflow
      rows_[5 * kIn + k] = 0.0f;                                     // all outputs are equal
    }
    rows_[6 * kIn] = kInf;  // some outputs are infinite
  }

  std::unique_ptr<PackedLinear> pack(WeightFormat format) {
    WeightView view;
    view.values = {.data = weights_.data(), .dtype = DType::kF32, .shape = {kOut, kIn}};
    return world_.backend->pack_linear({.parts = {&view, 1}, .format = format});
  }

  // Compares the rows that row_ids name.
  void compare(LinearArgs linear, const std::vector<int32_t>& row_ids,
               const std::vector<int32_t>* token_ids = nullptr) {
    const auto num_rows = static_cast<int>(row_ids.size());
    const Buffer x = world_.upload(rows_), ids = world_.upload(row_ids);
    const Buffer map = world_.upload(token_ids != nullptr ? *token_ids : identity_);
    Buffer outputs = world_.allocate<float>(num_rows * kOut);
    Buffer tokens = world_.upload(std::vector<int32_t>(num_rows, -7));
    linear.in.x = x.data();
    linear.in.row_ids = ids.as<int32_t>();
    linear.in.num_rows = num_rows;
    linear.out = outputs.as<float>();
    world_.backend->linear(linear);
    linear.out = nullptr;
    const BestTokensArgs args = {.linear = linear,
                                 .token_ids = token_ids != nullptr ? map.as<int32_t>() : nullptr,
                                 .tokens = tokens.as<int32_t>()};
    for (int run = 0; run < 2; ++run) ASSERT_TRUE(world_.backend->best_tokens(args));
    const auto expected = world_.download<float>(outputs);
    const auto found = world_.download<int32_t>(tokens);
    for (int i = 0; i < num_rows; ++i) {
      EXPECT_EQ(found[i],
                likeliest(&expected[i * kOut], token_ids != nullptr ? *token_ids : identity_))
          << "row " << row_ids[i] << " of " << num_rows;
    }
  }

  static std::vector<int32_t> last_rows(int count) {
    std::vector<int32_t> ids(count);
    for (int i = 0; i < count; ++i) ids[i] = kRows - 1 - i;
    return ids;
  }

  BackendWorld world_;
  std::vector<int32_t> identity_;
  std::vector<float> weights_, rows_;
};

TEST_P(BestTokens, AreThoseOfTheOutputsWhateverTheRows) {
  const Buffer weight = world_.upload(random_values(kIn, 3));
  const NormParams norm = {.weight = weight.as<float>()};
  for (const WeightFormat format : {WeightFormat::kAct, WeightFormat::kInt8}) {
    const auto packed = pack(format);
    for (const int num_rows : {1, 2, 7, 8, 9, 16}) {
      compare({.weight = packed.get(), .in = {.norm = &norm}}, last_rows(num_rows));
    }
  }
}

TEST_P(BestTokens, TiesNansAndInfinitiesAreThoseOfTheSampler) {
  const auto packed = pack(WeightFormat::kAct);
  for (const int row : {0, 1, 2, 3, 4, 5, 6}) compare({.weight = packed.get(), .in = {}}, {row});
  const Buffer bias = world_.upload(random_values(kOut, 4));
  compare({.weight = packed.get(),
           .in = {},
           .bias = bias.as<float>(),
           .scale = 0.5f,
           .soft_cap = 0.01f},
          {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
}

TEST_P(BestTokens, AHeadOfSomeTokensSaysTheTargets) {
  const auto packed = pack(WeightFormat::kAct);
  std::vector<int32_t> token_ids(kOut);
  for (int i = 0; i < kOut; ++i) token_ids[i] = (i * 389) % kOut * 3 + 2;  // no order of ids
  for (const int num_rows : {2, 12})
    compare({.weight = packed.get(), .in = {}}, last_rows(num_rows), &token_ids);
}

TEST_P(BestTokens, ManyRowsAreLeftToTheSampler) {
  const auto packed = pack(WeightFormat::kAct);
  const Buffer x = world_.upload(rows_);
  Buffer tokens = world_.upload(std::vector<int32_t>(kRows, -7));
  EXPECT_FALSE(world_.backend->best_tokens(
      {.linear = {.weight = packed.get(), .in = {.x = x.data(), .num_rows = kRows}},
       .tokens = tokens.as<int32_t>()}));
  EXPECT_EQ(world_.download<int32_t>(tokens), std::vector<int32_t>(kRows, -7));
}

INSTANTIATE_TEST_SUITE_P(Devices, BestTokens, ::testing::ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
