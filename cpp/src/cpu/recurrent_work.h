// A batch as the kernels of recurrent layers take it: where each request's state comes from and
// goes to, and in which order its rows are walked.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/op_args.h"
#include "cpu/kernels/recurrence.h"

namespace specdec::cpu {

class RecurrentWork {
 public:
  // Reads batch.recurrent, and checks it. `visits`: also plans the walks. The memory is kept from
  // one call to the next.
  void plan(const BatchView& batch, bool visits);

  const std::vector<RecurrentRequest>& requests() const { return requests_; }
  int num_levels() const { return num_levels_; }  // that the visits name

 private:
  struct Step {
    RowVisit visit;
    int32_t level;  // of the state after the row
  };
  void plan_visits(const RecurrentRequest& request, RowVisit* visits);
  void push_children(int32_t row, int32_t from, int32_t level);

  std::vector<RecurrentRequest> requests_;
  std::vector<StoredState> stores_;
  std::vector<RowVisit> visits_;
  int num_levels_ = 0;

  // Of the request that is planned; index row + 1, so that 0 is the state before all rows.
  std::vector<int32_t> first_children_;
  std::vector<int32_t> next_siblings_;
  std::vector<Step> stack_;
};

}  // namespace specdec::cpu
