#include "runtime/pass_timing.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>

#include "core/stopwatch.h"

namespace specdec {
namespace {

constexpr int kRounds = 3;
constexpr double kLongest = 0.1;   // seconds
constexpr double kMostPasses = 8;  // of one row
// One row tells how fast weights are read, eight where arithmetic begins to count.
constexpr std::array kCounts = {1, 8, 4, 16, 2, 32, 64};

class TimedRunner {
 public:
  TimedRunner(ModelRunner& runner, bool is_head, const BlockTable& blocks)
      : runner_(runner), is_head_(is_head), blocks_(blocks), inputs_(is_head) {}

  double run(int num_rows) {
    const std::vector<int32_t> tokens(num_rows, 0);
    std::vector<int32_t> row_ids;
    for (int row = 0; row < num_rows; ++row) row_ids.push_back(row);
    const std::vector<SampleRow> rows(num_rows, SampleRow{.temperature = 0.0f});
    std::vector<SampleResult> results(num_rows);
    const double start = now_seconds();
    inputs_.clear();
    inputs_.add_chain(tokens, is_head_ ? 1 : 0, blocks_);  // a head has no row at the first slot
    runner_.forward(inputs_);
    runner_.sample(row_ids, rows, LogprobsMode::kRaw, results);
    return now_seconds() - start;
  }

 private:
  ModelRunner& runner_;
  bool is_head_;
  const BlockTable& blocks_;
  BatchInputs inputs_;
};

std::vector<TimedPass> time_runner(ModelRunner& runner, bool is_head, std::span<const int> counts,
                                   const BlockTable& blocks) {
  if (counts.size() < 2) return {};
  TimedRunner timed(runner, is_head, blocks);
  return time_counts(counts, [&](int num_rows) { return timed.run(num_rows); });
}

}  // namespace

std::vector<TimedPass> time_counts(std::span<const int> counts,
                                   const std::function<double(int num_rows)>& run) {
  std::map<int, double> shortest;
  double total = run(1);  // touches new memory
  double limit = kLongest;
  for (int round = 0; round < kRounds; ++round) {
    for (const int num_rows : counts) {
      if (shortest.size() > 1 && total >= limit) break;
      const double seconds = run(num_rows);
      total += seconds;
      const auto [it, is_new] = shortest.try_emplace(num_rows, seconds);
      if (!is_new) it->second = std::min(it->second, seconds);
      if (num_rows == 1) limit = std::max(kLongest, kMostPasses * it->second);
    }
  }
  std::vector<TimedPass> passes;
  for (const auto& [num_rows, seconds] : shortest) {
    passes.push_back({.num_rows = num_rows, .seconds = seconds});
  }
  return passes;
}

std::vector<TimedPass> time_passes(ModelRunner& runner, int max_rows, const BlockTable& blocks) {
  std::vector<int> counts;
  for (const int num_rows : kCounts) {
    if (num_rows <= std::min(max_rows, blocks.capacity_tokens())) counts.push_back(num_rows);
  }
  return time_runner(runner, /*is_head=*/false, counts, blocks);
}

std::vector<TimedPass> time_draft_passes(ModelRunner& runner, bool is_head,
                                         std::span<const TimedPass> target,
                                         const BlockTable& blocks) {
  std::vector<int> counts;
  for (const int num_rows : kCounts) {
    const bool has_room = num_rows < blocks.capacity_tokens();
    if (has_room && std::ranges::find(target, num_rows, &TimedPass::num_rows) != target.end()) {
      counts.push_back(num_rows);
    }
  }
  return time_runner(runner, is_head, counts, blocks);
}

}  // namespace specdec
