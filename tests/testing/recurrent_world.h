// Weights, states and batches of a recurrent layer for tests, in host memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/op_args.h"
#include "testing/values.h"

namespace specdec::testing {

// A row: what goes into it, its parent among the rows of its request, and its record.
struct RecurrentRow {
  int input = 0;  // index of RecurrentInputs
  int parent = -1;
  int record = -1;
};

// A request of a batch: see RecurrentRows.
struct RecurrentChunk {
  int slot_in = -1;
  std::vector<int32_t> pending = {};
  std::vector<StateStore> stores = {};
  std::vector<RecurrentRow> rows = {};
};

class RecurrentBatch {
 public:
  explicit RecurrentBatch(std::span<const RecurrentChunk> chunks) {
    for (const RecurrentChunk& chunk : chunks) {
      slots_in_.push_back(chunk.slot_in);
      pending_.insert(pending_.end(), chunk.pending.begin(), chunk.pending.end());
      stores_.insert(stores_.end(), chunk.stores.begin(), chunk.stores.end());
      for (const RecurrentRow& row : chunk.rows) {
        parents_.push_back(row.parent);
        records_.push_back(row.record);
        inputs_.push_back(row.input);
      }
      cu_pending_.push_back(static_cast<int32_t>(pending_.size()));
      cu_stores_.push_back(static_cast<int32_t>(stores_.size()));
      cu_rows_.push_back(static_cast<int32_t>(inputs_.size()));
    }
  }
  RecurrentBatch(const RecurrentBatch&) = delete;

  const std::vector<int>& inputs() const { return inputs_; }  // by row
  int num_rows() const { return static_cast<int>(inputs_.size()); }
  BatchView view() const {
    return {.num_requests = static_cast<int>(slots_in_.size()),
            .num_rows = num_rows(),
            .cu_rows = cu_rows_.data(),
            .recurrent = {.slots_in = slots_in_.data(),
                          .cu_pending = cu_pending_.data(),
                          .pending = pending_.data(),
                          .cu_stores = cu_stores_.data(),
                          .stores = stores_.data(),
                          .parents = parents_.data(),
                          .records = records_.data()}};
  }

 private:
  std::vector<int32_t> slots_in_, pending_, parents_, records_;
  std::vector<int32_t> cu_pending_ = {0}, cu_stores_ = {0}, cu_rows_ = {0};
  std::vector<StateStore> stores_;
  std::vector<int> inputs_;
};

// What varies between families.
struct RecurrentVariant {
  RecurrenceKind kind = RecurrenceKind::kGatedDelta;
  bool skip = false;
  bool bias = false;   // of the convolution
  bool silu = true;    // likewise
  bool gates = false;  // likewise, of inputs and outputs
};

// Slots and records of one layer.
struct RecurrentStates {
  StateShape shape;
  int num_slots;
  int num_records;
  std::vector<float> tails, matrices, conv_records, records;

  RecurrentStates(const StateShape& shape, int num_slots, int num_records, uint32_t seed)
      : shape(shape), num_slots(num_slots), num_records(num_records) {
    std::mt19937 random(seed);
    tails = random_values(random, num_slots * shape.tail_size());
    matrices = random_values(random, num_slots * shape.matrix_size(), 0.3f);
    conv_records = random_values(random, int64_t{num_records} * shape.conv_channels);
    records = random_values(random, num_records * shape.record_size(), 0.3f);
    // Decays are in (0, 1].
    for (int i = 1; i <= num_records; ++i) {
      for (int h = 1; h <= shape.num_heads; ++h) {
        float& decay = records[i * shape.record_size() - h];
        decay = 1.0f / (1.0f + decay * decay);
      }
    }
  }
  LayerStateView view() {
    return {.shape = shape,
            .tails = tails.data(),
            .matrices = matrices.data(),
            .conv_records = conv_records.data(),
            .records = records.data()};
  }
  std::span<float> tail(int slot) { return part(tails, slot, shape.tail_size()); }
  std::span<float> matrix(int slot) { return part(matrices, slot, shape.matrix_size()); }
  void copy_slot(int from, int to) {
    std::ranges::copy(tail(from), tail(to).begin());
    std::ranges::copy(matrix(from), matrix(to).begin());
  }

 private:
  static std::span<float> part(std::vector<float>& of, int index, int64_t size) {
    return std::span(of).subspan(index * size, size);
  }
};

// Weights, and the inputs of rows. Between the values that an operation reads of a row are others.
struct RecurrentInputs {
  StateShape shape;
  RecurrentVariant variant;
  int64_t conv_stride, stride, step_stride;
  std::vector<float> conv, rows, steps;  // of all inputs
  std::vector<float> conv_weight, conv_bias, decay_rates, step_bias, skip;

  RecurrentInputs(const StateShape& shape, const RecurrentVariant& variant, int num_inputs,
                  uint32_t seed)
      : shape(shape),
        variant(variant),
        conv_stride(3 * shape.conv_channels + 5),
        stride(2 * shape.key_size() + shape.value_size() + 3),
        step_stride(2 * shape.num_heads + 1) {
    std::mt19937 random(seed);
    conv = random_values(random, num_inputs * conv_stride);
    rows = random_values(random, num_inputs * stride);
    steps = random_values(random, num_inputs * step_stride, 2.0f);
    conv_weight = random_values(random, int64_t{shape.conv_channels} * shape.conv_width, 0.5f);
    conv_bias = random_values(random, shape.conv_channels);
    decay_rates = random_values(random, shape.num_heads);
    for (float& rate : decay_rates) rate = -0.05f - rate * rate;
    step_bias = random_values(random, shape.num_heads);
    skip = random_values(random, shape.num_heads);
  }
};

// Copies of the inputs of a batch's rows, which operations may change, and room for results.
class RecurrentStep {
 public:
  RecurrentStep(const RecurrentInputs& inputs, RecurrentStates& states,
                std::span<const RecurrentChunk> chunks, DType conv_dtype = DType::kF32)
      : inputs_(inputs), states_(states), batch_(chunks), view_(batch_.view()), dtype_(conv_dtype) {
    for (const int input : batch_.inputs()) {
      const auto append = [&](std::vector<float>& to, const std::vector<float>& from,
                              int64_t size) {
        to.insert(to.end(), from.begin() + input * size, from.begin() + (input + 1) * size);
      };
      append(conv_, inputs.conv, inputs.conv_stride);
      append(rows_, inputs.rows, inputs.stride);
      append(steps_, inputs.steps, inputs.step_stride);
    }
    conv_out_.resize(batch_.num_rows() * conv_row_bytes(), 0x7f);
    out_.resize(batch_.num_rows() * states.shape.value_size(), NAN);
  }
  RecurrentStep(const RecurrentStep&) = delete;

  ShortConvArgs conv_args() {
    const int64_t channels = states_.shape.conv_channels;
    const RecurrentVariant& variant = inputs_.variant;
    return {.x = conv_.data() + 2 * channels,
            .input_gates = variant.gates ? conv_.data() : nullptr,
            .output_gates = variant.gates ? conv_.data() + channels : nullptr,
            .stride = inputs_.conv_stride,
            .weight = inputs_.conv_weight.data(),
            .bias = variant.bias ? inputs_.conv_bias.data() : nullptr,
            .silu = variant.silu,
            .batch = &view_,
            .state = states_.view(),
            .out = conv_out_.data(),
            .out_dtype = dtype_};
  }
  RecurrenceArgs recurrence_args() {
    const StateShape& shape = states_.shape;
    const bool is_delta = inputs_.variant.kind == RecurrenceKind::kGatedDelta;
    return {.kind = inputs_.variant.kind,
            .queries = rows_.data() + shape.key_size(),
            .keys = rows_.data(),
            .values = rows_.data() + 2 * shape.key_size(),
            .stride = inputs_.stride,
            .gates = is_delta ? steps_.data() + shape.num_heads : nullptr,
            .steps = steps_.data(),
            .step_stride = inputs_.step_stride,
            .decay_rates = inputs_.decay_rates.data(),
            .step_bias = inputs_.step_bias.data(),
            .skip = inputs_.variant.skip ? inputs_.skip.data() : nullptr,
            .batch = &view_,
            .state = states_.view(),
            .out = out_.data()};
  }
  void run(Backend& backend) {
    backend.short_conv(conv_args());
    backend.recurrence(recurrence_args());
  }

  int num_rows() const { return batch_.num_rows(); }
  RecurrentStates& states() { return states_; }
  const std::vector<uint8_t>& conv_out() const { return conv_out_; }
  const std::vector<float>& out() const { return out_; }
  // The bytes of both results of a row.
  std::string row_bits(int row) const {
    const auto size = static_cast<size_t>(states_.shape.value_size());
    std::string bits(reinterpret_cast<const char*>(out_.data() + row * size), size * sizeof(float));
    return bits.append(reinterpret_cast<const char*>(conv_out_.data()) + row * conv_row_bytes(),
                       conv_row_bytes());
  }

 private:
  size_t conv_row_bytes() const { return states_.shape.conv_channels * size_of(dtype_); }

  const RecurrentInputs& inputs_;
  RecurrentStates& states_;
  RecurrentBatch batch_;
  BatchView view_;
  DType dtype_;
  std::vector<float> conv_, rows_, steps_, out_;
  std::vector<uint8_t> conv_out_;
};

}  // namespace specdec::testing
