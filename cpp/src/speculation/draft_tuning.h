// What a DraftPolicy goes by that is neither measured nor asked for. bench/host/policy_ablation
// says what each is worth.
#pragma once

#include <cstdint>

namespace specdec {

struct DraftTuning {
  double caution = 0.1;   // extra seconds are weighed so much heavier
  double outlier = 2;     // times the seconds expected
  double replace = 1.05;  // by how much a draft must beat the one it would replace

  double loss_share = 0.01;  // of all seconds that may be lost to drafts that do not pay
  double first_credit = 2;   // steps without drafts
  double most_credit = 4;

  int64_t first_probe_interval = 4;  // steps
  int64_t longest_probe_interval = 1024;
  int probe_depth = 2;

  // Steps with drafts until one with fewer or none is run to measure it: the more drafts gain, the
  // more that costs.
  int64_t shortest_interval = 8;
  double interval_by_gain = 100;

  int first_slots = 4;         // of a request, or a step, nothing is known of
  int catch_up_rows = 4;       // of a usual pass; more rows than these run only once
  double tokens_per_step = 2;  // with drafts, to spread the cost of catching up
  double output_memory = 8;    // requests
  int stretch = 8;             // rows over which the cost of one is averaged
};

}  // namespace specdec
