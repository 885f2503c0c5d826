// Asked by a drafter that runs a model, before every pass after the first.
#pragma once

#include <cstdint>
#include <span>

#include "speculation/draft_tree.h"

namespace specdec {

class DraftGate {
 public:
  // A node that could be drafted below in the next pass.
  struct Node {
    uint64_t sequence = 0;
    const DraftTree* tree = nullptr;
    int node = 0;
    bool goes_on = true;  // out
  };
  virtual ~DraftGate() = default;
  virtual void choose(int drafter, std::span<Node> nodes) = 0;
};

}  // namespace specdec
