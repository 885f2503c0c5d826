#include "runtime/rank_calls.h"

#include "core/byte_message.h"
#include "core/check.h"
#include "runtime/seat_messages.h"

namespace specdec {
namespace {

constexpr int kLeader = 0;  // among all ranks, and among those of its stage

enum class Call : int32_t {
  kForward,
  kComputeLogits,
  kComputeMarkovLogits,
  kMoveKv,
  kSetSeats,
  kAddBlocks,
  kDeactivate,
  kLaunchStep,
  kEndStep,
  kStop
};

// Sent instead of a model's id: the call is one of the DeviceStep.
constexpr int32_t kDeviceStep = -1;

struct CallHeader {
  Call call = Call::kStop;
  int32_t model = 0;
};

// The members of a BatchView that are no arrays, and which arrays there are.
struct BatchHeader {
  int32_t num_requests = 0;
  int32_t num_rows = 0;
  int32_t max_blocks_per_request = 0;
  int32_t mask_words = 1;
  bool has_trees = false;
  bool has_masks = false;
  bool has_num_tree_slots = false;
  bool has_feature_slots = false;
  bool has_state_slots = false;
  int32_t num_pending = -1;  // records and stores of recurrent layers; -1: the model has none
  int32_t num_stores = 0;
};

// Calls visit(member, number of elements) for every array that the header says is there.
template <class Visit>
void each_array(const BatchHeader& header, auto& batch, Visit&& visit) {
  const auto rows = static_cast<size_t>(header.num_rows);
  const auto requests = static_cast<size_t>(header.num_requests);
  visit(batch.token_ids, rows);
  visit(batch.positions, rows);
  visit(batch.slot_mapping, rows);
  visit(batch.cu_rows, requests + 1);
  visit(batch.base_lens, requests);
  visit(batch.block_tables, requests * static_cast<size_t>(header.max_blocks_per_request));
  if (header.has_trees) visit(batch.is_tree, requests);
  if (header.has_masks) visit(batch.ancestor_mask, rows * static_cast<size_t>(header.mask_words));
  if (header.has_num_tree_slots) visit(batch.num_tree_slots, requests);
  if (header.has_feature_slots) visit(batch.feature_slots, rows);
  if (header.has_state_slots) visit(batch.state_slots, rows);
  if (header.num_pending < 0) return;
  auto& recurrent = batch.recurrent;
  visit(recurrent.slots_in, requests);
  visit(recurrent.cu_pending, requests + 1);
  visit(recurrent.pending, static_cast<size_t>(header.num_pending));
  visit(recurrent.cu_stores, requests + 1);
  visit(recurrent.stores, static_cast<size_t>(header.num_stores));
  visit(recurrent.parents, rows);
  visit(recurrent.records, rows);
}

void put_batch(MessageWriter& writer, const BatchView& batch) {
  const RecurrentRows& recurrent = batch.recurrent;
  const bool has_states = recurrent.slots_in != nullptr;
  const BatchHeader header = {
      .num_requests = batch.num_requests,
      .num_rows = batch.num_rows,
      .max_blocks_per_request = batch.max_blocks_per_request,
      .mask_words = batch.mask_words,
      .has_trees = batch.is_tree != nullptr,
      .has_masks = batch.ancestor_mask != nullptr,
      .has_num_tree_slots = batch.num_tree_slots != nullptr,
      .has_feature_slots = batch.feature_slots != nullptr,
      .has_state_slots = batch.state_slots != nullptr,
      .num_pending = has_states ? recurrent.cu_pending[batch.num_requests] : -1,
      .num_stores = has_states ? recurrent.cu_stores[batch.num_requests] : 0};
  writer.put(header);
  each_array(header, batch,
             [&](const auto* values, size_t count) { writer.put_all(std::span(values, count)); });
}

BatchView get_batch(MessageReader& reader) {
  const auto header = reader.get<BatchHeader>();
  BatchView batch = {.num_requests = header.num_requests,
                     .num_rows = header.num_rows,
                     .max_blocks_per_request = header.max_blocks_per_request,
                     .mask_words = header.mask_words};
  each_array(header, batch, [&]<class T>(const T*& values, size_t count) {
    values = reader.get_all<T>(count).data();
  });
  return batch;
}

void put_moves(MessageWriter& writer, int model,
               std::span<const std::pair<int64_t, int64_t>> slots) {
  writer.put(CallHeader{Call::kMoveKv, model});
  writer.put(slots.size());
  for (const auto& [from, to] : slots) {
    writer.put(from);
    writer.put(to);
  }
}

// The calls of one message after the other.
class Repeater {
 public:
  Repeater(Backend& backend, std::span<ModelRunner* const> models, DeviceStep* device_step)
      : backend_(backend), models_(models), device_step_(device_step) {}

  // False: the leader stops.
  bool repeat(std::span<const std::byte> message) {
    MessageReader reader(message);
    while (!reader.at_end()) {
      const auto header = reader.get<CallHeader>();
      if (header.call == Call::kStop || header.call == Call::kEndStep) {
        if (is_hot_) backend_.end_step();
        is_hot_ = false;
        if (header.call == Call::kStop) return false;
        continue;
      }
      if (header.model == kDeviceStep) {
        make(header.call, *device_step_, reader);
        continue;
      }
      SPECDEC_CHECK_LT(static_cast<size_t>(header.model), models_.size());
      ModelRunner* const model = models_[static_cast<size_t>(header.model)];
      if (model == nullptr) return true;  // messages hold calls of one model
      if (!is_hot_) backend_.begin_step();
      is_hot_ = true;
      make(header.call, *model, reader);
    }
    backend_.flush();
    return true;
  }

 private:
  void make(Call call, ModelRunner& model, MessageReader& reader) {
    if (call == Call::kForward) {
      const auto kind = reader.get<PassKind>();
      model.forward(get_batch(reader), kind);
    } else if (call == Call::kComputeLogits) {
      const auto level = reader.get<int>();
      const auto count = reader.get<size_t>();
      model.compute_logits(reader.get_all<int32_t>(count), level);
    } else if (call == Call::kComputeMarkovLogits) {
      model.compute_markov_logits(reader.get_all<int32_t>(reader.get<size_t>()));
    } else {
      slots_.resize(reader.get<size_t>());
      for (auto& [from, to] : slots_) {
        from = reader.get<int64_t>();
        to = reader.get<int64_t>();
      }
      model.move_kv(slots_);
    }
  }

  // Outcomes are the leader's to read; here they only end.
  static void wait_until_under_way(DeviceStep& step, int most) {
    while (step.num_under_way() > most) step.wait();
  }
  void make(Call call, DeviceStep& step, MessageReader& reader) {
    if (call == Call::kSetSeats) {
      wait_until_under_way(step, 0);
      step.set_seats(seats_.get_seats(reader));
    } else if (call == Call::kAddBlocks) {
      step.add_blocks(reader.get_all<NewBlock>(reader.get<size_t>()));
    } else if (call == Call::kDeactivate) {
      step.deactivate(reader.get_all<int>(reader.get<size_t>()));
    } else {
      const DeviceStepPlan plan = seats_.get_plan(reader);
      const bool is_alone = !plan.host_drafts.empty() || !plan.masks.empty();
      wait_until_under_way(step, is_alone ? 0 : 1);
      step.launch(plan);
    }
  }

  Backend& backend_;
  std::span<ModelRunner* const> models_;
  DeviceStep* device_step_;
  SeatMessages seats_;
  bool is_hot_ = false;
  std::vector<std::pair<int64_t, int64_t>> slots_;
};

}  // namespace

void RankCalls::send_to_stage(std::vector<std::byte>& message) {
  backend_.flush();
  if (coordinates_.ranks != nullptr) coordinates_.ranks->broadcast(message, kLeader);
  message.clear();
}

template <class Work>
void RankCalls::each_of_first_stage(Work&& work) {
  const int end = coordinates_.num_stages * coordinates_.stage_size();
  for (int rank = end - coordinates_.stage_size(); rank < end; ++rank) work(rank);
}

void RankCalls::post_to_first_stage() {
  each_of_first_stage([&](int rank) { coordinates_.stages->post(rank, for_earlier_); });
  for_earlier_.clear();
}

void RankCalls::begin_forward(const BatchView& batch) {
  MessageWriter writer(for_earlier_);
  writer.put(CallHeader{Call::kForward, kTarget});
  writer.put(PassKind{});
  put_batch(writer, batch);
  post_to_first_stage();
}

void RankCalls::forward(int model, const BatchView& batch, const PassKind& kind) {
  if (coordinates_.ranks == nullptr) return;
  MessageWriter writer(message_);
  writer.put(CallHeader{Call::kForward, model});
  writer.put(kind);
  put_batch(writer, batch);
  send_to_stage(message_);
}

void RankCalls::compute_logits(int model, std::span<const int32_t> row_ids, int level) {
  if (coordinates_.ranks == nullptr) return;
  MessageWriter writer(message_);
  writer.put(CallHeader{Call::kComputeLogits, model});
  writer.put(level);
  writer.put(row_ids.size());
  writer.put_all(row_ids);
  send_to_stage(message_);
}

void RankCalls::compute_markov_logits(int model, std::span<const int32_t> token_ids) {
  if (coordinates_.ranks == nullptr) return;
  MessageWriter writer(message_);
  writer.put(CallHeader{Call::kComputeMarkovLogits, model});
  writer.put(token_ids.size());
  writer.put_all(token_ids);
  send_to_stage(message_);
}

void RankCalls::move_kv(int model, std::span<const std::pair<int64_t, int64_t>> slots) {
  if (has_earlier_stages() && model == kTarget) {
    MessageWriter writer(for_earlier_);
    put_moves(writer, model, slots);
  }
  if (coordinates_.ranks == nullptr) return;
  MessageWriter writer(message_);
  put_moves(writer, model, slots);
  send_to_stage(message_);
}

void RankCalls::set_seats(std::span<const DeviceSeat> seats) {
  MessageWriter writer(message_);
  writer.put(CallHeader{Call::kSetSeats, kDeviceStep});
  put_seats(writer, seats);
}

void RankCalls::add_blocks(std::span<const NewBlock> blocks) {
  if (blocks.empty()) return;
  MessageWriter writer(message_);
  writer.put(CallHeader{Call::kAddBlocks, kDeviceStep});
  writer.put(blocks.size());
  writer.put_all(blocks);
}

void RankCalls::deactivate(std::span<const int> seats) {
  MessageWriter writer(message_);
  writer.put(CallHeader{Call::kDeactivate, kDeviceStep});
  writer.put(seats.size());
  writer.put_all(seats);
}

void RankCalls::launch_step(const DeviceStepPlan& plan) {
  MessageWriter writer(message_);
  writer.put(CallHeader{Call::kLaunchStep, kDeviceStep});
  put_plan(writer, plan);
  send_to_stage(message_);
}

void RankCalls::end_step() {
  MessageWriter(message_).put(CallHeader{Call::kEndStep, kTarget});
  send_to_stage(message_);
  if (!has_earlier_stages()) return;
  MessageWriter(for_earlier_).put(CallHeader{Call::kEndStep, kTarget});
  post_to_first_stage();
}

void RankCalls::stop() {
  MessageWriter(message_).put(CallHeader{Call::kStop, kTarget});
  send_to_stage(message_);
  if (!has_earlier_stages()) return;
  MessageWriter(for_earlier_).put(CallHeader{Call::kStop, kTarget});
  each_of_first_stage([&](int rank) { coordinates_.stages->send(rank, for_earlier_); });
}

void repeat_calls(const RankCoordinates& coordinates, Backend& backend,
                  std::span<ModelRunner* const> models, DeviceStep* device_step) {
  Repeater repeater(backend, models, device_step);
  std::vector<std::byte> message;
  do {
    if (coordinates.is_last()) {
      coordinates.ranks->broadcast(message, kLeader, Patience::kForever);
    } else {
      coordinates.stages->receive_any_size(
          coordinates.is_first() ? kLeader : coordinates.previous_rank, message,
          Patience::kForever);
      const bool hands_on = coordinates.stage + 2 < coordinates.num_stages;
      if (hands_on) coordinates.stages->send(coordinates.next_rank, message);
    }
  } while (repeater.repeat(message));
}

}  // namespace specdec
