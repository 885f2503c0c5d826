// Routers of all kinds, for experts whose result is known: with rows of zeros and these biases of
// the second projections, column i of the output is the weight of expert i.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "testing/oracle/operations.h"
#include "testing/values.h"

namespace specdec::testing {

class RouterWorld {
 public:
  static constexpr int kRows = 26;

  // `num_experts` is a multiple of 4.
  RouterWorld(int num_experts, int hidden)
      : num_experts_(num_experts),
        hidden_(hidden),
        logits_(random_values(kRows * num_experts, 1, 2.0f)),
        selection_bias_(random_values(num_experts, 2, 0.2f)) {
    for (int i = 0; i < num_experts; ++i) {
      logit(20, i) = logit(21, i) = 0.5f;                                      // tied
      logit(22, i) = logit(23, i) = logit(22, i) > 0.0f;                       // many are
      for (int row : {24, 25}) logit(row, i) = -46.0f + 0.2f * logit(row, i);  // 1e-20 counts
    }
  }

  const std::vector<float>& logits() const { return logits_; }
  const std::vector<float>& selection_bias() const { return selection_bias_; }
  // [num_experts, hidden]
  std::vector<float> down_bias() const {
    std::vector<float> bias(num_experts_ * hidden_, 0.0f);
    for (int i = 0; i < num_experts_; ++i) bias[i * hidden_ + i] = 1.0f;
    return bias;
  }

  std::vector<Router> routers() const {
    constexpr RouterScores kSigmoid = RouterScores::kSigmoid;
    const float* bias = selection_bias_.data();
    const int most = std::min(num_experts_ / 2, 8);
    std::vector<Router> routers = {
        {.top_k = 1, .renormalize = false},
        {.top_k = 3, .scale = 2.5f},
        {.selection_bias = bias, .top_k = 3, .renormalize = false},
        {.selection_bias = bias, .top_k = 3},
        {.num_groups = 4, .top_groups = 1, .top_k = 2, .renormalize = false},
        {.scores = kSigmoid, .top_k = 2, .renormalize = false, .scale = 0.5f},
        {.scores = kSigmoid, .top_k = most},
        {.scores = kSigmoid, .num_groups = 4, .top_groups = 2, .top_k = most},
        {.scores = kSigmoid, .selection_bias = bias, .top_k = 2},
        {.scores = kSigmoid,
         .selection_bias = bias,
         .num_groups = 4,
         .top_groups = 2,
         .top_k = most,
         .scale = 2.5f}};
    if (num_experts_ <= kMaxExpertGroups) {  // groups of one
      routers.push_back({.scores = kSigmoid,
                         .selection_bias = bias,
                         .num_groups = num_experts_,
                         .top_groups = 3,
                         .top_k = 2});
    }
    return routers;
  }

  // out: [kRows, hidden], of zeros before. `router` has a bias on the host.
  void expect_weights(const Router& router, std::span<const float> out) const {
    const std::vector<double> expected = weights(router);
    for (int i = 0; i < kRows * num_experts_; ++i) {
      const int row = i / num_experts_, expert = i % num_experts_;
      ASSERT_NEAR(out[row * hidden_ + expert], expected[i], 6e-6 * expected[i] + 1e-30)
          << "row " << row << " expert " << expert << " of " << num_experts_;
    }
    for (const Router& simpler : without_a_feature(router)) {
      EXPECT_NE(weights(simpler), expected) << "a feature changes nothing";
    }
  }

 private:
  float& logit(int row, int expert) { return logits_[row * num_experts_ + expert]; }

  // [kRows, num_experts]
  std::vector<double> weights(const Router& router) const {
    std::vector<double> weights(kRows * num_experts_, 0.0);
    for (int row = 0; row < kRows; ++row) {
      const std::span logits(&logits_[row * num_experts_], static_cast<size_t>(num_experts_));
      for (const auto& [expert, weight] : reference::routed(router, logits)) {
        weights[row * num_experts_ + expert] = weight;
      }
    }
    return weights;
  }

  static std::vector<Router> without_a_feature(const Router& router) {
    std::vector<Router> simpler;
    const auto add = [&](bool has_feature, auto&& remove) {
      if (has_feature) remove(simpler.emplace_back(router));
    };
    add(router.scores == RouterScores::kSigmoid,
        [](Router& other) { other.scores = RouterScores::kSoftmax; });
    add(router.selection_bias != nullptr, [](Router& other) { other.selection_bias = nullptr; });
    // With groups of one and no ties, top_k of the best groups are the best experts anyway.
    add(router.restricts_groups() && router.top_k > router.top_groups,
        [](Router& other) { other.top_groups = other.num_groups; });
    add(router.scale != 1.0f, [](Router& other) { other.scale = 1.0f; });
    add(router.expert_scales != nullptr, [](Router& other) { other.expert_scales = nullptr; });
    add(true, [](Router& other) { other.renormalize = !other.renormalize; });
    return simpler;
  }

  int num_experts_;
  int hidden_;
  std::vector<float> logits_;
  std::vector<float> selection_bias_;
};

}  // namespace specdec::testing
