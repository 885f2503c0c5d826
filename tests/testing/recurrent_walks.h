// Batches of recurrent layers, and walks that compare bits however tokens come to a state.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "testing/oracle/operations.h"
#include "testing/oracle/recurrent.h"
#include "testing/recurrent_world.h"

namespace specdec::testing {

// Has a backend run a step's operations.
using RunStep = std::function<void(RecurrentStep& step)>;

inline std::vector<double> widened(const std::vector<uint8_t>& rows, DType of) {
  std::vector<double> values;
  for (size_t i = 0; i < rows.size() / size_of(of); ++i) {
    values.push_back(reference::element(rows.data(), of, static_cast<int64_t>(i)));
  }
  return values;
}

inline int draw(std::mt19937& random, int begin, int end) {
  return begin + static_cast<int>(random() % static_cast<uint32_t>(end - begin));
}
template <class T>
T choose(std::mt19937& random, std::initializer_list<T> of) {
  return of.begin()[draw(random, 0, static_cast<int>(of.size()))];
}

inline StateShape random_shape(std::mt19937& random) {
  StateShape shape;
  shape.conv_channels = choose(random, {1, 16, 40, 515, 1100});
  shape.conv_width = choose(random, {2, 3, 4});
  shape.num_key_heads = choose(random, {1, 2});
  shape.num_heads = shape.num_key_heads * choose(random, {1, 2, 3});
  shape.key_dim = choose(random, {16, 24, 128, 256});
  shape.value_dim = choose(random, {16, 24, 40, 128});
  return shape;
}

inline RecurrentVariant random_variant(std::mt19937& random) {
  const auto flag = [&] { return random() % 2 == 0; };
  return {.kind = flag() ? RecurrenceKind::kGatedDelta : RecurrenceKind::kStateSpace,
          .skip = flag(),
          .bias = flag(),
          .silu = flag(),
          .gates = flag()};
}

// Requests with a state or none, pending records, a chain of rows whose states may be stored, and
// draft rows below any of them. Each request has slots and records of its own.
enum : int { kSlotsOfRequest = 4, kRecordsOfRequest = 24 };
inline std::vector<RecurrentChunk> random_chunks(std::mt19937& random, int num_requests,
                                                 int num_inputs) {
  std::vector<RecurrentChunk> chunks;
  for (int request = 0; request < num_requests; ++request) {
    RecurrentChunk& chunk = chunks.emplace_back();
    const int first_slot = request * kSlotsOfRequest;
    const int first_record = request * kRecordsOfRequest;
    if (random() % 4 != 0) chunk.slot_in = first_slot;
    const int num_pending = choose(random, {0, 0, 1, 3, 11});
    for (int i = 0; i < num_pending; ++i) chunk.pending.push_back(first_record + i);
    std::shuffle(chunk.pending.begin(), chunk.pending.end(), random);
    const int num_chain = draw(random, 0, 8);
    for (int i = 0; i < num_chain; ++i) {
      chunk.rows.push_back({.input = draw(random, 0, num_inputs), .parent = i - 1});
    }
    const int num_drafts = choose(random, {0, 1, 3, 12});
    for (int i = 0; i < num_drafts; ++i) {
      const int row = num_chain + i;
      chunk.rows.push_back({.input = draw(random, 0, num_inputs),
                            .parent = draw(random, -1, row),
                            .record = first_record + num_pending + i});
    }
    const int num_tokens = num_pending + num_chain;
    const int slots[] = {first_slot + draw(random, 0, 2), first_slot + 2, first_slot + 3};
    int at = 1;
    for (const int slot : slots) {
      if (at > num_tokens || random() % 4 == 0) break;
      at = draw(random, at, num_tokens + 1);
      chunk.stores.push_back({at, slot});
    }
  }
  return chunks;
}

template <class Actual>
void expect_all_near(const Actual& actual, const std::vector<double>& expected, double tolerance,
                     const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  double scale = 1.0;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * scale) << what << " " << i;
  }
}

// What is made of a step: bits by what they are of.
using RecurrentBits = std::map<std::string, std::string>;
inline std::string bits_of(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}
inline void add_slot_bits(RecurrentBits& bits, const std::string& name, RecurrentStates& states,
                          int slot) {
  bits[name + " tail"] = bits_of(states.tail(slot));
  bits[name + " matrix"] = bits_of(states.matrix(slot));
}

// Decodes tokens [0, inputs.size()) of a sequence in chunks of the given sizes; the state after
// each of the tokens `stored` goes to a slot.
inline RecurrentBits decode_chunks(const RunStep& run, const RecurrentInputs& inputs,
                                   std::span<const int> tokens, std::span<const int> chunk_sizes,
                                   std::span<const int> stored) {
  const int num_stored = static_cast<int>(stored.size());
  RecurrentStates states(inputs.shape, 1 + num_stored, 0, 1);
  RecurrentBits bits;
  int begin = 0;
  for (const int size : chunk_sizes) {
    RecurrentChunk chunk = {.slot_in = begin == 0 ? -1 : 0};
    for (int i = 0; i < size; ++i)
      chunk.rows.push_back({.input = tokens[begin + i], .parent = i - 1});
    for (int i = 0; i < num_stored; ++i) {
      if (stored[i] > begin && stored[i] <= begin + size) {
        chunk.stores.push_back({stored[i] - begin, 1 + i});
      }
    }
    chunk.stores.push_back({size, 0});
    const std::vector<RecurrentChunk> chunks = {chunk};
    RecurrentStep step(inputs, states, chunks);
    run(step);
    for (int i = 0; i < size; ++i) bits["row " + std::to_string(begin + i)] = step.row_bits(i);
    begin += size;
  }
  for (int slot = 0; slot <= num_stored; ++slot) {
    add_slot_bits(bits, "slot " + std::to_string(slot), states, slot);
  }
  return bits;
}

inline void expect_batches_match_reference(const RunStep& run, DType act, uint32_t num_seeds) {
  for (uint32_t seed = 0; seed < num_seeds; ++seed) {
    std::mt19937 random(seed);
    const StateShape shape = random_shape(random);
    const RecurrentInputs inputs(shape, random_variant(random), 20, seed);
    const int num_requests = draw(random, 1, 4);
    RecurrentStates states(shape, num_requests * kSlotsOfRequest, num_requests * kRecordsOfRequest,
                           seed + 1);
    const DType conv_dtype = random() % 2 == 0 ? act : DType::kF32;
    RecurrentStep step(inputs, states, random_chunks(random, num_requests, 20), conv_dtype);
    const reference::ConvResult conv =
        reference::short_conv(step.conv_args(), states.num_slots, states.num_records);
    const reference::RecurrenceResult recurrence =
        reference::recurrence(step.recurrence_args(), states.num_slots, states.num_records);
    run(step);
    SCOPED_TRACE(seed);
    const double rounding = conv_dtype == DType::kF32 ? 0.0 : rounding_unit(conv_dtype);
    expect_all_near(widened(step.conv_out(), conv_dtype), conv.out, 2e-6 + rounding, "conv out");
    expect_all_near(states.tails, conv.tails, 1e-6, "tail");
    expect_all_near(states.conv_records, conv.conv_records, 1e-6, "conv record");
    expect_all_near(step.out(), recurrence.out, 4e-6, "out");
    expect_all_near(states.matrices, recurrence.matrices, 4e-6, "matrix");
    expect_all_near(states.records, recurrence.records, 4e-6, "record");
    if (::testing::Test::HasFatalFailure()) return;
  }
}

inline void expect_chunks_do_not_show(const RunStep& run, uint32_t num_seeds) {
  for (uint32_t seed = 0; seed < num_seeds; ++seed) {
    std::mt19937 random(seed);
    const RecurrentInputs inputs(random_shape(random), random_variant(random), 30, seed);
    std::vector<int> tokens(40);
    for (int& token : tokens) token = draw(random, 0, 30);
    const std::vector<int> stored = {1, 2, 16, 16, 37};
    const std::vector<int> whole = {40}, one_by_one(40, 1);
    const RecurrentBits expected = decode_chunks(run, inputs, tokens, one_by_one, stored);
    EXPECT_TRUE(decode_chunks(run, inputs, tokens, whole, stored) == expected) << seed;
    for (int repeat = 0; repeat < 4; ++repeat) {
      std::vector<int> sizes;
      for (int left = 40; left > 0; left -= sizes.back()) {
        sizes.push_back(draw(random, 1, std::min(left, 12) + 1));
      }
      EXPECT_TRUE(decode_chunks(run, inputs, tokens, sizes, stored) == expected) << seed;
    }
    tokens[3] = (tokens[3] + 1) % 30;
    EXPECT_FALSE(decode_chunks(run, inputs, tokens, whole, stored) == expected) << seed;
  }
}

// Each of `runs` gives the same bits; the last also runs requests one by one.
inline void expect_neighbours_do_not_show(std::span<const RunStep> runs, DType act,
                                          uint32_t num_seeds) {
  for (uint32_t seed = 0; seed < num_seeds; ++seed) {
    std::mt19937 random(seed);
    const StateShape shape = random_shape(random);
    const RecurrentInputs inputs(shape, random_variant(random), 20, seed);
    const int num_requests = draw(random, 2, 5);
    const std::vector<RecurrentChunk> chunks = random_chunks(random, num_requests, 20);
    const RecurrentStates before(shape, num_requests * kSlotsOfRequest,
                                 num_requests * kRecordsOfRequest, seed + 1);
    const auto rows_of = [&](const RunStep& run, std::span<const RecurrentChunk> of,
                             RecurrentStates& states) {
      RecurrentStep step(inputs, states, of, act);
      run(step);
      std::vector<std::string> rows;
      for (int row = 0; row < step.num_rows(); ++row) rows.push_back(step.row_bits(row));
      return rows;
    };
    const auto states_of = [](const RecurrentStates& states) {
      return bits_of(states.tails) + bits_of(states.matrices) + bits_of(states.conv_records) +
             bits_of(states.records);
    };
    RecurrentStates together = before, one_by_one = before;
    const std::vector<std::string> expected = rows_of(runs.front(), chunks, together);
    for (const RunStep& run : runs.subspan(1)) {
      RecurrentStates again = before;
      EXPECT_TRUE(rows_of(run, chunks, again) == expected) << seed;
      EXPECT_TRUE(states_of(again) == states_of(together)) << seed;
    }
    std::vector<std::string> alone;
    for (const RecurrentChunk& chunk : chunks) {
      const std::vector<RecurrentChunk> one = {chunk};
      for (std::string& row : rows_of(runs.back(), one, one_by_one))
        alone.push_back(std::move(row));
    }
    EXPECT_TRUE(alone == expected) << seed;
    EXPECT_TRUE(states_of(one_by_one) == states_of(together)) << seed;
  }
}

// What can go wrong between steps.
enum class RecurrentFault {
  kNone,
  kFoldsRejected,
  kDropsRecord,
  kSwapsRecords,
  kStaleState,
  kWrongParent
};

// Sequences that are drafted for with random trees, of which a random path is accepted. Beside it
// each row is decoded alone from the state after its parent, which has a slot of its own.
class DraftWalk {
 public:
  DraftWalk(RunStep run_step, const StateShape& shape, const RecurrentVariant& variant,
            RecurrentFault fault, uint32_t seed)
      : run_step_(std::move(run_step)),
        inputs_(shape, variant, kNumInputs, seed),
        states_(shape, 3 * kNumSequences, kNumSequences * kNumRecords, seed + 1),
        plain_(shape, kNumSequences * kPlainSlots, 0, seed + 2),
        fault_(fault),
        random_(seed) {}

  // Returns how many of the steps gave other bits than plain decoding.
  int run(int num_steps) {
    int num_different = 0;
    for (int i = 0; i < num_steps; ++i) num_different += step() ? 0 : 1;
    return num_different;
  }

 private:
  enum : int {
    kNumInputs = 50,
    kNumSequences = 3,
    kMaxDrafts = 9,
    kMaxChain = 5,
    kMaxWaiting = 12,  // records, before the state is stored
    kNumRecords = kMaxWaiting + kMaxChain + 2 * kMaxDrafts,
    kPlainSlots = 1 + kMaxChain + kMaxDrafts,  // of the committed tokens, and of each row
  };
  struct Sequence {
    bool has_tokens = false;
    bool has_state = false;
    int slot = 0;  // of three
    std::vector<int32_t> pending;
    std::vector<int32_t> rejected;  // records of the last step
  };

  bool step() {
    std::vector<RecurrentChunk> chunks;
    for (int s = 0; s < kNumSequences; ++s) chunks.push_back(next_chunk(s));
    RecurrentStep step(inputs_, states_, chunks);
    run_step_(step);
    bool is_equal = true;
    int first_row = 0;
    for (int s = 0; s < kNumSequences; ++s) {
      is_equal = check(s, chunks[s], step, first_row) && is_equal;
      first_row += static_cast<int>(chunks[s].rows.size());
      accept(s);
    }
    return is_equal;
  }

  // Some rows that stay and drafts below the last of them. The state after the former is stored, or
  // they leave records, too.
  RecurrentChunk next_chunk(int s) {
    Sequence& sequence = sequences_[s];
    RecurrentChunk chunk = {.slot_in = sequence.has_state ? 3 * s + sequence.slot : -1,
                            .pending = sequence.pending};
    num_chain_[s] = draw(random_, 0, 3) == 0 ? draw(random_, 1, kMaxChain + 1) : 1;
    const int num_drafts = draw(random_, 0, kMaxDrafts + 1);
    const auto num_pending = static_cast<int>(sequence.pending.size());
    const bool stores =
        num_pending + num_chain_[s] + num_drafts > kMaxWaiting || draw(random_, 0, 4) != 0;
    std::vector<int32_t> free = free_records(s);
    for (int i = 0; i < num_chain_[s] + num_drafts; ++i) {
      const bool is_draft = i >= num_chain_[s];
      RecurrentRow row = {.input = draw(random_, 0, kNumInputs), .parent = i - 1};
      if (is_draft) row.parent = draw(random_, num_chain_[s] - 1, i);
      if (is_draft || !stores) {
        row.record = free.back();
        free.pop_back();
      }
      chunk.rows.push_back(row);
    }
    new_slot_[s] = -1;
    if (stores) {
      new_slot_[s] = draw(random_, 0, 3);
      chunk.stores = {{num_pending + num_chain_[s], 3 * s + new_slot_[s]}};
    }
    true_rows_[s] = chunk.rows;
    if (draw(random_, 0, 8) == 0) plant(s, chunk);
    return chunk;
  }

  void plant(int s, RecurrentChunk& chunk) {
    const std::vector<int32_t>& rejected = sequences_[s].rejected;
    if (fault_ == RecurrentFault::kFoldsRejected && !chunk.pending.empty() && !rejected.empty()) {
      chunk.pending.back() = rejected.front();
    }
    if (fault_ == RecurrentFault::kDropsRecord && !chunk.pending.empty() && chunk.stores.empty()) {
      chunk.pending.pop_back();
    }
    if (fault_ == RecurrentFault::kSwapsRecords && chunk.pending.size() > 1) {
      std::swap(chunk.pending[0], chunk.pending[1]);
    }
    if (fault_ == RecurrentFault::kStaleState && chunk.slot_in >= 0) {
      chunk.slot_in = 3 * s + (chunk.slot_in + 1) % 3;
    }
    if (fault_ == RecurrentFault::kWrongParent && chunk.rows.back().parent > num_chain_[s] - 1) {
      --chunk.rows.back().parent;
    }
  }

  // Records of the sequence that are not pending, in random order.
  std::vector<int32_t> free_records(int s) {
    std::vector<int32_t> free;
    for (int32_t record = s * kNumRecords; record < (s + 1) * kNumRecords; ++record) {
      const std::vector<int32_t>& pending = sequences_[s].pending;
      if (std::ranges::find(pending, record) == pending.end()) free.push_back(record);
    }
    std::shuffle(free.begin(), free.end(), random_);
    return free;
  }

  bool check(int s, const RecurrentChunk& chunk, const RecurrentStep& step, int first_row) {
    bool is_equal = true;
    const int first_slot = s * kPlainSlots;
    for (size_t i = 0; i < chunk.rows.size(); ++i) {
      const RecurrentRow& row = true_rows_[s][i];
      const int to = first_slot + 1 + static_cast<int>(i);
      const int from = first_slot + 1 + row.parent;
      const bool is_first = row.parent < 0 && !sequences_[s].has_tokens;
      const std::vector<RecurrentChunk> one = {
          {.slot_in = is_first ? -1 : from, .stores = {{1, to}}, .rows = {{.input = row.input}}}};
      RecurrentStep plain(inputs_, plain_, one);
      run_step_(plain);
      is_equal = is_equal && plain.row_bits(0) == step.row_bits(first_row + static_cast<int>(i));
    }
    if (new_slot_[s] < 0) return is_equal;
    const int stored = 3 * s + new_slot_[s], expected = first_slot + num_chain_[s];
    return is_equal && std::ranges::equal(states_.tail(stored), plain_.tail(expected)) &&
           std::ranges::equal(states_.matrix(stored), plain_.matrix(expected));
  }

  void accept(int s) {
    Sequence& sequence = sequences_[s];
    const std::vector<RecurrentRow>& rows = true_rows_[s];
    // A path from the last row that stays.
    int last = num_chain_[s] - 1;
    std::vector<int> path;
    for (int i = last + 1; i < static_cast<int>(rows.size()); ++i) {
      if (rows[i].parent == last && draw(random_, 0, 3) != 0) path.push_back(last = i);
    }
    if (new_slot_[s] >= 0) {
      sequence.pending.clear();
      sequence.slot = new_slot_[s];
      sequence.has_state = true;
    } else {
      for (int i = 0; i < num_chain_[s]; ++i) sequence.pending.push_back(rows[i].record);
    }
    sequence.has_tokens = true;
    sequence.rejected.clear();
    for (int i = num_chain_[s]; i < static_cast<int>(rows.size()); ++i) {
      const bool is_accepted = std::ranges::find(path, i) != path.end();
      (is_accepted ? sequence.pending : sequence.rejected).push_back(rows[i].record);
    }
    plain_.copy_slot(s * kPlainSlots + 1 + last, s * kPlainSlots);
  }

  RunStep run_step_;
  RecurrentInputs inputs_;
  RecurrentStates states_, plain_;
  RecurrentFault fault_;
  std::mt19937 random_;
  Sequence sequences_[kNumSequences];
  // Of the step.
  int num_chain_[kNumSequences] = {};
  int new_slot_[kNumSequences] = {};
  std::vector<RecurrentRow> true_rows_[kNumSequences];
};

inline constexpr StateShape kWalkShape = {.conv_channels = 40,
                                          .conv_width = 4,
                                          .num_key_heads = 2,
                                          .num_heads = 4,
                                          .key_dim = 16,
                                          .value_dim = 40};

}  // namespace specdec::testing
