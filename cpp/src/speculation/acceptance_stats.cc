#include "specdec/acceptance_stats.h"

#include <algorithm>

#include "core/check.h"

namespace specdec {
namespace {

void grow(std::vector<int64_t>& counts, size_t size) {
  if (counts.size() < size) counts.resize(size, 0);
}

void add_counts(std::vector<int64_t>& to, const std::vector<int64_t>& from) {
  grow(to, from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

}  // namespace

void AcceptanceStats::record(int num_drafts, int max_depth, int num_accepted) {
  SPECDEC_CHECK_LE(num_accepted, max_depth);
  SPECDEC_CHECK_LE(max_depth, num_drafts);
  if (num_drafts == 0) return;
  ++num_steps;
  num_draft_tokens += num_drafts;
  num_accepted_tokens += num_accepted;
  num_emitted_tokens += num_accepted + 1;
  grow(proposed_per_position, max_depth);
  grow(accepted_per_position, max_depth);
  grow(histogram, max_depth + 1);
  for (int i = 0; i < max_depth; ++i) ++proposed_per_position[i];
  for (int i = 0; i < num_accepted; ++i) ++accepted_per_position[i];
  ++histogram[num_accepted];
}

void AcceptanceStats::merge(const AcceptanceStats& other) {
  num_steps += other.num_steps;
  num_draft_tokens += other.num_draft_tokens;
  num_accepted_tokens += other.num_accepted_tokens;
  num_emitted_tokens += other.num_emitted_tokens;
  num_predicted_draft_tokens += other.num_predicted_draft_tokens;
  num_predicted_accepted_tokens += other.num_predicted_accepted_tokens;
  add_counts(proposed_per_position, other.proposed_per_position);
  add_counts(accepted_per_position, other.accepted_per_position);
  add_counts(histogram, other.histogram);
}

double AcceptanceStats::mean_acceptance_length() const {
  return num_steps == 0 ? 1 : 1 + static_cast<double>(num_accepted_tokens) / num_steps;
}

double AcceptanceStats::draft_acceptance_rate() const {
  return num_draft_tokens == 0 ? 0 : static_cast<double>(num_accepted_tokens) / num_draft_tokens;
}

}  // namespace specdec
