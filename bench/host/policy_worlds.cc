#include "host/policy_worlds.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

namespace specdec::bench {

using testing::DraftWorld;
using testing::DraftWorldOptions;

std::vector<PolicyWorld> simulated_worlds(int64_t num_tokens) {
  std::vector<PolicyWorld> worlds;
  for (const int batch : {1, 8}) {
    // What another row adds to a pass: little in bfloat16, more with int4 weights, which take less
    // time to read.
    for (const auto& [format, row_share] : {std::pair{"bf16", 0.02}, std::pair{"int4", 0.1}}) {
      for (const auto& [drafter, has_model, levels] :
           {std::tuple{"model", true, false}, std::tuple{"device", true, true},
            std::tuple{"ngram", false, false}}) {
        const auto add = [&](const std::string& what, auto acceptance, int64_t length) {
          worlds.push_back(
              {.name = std::string(drafter) + ", batch " + std::to_string(batch) + ", " + format +
                       ", " + what,
               .options = {
                   .num_requests = batch,
                   .max_depth = has_model ? 8 : 16,
                   .has_model = has_model,
                   .verify_seconds =
                       [row_share](int rows) { return 0.01 * (1 + row_share * (rows - 1)); },
                   .acceptance = acceptance,
                   .hit_rate = [share = has_model ? 1.0 : 0.6](int, int64_t) { return share; },
                   .levels = levels,
                   .outlier_rate = 0.005,
                   .timed_rows = {1, 2, 4, 8, 16}},
               .num_tokens = length});
        };
        for (const double rate : {0.02, 0.3, 0.5, 0.7, 0.9}) {
          add(
              "accepts " + std::to_string(rate).substr(0, 4),
              [rate](int, int64_t, int) { return rate; }, num_tokens);
        }
        add(
            "accepts now much, now little",
            [](int, int64_t token, int) { return (token / 400) % 2 == 0 ? 0.85 : 0.02; },
            num_tokens);
        add("begins and is hopeless", [](int, int64_t, int) { return 0.02; }, 128);
        add("begins and is good", [](int, int64_t, int) { return 0.8; }, 128);
        if (!has_model) continue;
        for (const double rate : {0.3, 0.8}) {
          add(
              "short answers to long prompts, accepts " + std::to_string(rate).substr(0, 4),
              [rate](int, int64_t, int) { return rate; }, 60);
          worlds.back().options.num_prompt_tokens = 400;
          worlds.back().num_answers = 12;
        }
      }
    }
  }
  return worlds;
}

namespace {

// Seconds by rows, between the measured ones on straight lines.
double seconds_of(const std::vector<std::pair<int, double>>& passes, int rows) {
  auto next = std::ranges::lower_bound(passes, rows, {}, &std::pair<int, double>::first);
  if (next == passes.end()) --next;
  if (next == passes.begin()) return next->second;
  const auto& [low, low_seconds] = *std::prev(next);
  return low_seconds + (next->second - low_seconds) * (rows - low) / (next->first - low);
}

// The answers of one workload, or of several, one after the other or `batch` at once. `right` is
// how many drafted tokens are right after each token of each answer; -1: there is no draft.
PolicyWorld recorded_world(const std::string& name, const std::vector<std::vector<int>>& right,
                           int batch, bool is_draft_head, double head_pass_share,
                           const std::vector<std::pair<int, double>>& passes) {
  const int max_depth = is_draft_head ? 8 : 16;
  const auto num_right = [right](int request, int64_t token) {
    const std::vector<int>& answer = right[request % right.size()];
    return answer[std::min<size_t>(token, answer.size() - 1)];
  };
  return {.name = name,
          .options = {.num_requests = batch,
                      .max_depth = max_depth,
                      .has_model = is_draft_head,
                      .verify_seconds = [passes](int rows) { return seconds_of(passes, rows); },
                      .pass_seconds = head_pass_share * seconds_of(passes, max_depth + 1),
                      .num_prompt_tokens = is_draft_head ? 128 : 0,
                      .acceptance =
                          [num_right](int request, int64_t token, int depth) {
                            return depth <= num_right(request, token) ? 1.0 : 0.0;
                          },
                      .hit_rate =
                          [num_right](int request, int64_t token) {
                            return num_right(request, token) < 0 ? 0.0 : 1.0;
                          },
                      .outlier_rate = 0.005,
                      .timed_rows = {1, 2, 4, 8, 16}},
          .num_tokens = static_cast<int64_t>(right[0].size()),
          .num_answers = 2 * static_cast<int>(right.size()) / batch};
}

}  // namespace

std::vector<PolicyWorld> recorded_worlds(const char* file, bool with_changes) {
  std::ifstream text(file);
  if (!text) {
    std::fprintf(stderr, "cannot read %s\n", file);
    std::exit(1);
  }
  const nlohmann::json recorded = nlohmann::json::parse(text);
  std::vector<PolicyWorld> worlds;
  for (const auto& [format, steps] : recorded["passes"].items()) {
    const auto passes = steps.get<std::vector<std::pair<int, double>>>();
    for (const auto& [drafter, workloads] : recorded["right_tokens"].items()) {
      const auto add = [&](const std::string& what, const std::vector<std::vector<int>>& right,
                           int batch) {
        worlds.push_back(recorded_world(
            drafter + ", batch " + std::to_string(batch) + ", " + format + ", " + what, right,
            batch, drafter == "head", recorded["head_pass_share"].get<double>(), passes));
      };
      std::vector<std::vector<int>> all;
      int num_together = 0;
      for (const auto& [workload, answers] : workloads.items()) {
        const auto right = answers.get<std::vector<std::vector<int>>>();
        num_together = static_cast<int>(right.size());
        for (const int batch : {1, num_together}) add(workload, right, batch);
        all.insert(all.end(), right.begin(), right.end());
      }
      if (!with_changes) continue;
      for (const int batch : {1, num_together}) add("one workload after the other", all, batch);
    }
  }
  return worlds;
}

std::vector<PolicyWorld> worlds_of(const std::string& argument, bool with_changes) {
  return argument.ends_with(".json") ? recorded_worlds(argument.c_str(), with_changes)
                                     : simulated_worlds(std::atoll(argument.c_str()));
}

double rate_of(const PolicyWorld& world, const DraftTuning& tuning, int fixed_depth) {
  DraftWorld::Total total;
  const int num_seeds = world.num_tokens < 1000 ? 24 : 3;
  for (int seed = 1; seed <= num_seeds; ++seed) {
    DraftWorldOptions options = world.options;
    options.seed = static_cast<uint32_t>(seed);
    options.tuning = tuning;
    options.fixed_depth = fixed_depth;
    DraftWorld draft_world(options);
    for (int answer = 0; answer < world.num_answers; ++answer) {
      if (answer > 0) draft_world.begin_anew();
      const DraftWorld::Total run = draft_world.run(world.num_tokens);
      total.seconds += run.seconds;
      total.tokens += run.tokens;
    }
  }
  return total.tokens_per_second();
}

}  // namespace specdec::bench
