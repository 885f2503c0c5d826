// Worlds in which a DraftPolicy decodes without a model and a clock: simulated ones, and recorded
// ones that have a real model's passes and drafts (bench/e2e/policy_worlds.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "testing/draft_world.h"

namespace specdec::bench {

struct PolicyWorld {
  std::string name;
  testing::DraftWorldOptions options;
  int64_t num_tokens;   // of a request
  int num_answers = 1;  // one after the other
};

// Requests of so many tokens.
std::vector<PolicyWorld> simulated_worlds(int64_t num_tokens);
// Each workload's answers one after the other, and all at once. `with_changes`: worlds in which one
// workload follows the other, too. Ends the program where the file cannot be read.
std::vector<PolicyWorld> recorded_worlds(const char* file, bool with_changes = false);
// Those that a command line names: a number of tokens, or a file.
std::vector<PolicyWorld> worlds_of(const std::string& argument, bool with_changes = false);

// Tokens a second, over several seeds; more of them where runs are short. `fixed_depth`: of all
// drafts; the policy decides where it is negative.
double rate_of(const PolicyWorld& world, const DraftTuning& tuning, int fixed_depth = -1);

}  // namespace specdec::bench
