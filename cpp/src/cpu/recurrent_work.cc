#include "cpu/recurrent_work.h"

#include <algorithm>

#include "core/check.h"

namespace specdec::cpu {
namespace {

void check_request(const RecurrentRequest& request) {
  for (int row = 0; row < request.num_rows; ++row) {
    SPECDEC_CHECK_GE(request.parents[row], -1);
    SPECDEC_CHECK_LT(request.parents[row], row);
  }
  int num_tokens = 1;
  for (int s = 0; s < request.num_stores; ++s) {
    SPECDEC_CHECK_GE(request.stores[s].num_tokens, num_tokens);
    SPECDEC_CHECK_GE(request.stores[s].slot, 0);
    num_tokens = request.stores[s].num_tokens;
  }
  if (request.num_stores == 0) return;
  SPECDEC_CHECK_LE(num_tokens, request.num_pending + request.num_rows);
  for (int row = 0; row < num_tokens - request.num_pending; ++row) {
    SPECDEC_CHECK_EQ(request.parents[row], row - 1);
  }
}

}  // namespace

void RecurrentWork::plan(const BatchView& batch, bool visits) {
  const RecurrentRows& rows = batch.recurrent;
  SPECDEC_CHECK(batch.num_requests == 0 || rows.slots_in != nullptr);
  requests_.clear();
  stores_.clear();
  num_levels_ = 1;
  visits_.resize(visits ? static_cast<size_t>(batch.num_rows) : 0);
  const int num_stores = batch.num_requests > 0 ? rows.cu_stores[batch.num_requests] : 0;
  for (int i = 0; i < num_stores; ++i) {
    stores_.push_back({rows.stores[i].num_tokens, rows.stores[i].slot});
  }
  for (int i = 0; i < batch.num_requests; ++i) {
    const int32_t row_begin = batch.cu_rows[i];
    const RecurrentRequest& request = requests_.emplace_back(
        RecurrentRequest{.row_begin = row_begin,
                         .num_rows = batch.cu_rows[i + 1] - row_begin,
                         .slot_in = rows.slots_in[i],
                         .pending = rows.pending + rows.cu_pending[i],
                         .num_pending = rows.cu_pending[i + 1] - rows.cu_pending[i],
                         .stores = stores_.data() + rows.cu_stores[i],
                         .num_stores = rows.cu_stores[i + 1] - rows.cu_stores[i],
                         .parents = rows.parents + row_begin,
                         .visits = visits_.data() + (visits ? row_begin : 0)});
    check_request(request);
    if (visits) plan_visits(request, visits_.data() + row_begin);
  }
}

void RecurrentWork::plan_visits(const RecurrentRequest& request, RowVisit* visits) {
  const auto num_nodes = static_cast<size_t>(request.num_rows) + 1;
  first_children_.assign(num_nodes, -1);
  next_siblings_.assign(num_nodes, -1);
  for (int32_t row = request.num_rows - 1; row >= 0; --row) {
    int32_t& first = first_children_[request.parents[row] + 1];
    next_siblings_[row + 1] = first;
    first = row;
  }
  stack_.clear();
  push_children(-1, 0, 0);
  while (!stack_.empty()) {
    const Step step = stack_.back();
    stack_.pop_back();
    *visits++ = step.visit;
    num_levels_ = std::max(num_levels_, step.level + 1);
    push_children(step.visit.row, step.visit.to, step.level);
  }
}

// `from` has the state before the row, and `level` will have the one after it. Children without
// children come first, because they leave it as it is; the last child changes it, those between
// work on the next level.
void RecurrentWork::push_children(int32_t row, int32_t from, int32_t level) {
  const size_t bottom = stack_.size();
  bool is_last = true;
  for (const bool has_children : {true, false}) {
    for (int32_t child = first_children_[row + 1]; child >= 0; child = next_siblings_[child + 1]) {
      if ((first_children_[child + 1] >= 0) != has_children) continue;
      stack_.push_back({.visit = {.row = child,
                                  .from = level,
                                  .to = level,
                                  .applies = false,
                                  .has_no_children = !has_children},
                        .level = has_children && !is_last ? level + 1 : level});
      is_last = is_last && !has_children;
    }
  }
  if (stack_.size() == bottom) return;
  RowVisit& first = stack_.back().visit;
  first.from = from;
  first.applies = row >= 0;
}

}  // namespace specdec::cpu
