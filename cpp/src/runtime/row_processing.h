// Brings rows with logits processors to the host and runs the user's code on their logits.
#pragma once

#include <exception>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace specdec {

class RowProcessing {
 public:
  // The backend is borrowed.
  explicit RowProcessing(Backend& backend) : backend_(backend) {}

  // Runs the processors of the rows that have one and returns what to sample instead of `rows`,
  // valid until the next call. `logits` are the backend's, [rows.size(), vocab_size]. The result of
  // a row whose processor throws has the exception as its error.
  std::span<const SampleRow> run(const float* logits, int vocab_size,
                                 std::span<const SampleRow> rows, LogprobsMode logprobs_mode,
                                 std::span<SampleResult> results);

 private:
  // Returns the processor's exception, if any; the row is unchanged then.
  std::exception_ptr process(const float* from, SampleRow& row, std::span<float> logits);

  Backend& backend_;
  std::vector<SampleRow> rows_;
  std::vector<float> logits_;   // [rows with a processor, vocab_size]
  std::vector<float> scratch_;  // [vocab_size]
};

}  // namespace specdec
