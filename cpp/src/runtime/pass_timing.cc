#include "runtime/pass_timing.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <map>

#include "core/check.h"
#include "core/stopwatch.h"

namespace specdec {
namespace {

constexpr int kRounds = 3;
constexpr double kLongest = 0.1;   // seconds
constexpr double kMostPasses = 8;  // of one row
// One row tells how fast weights are read, eight where arithmetic begins to count.
constexpr std::array kCounts = {1, 8, 4, 16, 2, 32, 64};

double seconds_on(PassClock clock) {
  if (clock == PassClock::kWall) return now_seconds();
  timespec time{};
  SPECDEC_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class TimedRunner {
 public:
  TimedRunner(ModelRunner& runner, bool is_draft_head, const BlockTable& blocks, PassClock clock)
      : runner_(runner),
        first_slot_(is_draft_head ? 1 : 0),
        blocks_(blocks),
        clock_(clock),
        inputs_(is_draft_head ? RowFeatures::kOfPreviousToken : RowFeatures::kNone) {}

  bool has_room_for(int num_rows) const {
    const RunnerLimits& limits = runner_.limits();
    const int num_slots = std::min(limits.max_model_len, blocks_.capacity_tokens()) - first_slot_;
    return num_rows <= std::min(limits.max_rows, num_slots);
  }

  double run(int num_rows) {
    const std::vector<int32_t> tokens(num_rows, 0);
    std::vector<int32_t> row_ids;
    for (int row = 0; row < num_rows; ++row) row_ids.push_back(row);
    const std::vector<SampleRow> rows(num_rows, SampleRow{.temperature = 0.0f});
    std::vector<SampleResult> results(num_rows);
    StateAccess states;
    states.stores = {{num_rows, 0}};
    const double start = seconds_on(clock_);
    inputs_.clear();
    inputs_.add_chain(tokens, first_slot_, blocks_, /*keeps_state=*/false,
                      runner_.has_states() ? &states : nullptr);
    runner_.forward(inputs_);
    runner_.sample(row_ids, rows, LogprobsMode::kRaw, results);
    return seconds_on(clock_) - start;
  }

 private:
  ModelRunner& runner_;
  int first_slot_;  // a head has no row at the very first
  const BlockTable& blocks_;
  PassClock clock_;
  BatchInputs inputs_;
};

// Times the row counts that `is_wanted` accepts.
std::vector<TimedPass> time_runner(TimedRunner runner,
                                   const std::function<bool(int num_rows)>& is_wanted) {
  std::vector<int> counts;
  for (const int num_rows : kCounts) {
    if (is_wanted(num_rows) && runner.has_room_for(num_rows)) counts.push_back(num_rows);
  }
  if (counts.size() < 2) return {};
  return time_counts(counts, [&](int num_rows) { return runner.run(num_rows); });
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

std::vector<TimedPass> time_passes(ModelRunner& runner, int max_rows, const BlockTable& blocks,
                                   PassClock clock) {
  return time_runner(TimedRunner(runner, /*is_draft_head=*/false, blocks, clock),
                     [&](int num_rows) { return num_rows <= max_rows; });
}

std::vector<TimedPass> time_draft_passes(ModelRunner& runner, bool is_draft_head,
                                         std::span<const TimedPass> target,
                                         const BlockTable& blocks, PassClock clock) {
  return time_runner(TimedRunner(runner, is_draft_head, blocks, clock), [&](int num_rows) {
    return std::ranges::find(target, num_rows, &TimedPass::num_rows) != target.end();
  });
}

}  // namespace specdec
