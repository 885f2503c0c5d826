// The outcome of a step: the same record whether the host ran its passes one by one or the device
// ran them as one launch.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "specdec/request_output.h"

namespace specdec {

struct SequenceOutcome {
  // Accepted drafts in order and the token after them; empty where the sequence does not sample, or
  // had ended before the step ran.
  std::vector<int32_t> tokens;
  std::vector<PositionLogprobs> logprobs;  // one a token where the request asked for them
  std::vector<int> accepted;               // nodes of the draft tree, from the root down
  // The draft tree where the device grew it: parents[i] is the node that draft i continues. Node 0
  // is the root and node i + 1 is draft i.
  std::vector<int32_t> drafts;
  std::vector<int32_t> parents;
  std::vector<PositionLogprobs> prompt_logprobs;
  // Set where this sequence alone could not be run; the fields above are empty then.
  std::exception_ptr error;
};

struct StepOutcome {
  std::vector<SequenceOutcome> sequences;
  double draft_seconds = 0;  // the draft model's passes, where the device ran them
  // The target's pass; on the device it includes sampling and verification
  double target_seconds = 0;
  double sample_seconds = 0;  // sampling and verification by the host
};

}  // namespace specdec
