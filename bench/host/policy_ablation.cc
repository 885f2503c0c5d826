// The effect of each constant of DraftTuning: simulated decoding with the constant halved and
// doubled, compared with its actual value. Needs no model and no clock, so the figures are the
// same on every machine.
//
//     policy_ablation [TOKENS]      tokens of each simulated request, 8000 if left out
//     policy_ablation WORLDS.json   a real model's passes and drafts: bench/e2e/policy_worlds.py
//
// A row of the table has the mean over all worlds of (tokens a second with the constant changed) /
// (tokens a second as it is), and the worst world of each. "safety" is the lowest rate of any world
// relative to decoding without drafts.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "testing/draft_world.h"

namespace {

using specdec::DraftTuning;
using specdec::testing::DraftWorld;
using specdec::testing::DraftWorldOptions;

struct Constant {
  const char* name;
  std::variant<double DraftTuning::*, int DraftTuning::*, int64_t DraftTuning::*> member;
};
const std::vector<Constant> kConstants = {
    {"caution", &DraftTuning::caution},
    {"outlier", &DraftTuning::outlier},
    {"loss_share", &DraftTuning::loss_share},
    {"first_credit", &DraftTuning::first_credit},
    {"most_credit", &DraftTuning::most_credit},
    {"first_probe_interval", &DraftTuning::first_probe_interval},
    {"longest_probe_interval", &DraftTuning::longest_probe_interval},
    {"probe_depth", &DraftTuning::probe_depth},
    {"shortest_interval", &DraftTuning::shortest_interval},
    {"interval_by_gain", &DraftTuning::interval_by_gain},
    {"catch_up_rows", &DraftTuning::catch_up_rows},
    {"tokens_per_step", &DraftTuning::tokens_per_step},
    {"output_memory", &DraftTuning::output_memory},
    {"stretch", &DraftTuning::stretch},
};

DraftTuning with(const Constant& constant, double factor) {
  DraftTuning tuning;
  std::visit([&](auto member) { tuning.*member = tuning.*member * factor; }, constant.member);
  return tuning;
}

struct World {
  std::string name;
  DraftWorldOptions options;
  int64_t num_tokens;   // of a request
  int num_answers = 1;  // one after the other
};

std::vector<World> make_worlds(int64_t num_tokens) {
  std::vector<World> worlds;
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

// Seconds by rows, between the measured ones on straight lines.
double seconds_of(const std::vector<std::pair<int, double>>& passes, int rows) {
  auto next = std::ranges::lower_bound(passes, rows, {}, &std::pair<int, double>::first);
  if (next == passes.end()) --next;
  if (next == passes.begin()) return next->second;
  const auto& [low, low_seconds] = *std::prev(next);
  return low_seconds + (next->second - low_seconds) * (rows - low) / (next->first - low);
}

// Each workload's answers one after the other, and all at once.
std::vector<World> recorded_worlds(const char* file) {
  std::ifstream text(file);
  if (!text) {
    std::fprintf(stderr, "policy_ablation: cannot read %s\n", file);
    std::exit(1);
  }
  const nlohmann::json recorded = nlohmann::json::parse(text);
  std::vector<World> worlds;
  for (const auto& [format, steps] : recorded["passes"].items()) {
    const auto passes = steps.get<std::vector<std::pair<int, double>>>();
    for (const auto& [drafter, workloads] : recorded["right_tokens"].items()) {
      const bool is_draft_head = drafter == "head";
      const int max_depth = is_draft_head ? 8 : 16;
      for (const auto& [workload, answers] : workloads.items()) {
        const auto right = answers.get<std::vector<std::vector<int>>>();
        const auto num_right = [right](int request, int64_t token) {
          const std::vector<int>& answer = right[request % right.size()];
          return answer[std::min<size_t>(token, answer.size() - 1)];
        };
        const auto num_answers = static_cast<int>(right.size());
        for (const int batch : {1, num_answers}) {
          worlds.push_back({.name = drafter + ", batch " + std::to_string(batch) + ", " + format +
                                    ", " + workload,
                            .options = {.num_requests = batch,
                                        .max_depth = max_depth,
                                        .has_model = is_draft_head,
                                        .verify_seconds =
                                            [passes](int rows) { return seconds_of(passes, rows); },
                                        .pass_seconds = recorded["head_pass_share"].get<double>() *
                                                        seconds_of(passes, max_depth + 1),
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
                            .num_answers = 2 * num_answers / batch});
        }
      }
    }
  }
  return worlds;
}

// Tokens a second, over several seeds; more of them where runs are short.
double rate_of(const World& world, const DraftTuning& tuning, int fixed_depth = -1) {
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

struct Figures {
  double mean = 0;
  double worst = 1e9;
  std::string worst_world;
  double safety = 1e9;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view argument = argc > 1 ? argv[1] : "8000";
  const std::vector<World> worlds = argument.ends_with(".json")
                                        ? recorded_worlds(argv[1])
                                        : make_worlds(std::atoll(argument.data()));
  std::vector<double> plain;
  std::vector<double> baseline;
  for (const World& world : worlds) {
    plain.push_back(rate_of(world, {}, 0));
    baseline.push_back(rate_of(world, {}));
  }
  const auto figures_of = [&](const DraftTuning& tuning) {
    Figures figures;
    for (size_t i = 0; i < worlds.size(); ++i) {
      const double rate = rate_of(worlds[i], tuning);
      const double ratio = rate / baseline[i];
      figures.mean += ratio / static_cast<double>(worlds.size());
      figures.safety = std::min(figures.safety, rate / plain[i]);
      if (ratio < figures.worst) {
        figures.worst = ratio;
        figures.worst_world = worlds[i].name;
      }
    }
    return figures;
  };
  std::printf("%zu worlds\n\n", worlds.size());
  std::printf("| constant | factor | mean | worst | safety | worst world |\n");
  std::printf("|---|---|---|---|---|---|\n");
  const auto print = [&](const char* name, const char* factor, const DraftTuning& tuning) {
    const Figures f = figures_of(tuning);
    std::printf("| %s | %s | %.4f | %.3f | %.3f | %s |\n", name, factor, f.mean, f.worst, f.safety,
                f.worst_world.c_str());
    std::fflush(stdout);
  };
  print("as they are", "1", {});
  for (const Constant& constant : kConstants) {
    print(constant.name, "1/2", with(constant, 0.5));
    print(constant.name, "2", with(constant, 2.0));
  }
}
