#include "testing/oracle/recurrent.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace specdec::reference {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

using Values = std::vector<double>;
using Span = std::span<const double>;

Values widened(const float* values, int64_t count) { return {values, values + count}; }
void write(Span values, Values& to, int64_t at) { std::ranges::copy(values, to.begin() + at); }

// The states of a request's pending records and rows. `next` continues a state by a record or row.
// Calls store(state, slot).
template <class State, class NextByRecord, class NextByRow, class Store>
void walk(const BatchView& batch, int request, State state, const NextByRecord& next_by_record,
          const NextByRow& next_by_row, const Store& store) {
  const RecurrentRows& rows = batch.recurrent;
  int num_tokens = 0;
  const auto store_after = [&](const State& after) {
    ++num_tokens;
    for (int s = rows.cu_stores[request]; s < rows.cu_stores[request + 1]; ++s) {
      if (rows.stores[s].num_tokens == num_tokens) store(after, rows.stores[s].slot);
    }
  };
  for (int i = rows.cu_pending[request]; i < rows.cu_pending[request + 1]; ++i) {
    state = next_by_record(state, rows.pending[i]);
    store_after(state);
  }
  std::vector<State> after;
  for (int row = batch.cu_rows[request]; row < batch.cu_rows[request + 1]; ++row) {
    const int parent = rows.parents[row];
    after.push_back(next_by_row(parent < 0 ? state : after[parent], row));
    store_after(after.back());
  }
}

}  // namespace

ConvResult short_conv(const ShortConvArgs& args, int num_slots, int num_records) {
  const StateShape& shape = args.state.shape;
  const int channels = shape.conv_channels, width = shape.conv_width;
  const BatchView& batch = *args.batch;
  ConvResult result = {
      .out = Values(int64_t{batch.num_rows} * channels),
      .tails = widened(args.state.tails, num_slots * shape.tail_size()),
      .conv_records = widened(args.state.conv_records, int64_t{num_records} * channels)};
  // A state is the last `width` inputs of each channel; those of the state in lack the first.
  const ConvResult before = result;
  const auto pushed = [&](Values state, Span input) {
    state.erase(state.begin(), state.begin() + channels);
    state.insert(state.end(), input.begin(), input.end());
    return state;
  };
  for (int request = 0; request < batch.num_requests; ++request) {
    const int slot = batch.recurrent.slots_in[request];
    Values first(static_cast<size_t>(width) * channels);
    if (slot >= 0) {
      write(Span(before.tails).subspan(slot * shape.tail_size(), shape.tail_size()), first,
            channels);
    }
    const auto next_by_record = [&](const Values& state, int record) {
      return pushed(state, Span(before.conv_records).subspan(int64_t{record} * channels, channels));
    };
    const auto next_by_row = [&](const Values& state, int row) {
      Values input(channels);
      for (int c = 0; c < channels; ++c) {
        const int64_t at = row * args.stride + c;
        input[c] = args.x[at] * (args.input_gates != nullptr ? double{args.input_gates[at]} : 1.0);
      }
      Values after = pushed(state, input);
      for (int c = 0; c < channels; ++c) {
        double sum = args.bias != nullptr ? args.bias[c] : 0.0;
        for (int i = 0; i < width; ++i) {
          sum += double{args.weight[c * width + i]} * after[i * channels + c];
        }
        if (args.silu) sum *= sigmoid(sum);
        if (args.output_gates != nullptr) sum *= args.output_gates[row * args.stride + c];
        result.out[int64_t{row} * channels + c] = sum;
      }
      const int record = batch.recurrent.records[row];
      if (record >= 0) write(input, result.conv_records, int64_t{record} * channels);
      return after;
    };
    walk(batch, request, first, next_by_record, next_by_row, [&](const Values& state, int to) {
      write(Span(state).subspan(channels), result.tails, to * shape.tail_size());
    });
  }
  return result;
}

RecurrenceResult recurrence(const RecurrenceArgs& args, int num_slots, int num_records) {
  const StateShape& shape = args.state.shape;
  const BatchView& batch = *args.batch;
  const bool is_delta = args.kind == RecurrenceKind::kGatedDelta;
  const int heads_per_key = shape.num_heads / shape.num_key_heads;
  const int64_t num_values = shape.value_size();
  RecurrenceResult result = {
      .out = Values(batch.num_rows * num_values),
      .matrices = widened(args.state.matrices, num_slots * shape.matrix_size()),
      .records = widened(args.state.records, num_records * shape.record_size())};
  const RecurrenceResult before = result;

  // A record has keys, updates and decays.
  const auto updated = [&](Values state, Span record) {
    const Span updates = record.subspan(shape.key_size());
    const Span decays = updates.subspan(num_values);
    for (int head = 0; head < shape.num_heads; ++head) {
      for (int k = 0; k < shape.key_dim; ++k) {
        const double key = record[head / heads_per_key * shape.key_dim + k];
        for (int v = 0; v < shape.value_dim; ++v) {
          double& s = state[(int64_t{head} * shape.key_dim + k) * shape.value_dim + v];
          s = decays[head] * s + key * updates[head * shape.value_dim + v];
        }
      }
    }
    return state;
  };
  const auto normalized = [&](const float* x, double scale) {
    Values values = widened(x, shape.key_dim);
    if (!is_delta) return values;
    double sum = 1e-6;
    for (const double value : values) sum += value * value;
    for (double& value : values) value *= scale / std::sqrt(sum);
    return values;
  };

  for (int request = 0; request < batch.num_requests; ++request) {
    const int slot = batch.recurrent.slots_in[request];
    Values first(shape.matrix_size());
    if (slot >= 0) {
      write(Span(before.matrices).subspan(slot * shape.matrix_size(), shape.matrix_size()), first,
            0);
    }
    const auto next_by_record = [&](const Values& state, int record) {
      return updated(
          state, Span(before.records).subspan(record * shape.record_size(), shape.record_size()));
    };
    const auto next_by_row = [&](const Values& state, int row) {
      Values record(shape.record_size());
      for (int head = 0; head < shape.num_heads; ++head) {
        const int key_head = head / heads_per_key;
        const int64_t keys_at = row * args.stride + int64_t{key_head} * shape.key_dim;
        const Values query = normalized(args.queries + keys_at, 1.0 / std::sqrt(shape.key_dim));
        const Values key = normalized(args.keys + keys_at, 1.0);
        const double step =
            softplus(double{args.steps[row * args.step_stride + head]} + args.step_bias[head]);
        const double decay = std::exp(args.decay_rates[head] * step);
        write(key, record, int64_t{key_head} * shape.key_dim);
        record[shape.key_size() + num_values + head] = decay;
        for (int v = 0; v < shape.value_dim; ++v) {
          const int64_t at = int64_t{head} * shape.value_dim + v;
          const double value = args.values[row * args.stride + at];
          double by_key = 0.0, by_query = 0.0, dot = 0.0;
          for (int k = 0; k < shape.key_dim; ++k) {
            const double s = state[(int64_t{head} * shape.key_dim + k) * shape.value_dim + v];
            by_key += s * key[k];
            by_query += s * query[k];
            dot += key[k] * query[k];
          }
          const double update = is_delta ? sigmoid(args.gates[row * args.step_stride + head]) *
                                               (value - decay * by_key)
                                         : step * value;
          record[shape.key_size() + at] = update;
          result.out[row * num_values + at] =
              decay * by_query + dot * update +
              (args.skip != nullptr ? args.skip[head] * value : 0.0);
        }
      }
      const int to = batch.recurrent.records[row];
      if (to >= 0) write(record, result.records, to * shape.record_size());
      return updated(state, record);
    };
    walk(batch, request, first, next_by_record, next_by_row, [&](const Values& state, int to) {
      write(state, result.matrices, to * shape.matrix_size());
    });
  }
  return result;
}

std::vector<double> gated_norm(const GatedNormArgs& args) {
  Values out;
  for (int64_t i = 0; i < int64_t{args.num_rows} * args.num_groups; ++i) {
    const int64_t row = i / args.num_groups, group = i % args.num_groups;
    const float* gates = args.gates + row * args.gate_stride + group * args.dim;
    Values x = widened(args.x + i * args.dim, args.dim);
    const auto apply_gates = [&] {
      for (int j = 0; j < args.dim; ++j) x[j] *= gates[j] * sigmoid(gates[j]);
    };
    if (args.gates_first) apply_gates();
    double sum = 0.0;
    for (const double value : x) sum += value * value;
    const double scale = 1.0 / std::sqrt(sum / args.dim + args.eps);
    for (int j = 0; j < args.dim; ++j) x[j] *= scale * args.weight[group * args.dim + j];
    if (!args.gates_first) apply_gates();
    out.insert(out.end(), x.begin(), x.end());
  }
  return out;
}

}  // namespace specdec::reference
