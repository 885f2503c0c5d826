#include "runtime/rank_calls.h"

#include "core/byte_message.h"
#include "core/check.h"
#include "runtime/model_runner.h"

namespace specdec {
namespace {

constexpr int kLeader = 0;

enum class Call : int32_t { kForward, kComputeLogits, kMoveKv, kEndStep, kStop };

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
}

void put_batch(MessageWriter& writer, const BatchView& batch) {
  const BatchHeader header = {.num_requests = batch.num_requests,
                              .num_rows = batch.num_rows,
                              .max_blocks_per_request = batch.max_blocks_per_request,
                              .mask_words = batch.mask_words,
                              .has_trees = batch.is_tree != nullptr,
                              .has_masks = batch.ancestor_mask != nullptr,
                              .has_num_tree_slots = batch.num_tree_slots != nullptr,
                              .has_feature_slots = batch.feature_slots != nullptr,
                              .has_state_slots = batch.state_slots != nullptr};
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

}  // namespace

void RankCalls::send() { ranks_.broadcast(message_, kLeader); }

void RankCalls::forward(int model, const BatchView& batch, const PassKind& kind) {
  MessageWriter writer(message_);
  writer.put(CallHeader{Call::kForward, model});
  writer.put(kind);
  put_batch(writer, batch);
  send();
}

void RankCalls::compute_logits(int model, std::span<const int32_t> row_ids, int level) {
  MessageWriter writer(message_);
  writer.put(CallHeader{Call::kComputeLogits, model});
  writer.put(level);
  writer.put(row_ids.size());
  writer.put_all(row_ids);
  send();
}

void RankCalls::move_kv(int model, std::span<const std::pair<int64_t, int64_t>> slots) {
  MessageWriter writer(message_);
  writer.put(CallHeader{Call::kMoveKv, model});
  writer.put(slots.size());
  for (const auto& [from, to] : slots) {
    writer.put(from);
    writer.put(to);
  }
  send();
}

void RankCalls::end_step() {
  MessageWriter(message_).put(CallHeader{Call::kEndStep, 0});
  send();
}

void RankCalls::stop() {
  MessageWriter(message_).put(CallHeader{Call::kStop, 0});
  send();
}

void repeat_calls(Communicator& ranks, Backend& backend, std::span<ModelRunner* const> models) {
  std::vector<std::byte> message;
  std::vector<std::pair<int64_t, int64_t>> slots;
  bool is_hot = false;
  while (true) {
    ranks.broadcast(message, kLeader, Patience::kForever);
    MessageReader reader(message);
    const auto header = reader.get<CallHeader>();
    if (header.call == Call::kStop || header.call == Call::kEndStep) {
      if (is_hot) backend.end_step();
      is_hot = false;
      if (header.call == Call::kStop) return;
      continue;
    }
    SPECDEC_CHECK_LT(static_cast<size_t>(header.model), models.size());
    ModelRunner* const model = models[static_cast<size_t>(header.model)];
    if (model == nullptr) continue;
    if (!is_hot) backend.begin_step();
    is_hot = true;
    if (header.call == Call::kForward) {
      const auto kind = reader.get<PassKind>();
      model->repeat_forward(get_batch(reader), kind);
    } else if (header.call == Call::kComputeLogits) {
      const auto level = reader.get<int>();
      const auto count = reader.get<size_t>();
      model->repeat_logits(reader.get_all<int32_t>(count), level);
    } else {
      slots.resize(reader.get<size_t>());
      for (auto& [from, to] : slots) {
        from = reader.get<int64_t>();
        to = reader.get<int64_t>();
      }
      model->repeat_move_kv(slots);
    }
  }
}

}  // namespace specdec
