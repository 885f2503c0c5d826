// What the policy loses against the best fixed draft length, known in hindsight, in the worlds of
// policy_ablation. Needs no model and no clock, so the figures are the same on every machine.
//
//     policy_regret [TOKENS]      tokens of each simulated request, 8000 if left out
//     policy_regret WORLDS.json   a real model's passes and drafts: bench/e2e/policy_worlds.py
//
// Regret is the share of time that the policy took longer than drafts of the length that is fastest
// over the whole world; less than 0 where it was faster than any one length. Exits with 1 where the
// mean is above 3%, or a world is slower than 0.97 of decoding without drafts.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "host/policy_worlds.h"

namespace {

constexpr double kMostRegret = 0.03;    // on average
constexpr double kLeastOfPlain = 0.97;  // in any world

}  // namespace

int main(int argc, char** argv) {
  using specdec::bench::rate_of;
  const auto worlds = specdec::bench::worlds_of(argc > 1 ? argv[1] : "8000", true);
  double mean = 0;
  double worst = -1;
  double least_of_plain = 1e9;
  std::printf("| world | regret | best length | of plain |\n|---|---|---|---|\n");
  for (const auto& world : worlds) {
    const double policy = rate_of(world, {});
    const double plain = rate_of(world, {}, 0);
    double best = plain;
    int best_length = 0;
    for (int length = 1; length <= world.options.max_depth; ++length) {
      const double rate = rate_of(world, {}, length);
      if (rate <= best) continue;
      best = rate;
      best_length = length;
    }
    const double regret = best / policy - 1.0;
    std::printf("| %s | %+.1f%% | %d | %.3f |\n", world.name.c_str(), 100 * regret, best_length,
                policy / plain);
    std::fflush(stdout);
    mean += regret / static_cast<double>(worlds.size());
    worst = std::max(worst, regret);
    least_of_plain = std::min(least_of_plain, policy / plain);
  }
  std::printf("\n%zu worlds: mean regret %+.2f%%, worst %+.1f%%; least of plain %.3f\n",
              worlds.size(), 100 * mean, 100 * worst, least_of_plain);
  return mean > kMostRegret || least_of_plain < kLeastOfPlain ? 1 : 0;
}
