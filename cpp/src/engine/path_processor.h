// A request's logits processors on the path of one row.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/op_args.h"
#include "specdec/logits_processor.h"

namespace specdec {

class PathProcessor final : public RowProcessor {
 public:
  // Processors and prompt are borrowed.
  PathProcessor(std::span<const std::shared_ptr<LogitsProcessor>> processors,
                std::span<const int32_t> prompt, std::vector<int32_t> output)
      : processors_(processors), prompt_(prompt), output_(std::move(output)) {}

  // One after the other, in the request's order. Throws Error naming the one that fails.
  void apply(std::span<float> logits) override;

 private:
  std::span<const std::shared_ptr<LogitsProcessor>> processors_;
  std::span<const int32_t> prompt_;
  std::vector<int32_t> output_;
};

}  // namespace specdec
