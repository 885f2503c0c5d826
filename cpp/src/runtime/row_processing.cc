#include "runtime/row_processing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/row_edits.h"

namespace specdec {
namespace {

// Raw logprobs of a known token do not depend on processors.
bool is_processed(const SampleRow& row, LogprobsMode logprobs_mode) {
  if (row.processor == nullptr) return false;
  return row.forced_token < 0 || row.distribution != nullptr || !is_raw(logprobs_mode);
}

}  // namespace

std::span<const SampleRow> RowProcessing::run(const float* logits, int vocab_size,
                                              std::span<const SampleRow> rows,
                                              LogprobsMode logprobs_mode,
                                              std::span<SampleResult> results) {
  const auto processed = [&](const SampleRow& row) { return is_processed(row, logprobs_mode); };
  const auto num_processed = static_cast<size_t>(std::ranges::count_if(rows, processed));
  if (num_processed == 0) return rows;
  const auto size = static_cast<size_t>(vocab_size);
  rows_.assign(rows.begin(), rows.end());
  logits_.resize(num_processed * size);
  scratch_.resize(size);
  float* next = logits_.data();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!processed(rows[i])) continue;
    results[i].error = process(logits + i * size, rows_[i], {next, size});
    next += size;
  }
  return rows_;
}

std::exception_ptr RowProcessing::process(const float* from, SampleRow& row,
                                          std::span<float> logits) {
  backend_.read(from, logits);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (float& logit : logits) {
    if (std::isnan(logit)) logit = -kInfinity;  // as the sampler reads it
  }
  apply_masks(row, logits, scratch_);
  apply_bias(row, logits);
  try {
    row.processor->apply(logits);
  } catch (...) {
    return std::current_exception();
  }
  row.given_logits = logits.data();
  row.allowed_token_ids = {};
  row.banned_token_ids = {};
  row.logit_bias = {};
  return nullptr;
}

}  // namespace specdec
