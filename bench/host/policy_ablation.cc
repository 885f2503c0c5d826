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
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "host/policy_worlds.h"

namespace {

using specdec::DraftTuning;
using specdec::bench::PolicyWorld;
using specdec::bench::rate_of;

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
    {"hopeless_probe_interval", &DraftTuning::hopeless_probe_interval},
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

struct Figures {
  double mean = 0;
  double worst = 1e9;
  std::string worst_world;
  double safety = 1e9;
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<PolicyWorld> worlds = specdec::bench::worlds_of(argc > 1 ? argv[1] : "8000");
  std::vector<double> plain;
  std::vector<double> baseline;
  for (const PolicyWorld& world : worlds) {
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
