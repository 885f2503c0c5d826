// Constants of a DraftPolicy that are neither measured nor configured. bench/host/policy_ablation
// measures what each is worth.
#pragma once

#include <cstdint>

namespace specdec {

struct DraftTuning {
  double caution = 0.1;   // extra seconds weigh more by this share
  double outlier = 2;     // measurements are clipped at this multiple of the expected seconds
  double replace = 1.05;  // factor by which a draft must beat the one it would replace

  double loss_share = 0.01;  // share of all seconds that drafts which do not pay may lose
  double first_credit = 2;   // in steps without drafts
  double most_credit = 4;

  int64_t first_probe_interval = 4;  // steps
  int64_t longest_probe_interval = 1024;
  int64_t hopeless_probe_interval = 64;  // at least, where not even good luck would pay
  int probe_depth = 2;

  // Steps with drafts between two measuring steps, which verify fewer drafts or none. The more
  // drafts gain, the more a measuring step costs.
  int64_t shortest_interval = 8;
  double interval_by_gain = 100;

  int first_budget = 4;        // for a request, or a step, without any history
  int catch_up_rows = 2;       // rows of a usual pass; more rows than these run only once
  double tokens_per_step = 2;  // with drafts, to spread the cost of catching up
  double output_memory = 8;    // requests over which the typical output length is averaged
  int stretch = 8;             // rows over which the cost of a row is averaged
};

}  // namespace specdec
