// Sparse mixture of experts. Rows are gathered by expert, so that each expert's weights are read
// once. Results are added in order of rank, so that a row does not depend on the rest of the batch.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "cpu/cpu_backend.h"
#include "cpu/packed_linear.h"

namespace specdec::cpu {
namespace {

// A (row, rank) and the expert that the row chose at this rank.
struct Choice {
  int expert = 0;
  float weight = 0.0f;
};

// The first `count` of `order` become the indices of the greatest values, best first; ties go to
// the lower index.
template <class Value>
void rank_by(const Value* values, int count, std::vector<int>& order) {
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int a, int b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  });
}

// Chooses the experts of rows, one after another.
class RowRouter {
 public:
  RowRouter(const Router& router, int num_experts)
      : router_(router), num_experts_(num_experts), order_(num_experts) {}

  // The experts of a row by rank. logits: [num_experts].
  void route(const float* logits, Choice* choices) {
    const int top_k = router_.top_k;
    highest_ = *std::max_element(logits, logits + num_experts_);
    if (router_.chooses_by_logits()) {
      rank_by(logits, top_k, order_);
    } else {
      rank_by_biased_scores(logits);
    }
    double total = 0.0;
    if (router_.renormalize) {
      for (int rank = 0; rank < top_k; ++rank) total += score(logits[order_[rank]]);
      if (router_.scores == RouterScores::kSigmoid) total += 1e-20;
    } else {
      total = total_score(logits);
    }
    for (int rank = 0; rank < top_k; ++rank) {
      const int expert = order_[rank];
      double weight = score(logits[expert]) / total * router_.scale;
      if (router_.expert_scales != nullptr) weight *= router_.expert_scales[expert];
      choices[rank] = {expert, static_cast<float>(weight)};
    }
  }

 private:
  // Scores of the softmax are not divided by their total yet.
  double score(float logit) const {
    if (router_.scores == RouterScores::kSigmoid) return 1.0 / (1.0 + std::exp(-double{logit}));
    return std::exp(logit - highest_);
  }
  double total_score(const float* logits) const {
    if (router_.scores == RouterScores::kSigmoid) return 1.0;
    double total = 0.0;
    for (int i = 0; i < num_experts_; ++i) total += score(logits[i]);
    return total;
  }

  void rank_by_biased_scores(const float* logits) {
    const double total = total_score(logits);
    biased_.resize(num_experts_);
    for (int i = 0; i < num_experts_; ++i) {
      const double bias = router_.selection_bias != nullptr ? router_.selection_bias[i] : 0.0;
      biased_[i] = score(logits[i]) / total + bias;
    }
    if (router_.restricts_groups()) leave_best_groups();
    rank_by(biased_.data(), router_.top_k, order_);
  }

  // The biased scores of other groups become -inf.
  void leave_best_groups() {
    constexpr double kNone = -std::numeric_limits<double>::infinity();
    const int group_size = num_experts_ / router_.num_groups;
    group_scores_.resize(router_.num_groups);
    for (int group = 0; group < router_.num_groups; ++group) {
      const double* scores = &biased_[group * group_size];
      double best = kNone, second = kNone;
      for (int i = 0; i < group_size; ++i) {
        second = std::max(second, std::min(best, scores[i]));
        best = std::max(best, scores[i]);
      }
      group_scores_[group] = group_size == 1 ? best : best + second;
    }
    group_order_.resize(router_.num_groups);
    rank_by(group_scores_.data(), router_.top_groups, group_order_);
    for (int i = router_.top_groups; i < router_.num_groups; ++i) {
      std::fill_n(biased_.begin() + group_order_[i] * group_size, group_size, kNone);
    }
  }

  const Router& router_;
  int num_experts_;
  double highest_ = 0.0;  // logit of the row
  std::vector<int> order_;
  std::vector<double> biased_;
  std::vector<double> group_scores_;
  std::vector<int> group_order_;
};

}  // namespace

void CpuBackend::moe(const MoeArgs& args) {
  const int num_experts = static_cast<int>(args.gate_up.size());
  SPECDEC_CHECK_EQ(args.down.size(), args.gate_up.size());
  check_router(args.router, num_experts);
  if (args.num_rows == 0) return;
  const int top_k = args.router.top_k;
  const int64_t hidden = args.gate_up[0]->in_features();
  const int64_t inner = args.down[0]->in_features();
  const int64_t num_choices = int64_t{args.num_rows} * top_k;

  std::vector<Choice> choices(num_choices);
  RowRouter router(args.router, num_experts);
  for (int row = 0; row < args.num_rows; ++row) {
    router.route(args.router_logits + int64_t{row} * num_experts, &choices[int64_t{row} * top_k]);
  }
  std::vector<int64_t> by_expert(num_choices);  // choices in order of expert, then row
  std::iota(by_expert.begin(), by_expert.end(), 0);
  std::stable_sort(by_expert.begin(), by_expert.end(),
                   [&](int64_t a, int64_t b) { return choices[a].expert < choices[b].expert; });

  const int64_t act_floats = inner * num_choices + 1;
  float* const scratch = grow_scratch(moe_scratch_, num_choices * hidden + act_floats);
  float* const results = scratch;                    // [num_choices, hidden], by expert
  void* const act = results + num_choices * hidden;  // [rows of one expert, inner]

  // When ranks share the experts' inputs, the planes of all choices are exchanged at once.
  const auto& first_down = static_cast<const CpuPackedLinear&>(*args.down[0]);
  const bool is_shared = first_down.share().by_inputs();
  float* const own = is_shared ? part_for_planes(first_down, num_choices) : nullptr;

  const auto down_bias = [&](int expert) {
    return args.down_bias != nullptr ? args.down_bias + expert * hidden : nullptr;
  };
  std::vector<int64_t> result_index(num_choices);  // a choice's index among the results
  std::vector<int32_t> row_ids;                    // rows of one expert
  for (int64_t begin = 0; begin < num_choices;) {
    const int expert = choices[by_expert[begin]].expert;
    int64_t end = begin;
    row_ids.clear();
    for (; end < num_choices && choices[by_expert[end]].expert == expert; ++end) {
      result_index[by_expert[end]] = end;
      row_ids.push_back(static_cast<int32_t>(by_expert[end] / top_k));
    }
    const int num_rows = static_cast<int>(end - begin);
    activated_linear(
        {.weight = args.gate_up[expert],
         .in = {.x = args.x, .dtype = act_dtype_, .row_ids = row_ids.data(), .num_rows = num_rows},
         .bias = args.gate_up_bias != nullptr ? args.gate_up_bias + expert * 2 * inner : nullptr,
         .activation = args.activation,
         .constants = args.constants,
         .gated = true,
         .out = act});
    const auto& down = static_cast<const CpuPackedLinear&>(*args.down[expert]);
    const ProjectionInput in = {.x = act, .dtype = act_dtype_, .num_rows = num_rows};
    if (is_shared) {
      SPECDEC_CHECK(down.share().by_inputs() && !down.has_input_order());
      compute_planes(down, in, own + begin * down.padded_outputs(), num_choices);
    } else {
      linear(
          {.weight = &down, .in = in, .bias = down_bias(expert), .out = results + begin * hidden});
    }
    begin = end;
  }
  if (is_shared) {
    const auto planes = exchange_planes(first_down, num_choices);
    for (int64_t begin = 0, end = 0; begin < num_choices; begin = end) {
      const int expert = choices[by_expert[begin]].expert;
      while (end < num_choices && choices[by_expert[end]].expert == expert) ++end;
      finish_planes({.weight = args.down[expert],
                     .in = {.num_rows = static_cast<int>(end - begin)},
                     .bias = down_bias(expert),
                     .out = results + begin * hidden},
                    planes, begin);
    }
  }

  pool_.parallel_for(args.num_rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t choice = begin * top_k; choice < end * top_k; ++choice) {
      const float* result = results + result_index[choice] * hidden;
      float* out = args.out + choice / top_k * hidden;
      const float weight = choices[choice].weight;
      if (!args.accumulate && choice % top_k == 0) std::fill_n(out, hidden, 0.0f);
      for (int64_t i = 0; i < hidden; ++i) out[i] += weight * result[i];
    }
  });
}

}  // namespace specdec::cpu
