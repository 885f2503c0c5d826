// One rank of an engine leads: it schedules, drafts and samples. The others have their shares of
// the same models and caches, and repeat the leader's calls of its ModelRunners, which reach them
// as messages of a few kilobytes a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"

namespace specdec {

class ModelRunner;

// What a pass is besides its batch; see ModelPass.
struct PassKind {
  int level = 0;
  bool kv_only = false;
  int num_levels = 1;
};

// The leader's side. Each call is sent before the leader makes it itself. Throws RankFailure.
class RankCalls {
 public:
  explicit RankCalls(Communicator& ranks) : ranks_(ranks) {}

  // `model`: its place in what the others gave to repeat_calls().
  void forward(int model, const BatchView& batch, const PassKind& kind);
  void compute_logits(int model, std::span<const int32_t> row_ids, int level);
  void move_kv(int model, std::span<const std::pair<int64_t, int64_t>> slots);
  // No more calls for now: threads that were kept hot may sleep.
  void end_step();
  // The others return from repeat_calls().
  void stop();

 private:
  void send();

  Communicator& ranks_;
  std::vector<std::byte> message_;
};

// The others' side: repeats the leader's calls until it says stop. models[i] is null where this
// rank has no share of a model. Throws what a call throws.
void repeat_calls(Communicator& ranks, Backend& backend, std::span<ModelRunner* const> models);

}  // namespace specdec
