// One rank of an engine leads: it schedules, drafts and samples. The others have their shares of
// the same models and caches, and repeat the leader's calls of its ModelRunners and its DeviceStep.
// These calls reach them as messages of a few kilobytes per step.
//
// The leader is in the last stage, whose other ranks get every call as the leader makes it. Earlier
// stages have layers of the target only, so they get only the target's passes and moves. The leader
// sends a pass to them before it runs the pass itself; the first stage gets the call from the
// leader, and each stage forwards it to the next. So stages work on different steps at a time, in
// the leader's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "model/rank_coordinates.h"
#include "runtime/model_runner.h"

namespace specdec {

// The leader's side. Throws RankFailure.
class RankCalls {
 public:
  static constexpr int kTarget = 0;  // models[kTarget] of repeat_calls()

  // `place` and `backend` are the leader's.
  RankCalls(const RankCoordinates& coordinates, Backend& backend)
      : coordinates_(coordinates), backend_(backend) {}
  bool has_earlier_stages() const { return !coordinates_.is_first(); }

  // Begins the target's next pass in the stages before the leader's.
  void begin_forward(const BatchView& batch);
  // Calls that the other ranks of the leader's stage make along with it. `model`: its index in the
  // list that they gave to repeat_calls(). Moves of the target's KV reach earlier stages before
  // their next pass.
  void forward(int model, const BatchView& batch, const PassKind& kind);
  void compute_logits(int model, std::span<const int32_t> row_ids, int level);
  void compute_markov_logits(int model, std::span<const int32_t> token_ids);
  void move_kv(int model, std::span<const std::pair<int64_t, int64_t>> slots);
  // Calls of the DeviceStep; calls for its seats go with the next launch.
  void set_seats(std::span<const DeviceSeat> seats);
  void add_blocks(std::span<const NewBlock> blocks);
  void deactivate(std::span<const int> seats);
  void launch_step(const DeviceStepPlan& plan);
  // No more calls for now: threads that were kept hot may sleep.
  void end_step();
  // The others return from repeat_calls().
  void stop();

 private:
  void send_to_stage(std::vector<std::byte>& message);
  template <class Work>
  void each_of_first_stage(Work&& work);
  void post_to_first_stage();

  RankCoordinates coordinates_;
  Backend& backend_;
  std::vector<std::byte> message_;
  std::vector<std::byte> for_earlier_;  // calls that wait for the next message to earlier stages
};

// The others' side: repeats the leader's calls until it says stop. models[i] is null where this
// rank has no share of a model, `device_step` where the leader has none. Throws what a call throws.
void repeat_calls(const RankCoordinates& coordinates, Backend& backend,
                  std::span<ModelRunner* const> models, DeviceStep* device_step);

}  // namespace specdec
