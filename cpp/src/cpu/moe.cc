// Sparse mixture of experts. Rows are gathered by expert, so that each expert's weights are read
// once. Results are added in order of rank, so that a row does not depend on the rest of the batch.
#include <algorithm>
#include <cmath>
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

// The top_k experts of one row by rank; ties go to the lower index.
void route(const MoeArgs& args, int row, std::vector<int>& order, Choice* choices) {
  const int num_experts = static_cast<int>(args.gate_up.size());
  const float* logits = args.router_logits + static_cast<int64_t>(row) * num_experts;
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + args.top_k, order.end(), [&](int a, int b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  const double highest = logits[order[0]];
  double total = 0.0;
  const int num_summed = args.renormalize ? args.top_k : num_experts;
  for (int i = 0; i < num_summed; ++i) {
    total += std::exp(logits[args.renormalize ? order[i] : i] - highest);
  }
  for (int rank = 0; rank < args.top_k; ++rank) {
    const double weight = std::exp(logits[order[rank]] - highest) / total;
    choices[rank] = {order[rank], static_cast<float>(weight)};
  }
}

}  // namespace

void CpuBackend::moe(const MoeArgs& args) {
  const int num_experts = static_cast<int>(args.gate_up.size());
  SPECDEC_CHECK_EQ(args.down.size(), args.gate_up.size());
  SPECDEC_CHECK_GT(args.top_k, 0);
  SPECDEC_CHECK_LE(args.top_k, num_experts);
  if (args.num_rows == 0) return;
  const int64_t hidden = args.gate_up[0]->in_features();
  const int64_t inner = args.down[0]->in_features();
  const int64_t num_choices = int64_t{args.num_rows} * args.top_k;

  std::vector<Choice> choices(num_choices);
  std::vector<int> order(num_experts);
  for (int row = 0; row < args.num_rows; ++row) {
    route(args, row, order, &choices[int64_t{row} * args.top_k]);
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

  std::vector<int64_t> result_index(num_choices);  // a choice's index among the results
  std::vector<int32_t> row_ids;                    // rows of one expert
  for (int64_t begin = 0; begin < num_choices;) {
    const int expert = choices[by_expert[begin]].expert;
    int64_t end = begin;
    row_ids.clear();
    for (; end < num_choices && choices[by_expert[end]].expert == expert; ++end) {
      result_index[by_expert[end]] = end;
      row_ids.push_back(static_cast<int32_t>(by_expert[end] / args.top_k));
    }
    const int num_rows = static_cast<int>(end - begin);
    activated_linear(
        {.weight = args.gate_up[expert],
         .in = {.x = args.x, .dtype = act_dtype_, .row_ids = row_ids.data(), .num_rows = num_rows},
         .activation = args.activation,
         .gated = true,
         .out = act});
    const auto& down = static_cast<const CpuPackedLinear&>(*args.down[expert]);
    const ProjectionInput in = {.x = act, .dtype = act_dtype_, .num_rows = num_rows};
    if (is_shared) {
      SPECDEC_CHECK(down.share().by_inputs() && !down.has_input_order());
      compute_planes(down, in, own + begin * down.padded_outputs(), num_choices);
    } else {
      linear({.weight = &down, .in = in, .out = results + begin * hidden});
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
                     .out = results + begin * hidden},
                    planes, begin);
    }
  }

  pool_.parallel_for(args.num_rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t choice = begin * args.top_k; choice < end * args.top_k; ++choice) {
      const float* result = results + result_index[choice] * hidden;
      float* out = args.out + choice / args.top_k * hidden;
      const float weight = choices[choice].weight;
      for (int64_t i = 0; i < hidden; ++i) out[i] += weight * result[i];
    }
  });
}

}  // namespace specdec::cpu
