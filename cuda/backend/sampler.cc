#include "cuda/backend/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "cuda/backend/cuda_backend.h"

namespace specdec::cuda {
namespace {

constexpr size_t kAlignment = 16;
// The kernels add weights of at most 2^44 per token in 64 bits.
constexpr int kMaxVocabSize = 1 << 19;

// Lays out arrays one after another in one piece of memory.
class Layout {
 public:
  template <class T>
  size_t add(size_t count) {
    const size_t offset = size_;
    size_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
  size_t size_bytes() const { return size_; }

 private:
  size_t size_ = 0;
};

struct OutputLayout {
  OutputLayout(size_t rows, int max_candidates, int max_logprobs)
      : token_ids(layout.add<int32_t>(rows)),
        num_candidates(layout.add<int32_t>(rows)),
        num_logprobs(layout.add<int32_t>(rows)),
        states(layout.add<SampleState>(rows)),
        candidates(layout.add<DeviceCandidate>(rows * max_candidates)),
        logprobs(layout.add<DeviceLogprob>(rows * (max_logprobs + 1))) {}

  Layout layout;
  size_t token_ids, num_candidates, num_logprobs, states, candidates, logprobs;
};

SampleOutputs outputs_at(char* memory, const OutputLayout& at, int max_candidates,
                         int max_logprobs) {
  return {.token_ids = reinterpret_cast<int32_t*>(memory + at.token_ids),
          .num_candidates = reinterpret_cast<int32_t*>(memory + at.num_candidates),
          .candidates = reinterpret_cast<DeviceCandidate*>(memory + at.candidates),
          .max_candidates = max_candidates,
          .num_logprobs = reinterpret_cast<int32_t*>(memory + at.num_logprobs),
          .logprobs = reinterpret_cast<DeviceLogprob*>(memory + at.logprobs),
          .max_logprobs = max_logprobs};
}

bool is_long_report(const SampleRow& row) {
  return row.want_logprobs && (row.num_logprobs < 0 || row.num_logprobs > kMaxListed);
}

bool is_edited(const SampleRow& row) {
  return !row.allowed_token_ids.empty() || !row.banned_token_ids.empty() || !row.counts.empty() ||
         !row.logit_bias.empty() || !row.allowed_mask.empty() || row.given_logits != nullptr;
}

void check_tokens(const SampleRow& row, int vocab_size) {
  const auto check = [vocab_size](int32_t token) {
    SPECDEC_CHECK(token >= 0 && token < vocab_size);
  };
  SPECDEC_CHECK_LT(row.forced_token, vocab_size);
  std::ranges::for_each(row.allowed_token_ids, check);
  std::ranges::for_each(row.banned_token_ids, check);
  for (const TokenCount& count : row.counts) check(count.token_id);
  for (const auto& [token, bias] : row.logit_bias) check(token);
}

// Appends the greatest logits, ties by id: they follow the chosen token in a long list of logprobs.
void append_greatest(std::span<const float> logits, double log_total, int num_top,
                     PositionLogprobs* out) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const size_t count =
      num_top < 0 ? logits.size() : std::min(static_cast<size_t>(num_top), logits.size());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(
      order.begin(), order.begin() + static_cast<int64_t>(count), order.end(),
      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  for (size_t i = 0; i < count; ++i) {
    const float logit = logits[order[i]];
    const float logprob = logit == -kInfinity ? logit : static_cast<float>(logit - log_total);
    out->push_back({order[i], logprob, static_cast<int>(i) + 1});
  }
}

}  // namespace

void DeviceSampler::Request::clear() {
  rows.clear();
  lists.clear();
  max_candidates = 0;
  max_logprobs = 0;
  num_vectors = 0;
  keeps_raw = false;
}

DeviceSampler::DeviceSampler(Device& device, Stream& stream, const SamplingKernels& kernels)
    : device_(device), stream_(stream), kernels_(kernels) {}

void DeviceSampler::sample(const SampleArgs& args) {
  SPECDEC_CHECK(args.vocab_size > 0 && args.vocab_size <= kMaxVocabSize);
  SPECDEC_CHECK_EQ(args.rows.size(), args.results.size());
  SPECDEC_CHECK(!stream_.is_capturing());
  if (args.rows.empty()) return;
  if (args.token_ids != nullptr) return sample(spread(args));
  pack(args);
  point_to_vectors(args);
  const SampleRowsParams params = upload(args);
  kernels_.sample(stream_, params);
  download(args, params);
}

SampleArgs DeviceSampler::spread(const SampleArgs& args) {
  SPECDEC_CHECK_GT(args.target_vocab_size, 0);
  const size_t size_bytes =
      args.rows.size() * static_cast<size_t>(args.target_vocab_size) * sizeof(float);
  if (spread_logits_.size_bytes() < size_bytes) {
    spread_logits_ = {};
    spread_logits_ = device_.allocate(size_bytes, "logits over the target's vocabulary");
  }
  kernels_.spread(stream_, {.logits = args.logits,
                            .token_ids = args.token_ids,
                            .out = spread_logits_.as<float>(),
                            .num_rows = static_cast<int>(args.rows.size()),
                            .vocab_size = args.vocab_size,
                            .target_vocab_size = args.target_vocab_size});
  SampleArgs result = args;
  result.logits = spread_logits_.as<float>();
  result.vocab_size = args.target_vocab_size;
  result.token_ids = nullptr;
  return result;
}

void DeviceSampler::pack(const SampleArgs& args) {
  request_.clear();
  for (const SampleRow& row : args.rows) {
    check_tokens(row, args.vocab_size);
    request_.rows.push_back(request_.lists.add(row));
    request_.keeps_raw |= is_edited(row) && row.want_logprobs && is_raw(args.logprobs_mode);
    const int num_candidates = std::min(row.num_candidates, args.vocab_size);
    SPECDEC_CHECK_LE(num_candidates, kMaxListed);
    request_.max_candidates = std::max(request_.max_candidates, num_candidates);
    if (row.want_logprobs && !is_long_report(row)) {
      request_.max_logprobs = std::max(request_.max_logprobs, row.num_logprobs);
    }
  }
}

void DeviceSampler::point_to_vectors(const SampleArgs& args) {
  const auto size = static_cast<size_t>(args.vocab_size);
  for (const SampleRow& row : args.rows) {
    request_.num_vectors += (row.distribution != nullptr) + is_long_report(row);
  }
  const size_t size_bytes = static_cast<size_t>(request_.num_vectors) * size * sizeof(float);
  if (vectors_.size_bytes() < size_bytes) {
    vectors_ = {};
    vectors_ = device_.allocate(size_bytes, "distributions");
  }
  float* next = vectors_.as<float>();
  for (size_t i = 0; i < args.rows.size(); ++i) {
    if (args.rows[i].distribution != nullptr) {
      request_.rows[i].distribution = next;
      next += size;
    }
    if (is_long_report(args.rows[i])) {
      request_.rows[i].reported_logits = next;
      next += size;
    }
  }
}

SampleRowsParams DeviceSampler::upload(const SampleArgs& args) {
  const auto grow = [&](Buffer& buffer, size_t size_bytes, bool is_pinned, const char* purpose) {
    if (buffer.size_bytes() >= size_bytes) return;
    buffer = {};
    buffer = is_pinned ? device_.allocate_pinned(size_bytes, purpose)
                       : device_.allocate(size_bytes, purpose);
  };
  const size_t num_rows = args.rows.size();
  Layout layout;
  const size_t rows_at = layout.add<DeviceSampleRow>(num_rows);
  const size_t lists_at = layout.add<int32_t>(request_.lists.tokens().size());
  const size_t counts_at = layout.add<DeviceTokenCount>(request_.lists.counts().size());
  const size_t biases_at = layout.add<DeviceLogitBias>(request_.lists.biases().size());
  std::vector<size_t> given_at(num_rows);
  std::vector<size_t> mask_at(num_rows);
  for (size_t i = 0; i < num_rows; ++i) {
    if (args.rows[i].given_logits != nullptr) given_at[i] = layout.add<float>(args.vocab_size);
    mask_at[i] = layout.add<uint32_t>(args.rows[i].allowed_mask.size());
  }
  grow(pinned_in_, layout.size_bytes(), true, "sampling parameters");
  grow(device_in_, layout.size_bytes(), false, "sampling parameters");
  const auto write = [&](size_t offset, const auto& values) {
    if (values.empty()) return;
    std::memcpy(pinned_in_.as<char>() + offset, values.data(), values.size() * sizeof(values[0]));
  };
  for (size_t i = 0; i < num_rows; ++i) {
    if (const std::span<const uint32_t> mask = args.rows[i].allowed_mask; !mask.empty()) {
      write(mask_at[i], mask);
      request_.rows[i].allowed_mask =
          reinterpret_cast<const uint32_t*>(device_in_.as<char>() + mask_at[i]);
      request_.rows[i].num_mask_words = static_cast<int32_t>(mask.size());
    }
    const float* given = args.rows[i].given_logits;
    if (given == nullptr) continue;
    write(given_at[i], std::span(given, static_cast<size_t>(args.vocab_size)));
    request_.rows[i].given_logits =
        reinterpret_cast<const float*>(device_in_.as<char>() + given_at[i]);
  }
  write(rows_at, request_.rows);
  write(lists_at, request_.lists.tokens());
  write(counts_at, request_.lists.counts());
  write(biases_at, request_.lists.biases());
  stream_.copy_to_device(device_in_.data(), pinned_in_.data(), layout.size_bytes());

  const OutputLayout out(num_rows, request_.max_candidates, request_.max_logprobs);
  grow(pinned_out_, out.layout.size_bytes(), true, "sampling results");
  grow(device_out_, out.layout.size_bytes(), false, "sampling results");
  const int rows = static_cast<int>(num_rows);
  grow(workspace_, sample_workspace_bytes(rows, args.vocab_size), false, "sampling workspace");
  if (request_.keeps_raw) {
    grow(processed_, num_rows * static_cast<size_t>(args.vocab_size) * sizeof(float), false,
         "processed logits");
  }
  SampleWorkspace workspace = sample_workspace_at(workspace_.data(), rows, args.vocab_size);
  workspace.states = reinterpret_cast<SampleState*>(device_out_.as<char>() + out.states);
  const char* in = device_in_.as<char>();
  return {.rows = reinterpret_cast<const DeviceSampleRow*>(in + rows_at),
          .logits = args.logits,
          .processed = request_.keeps_raw ? processed_.as<float>() : args.logits,
          .token_lists = reinterpret_cast<const int32_t*>(in + lists_at),
          .counts = reinterpret_cast<const DeviceTokenCount*>(in + counts_at),
          .biases = reinterpret_cast<const DeviceLogitBias*>(in + biases_at),
          .workspace = workspace,
          .outputs = outputs_at(device_out_.as<char>(), out, request_.max_candidates,
                                request_.max_logprobs),
          .num_rows = rows,
          .vocab_size = args.vocab_size,
          .raw_logprobs = is_raw(args.logprobs_mode),
          .logprobs_hold_logits = holds_logits(args.logprobs_mode),
          .any_edits = request_.lists.edits(),
          .any_vectors = request_.num_vectors > 0};
}

void DeviceSampler::download(const SampleArgs& args, const SampleRowsParams& params) {
  const OutputLayout out(args.rows.size(), request_.max_candidates, request_.max_logprobs);
  stream_.copy_to_host(pinned_out_.data(), device_out_.data(), out.layout.size_bytes());
  const size_t vector_bytes = static_cast<size_t>(args.vocab_size) * sizeof(float);
  reported_.resize(args.rows.size());
  for (size_t i = 0; i < args.rows.size(); ++i) {
    if (const float* distribution = request_.rows[i].distribution) {
      stream_.copy_to_host(args.rows[i].distribution, distribution, vector_bytes);
    }
    reported_[i].clear();
    if (const float* logits = request_.rows[i].reported_logits) {
      reported_[i].resize(static_cast<size_t>(args.vocab_size));
      stream_.copy_to_host(reported_[i].data(), logits, vector_bytes);
    }
  }
  stream_.synchronize();
  const SampleOutputs outputs = outputs_at(
      pinned_out_.as<char>(), out, params.outputs.max_candidates, params.outputs.max_logprobs);
  const auto* states = reinterpret_cast<const SampleState*>(pinned_out_.as<char>() + out.states);
  for (size_t i = 0; i < args.rows.size(); ++i) read_row(args, i, outputs, states[i]);
}

void DeviceSampler::read_row(const SampleArgs& args, size_t row, const SampleOutputs& outputs,
                             const SampleState& state) {
  SampleResult& result = args.results[row];
  result.token_id = outputs.token_ids[row];
  result.candidates.clear();
  result.logprobs.clear();
  const DeviceCandidate* candidates = outputs.candidates + row * outputs.max_candidates;
  for (int i = 0; i < outputs.num_candidates[row]; ++i) {
    result.candidates.push_back({candidates[i].token_id, candidates[i].probability});
  }
  const DeviceLogprob* logprobs = outputs.logprobs + row * (outputs.max_logprobs + 1);
  for (int i = 0; i < outputs.num_logprobs[row]; ++i) {
    result.logprobs.push_back({logprobs[i].token_id, logprobs[i].logprob, logprobs[i].rank});
  }
  if (!reported_[row].empty()) {
    append_greatest(reported_[row], state.log_total, args.rows[row].num_logprobs, &result.logprobs);
  }
}

void CudaBackend::sample(const SampleArgs& args) {
  sampler_.sample(args);
  rank_exchange_.check();
}

}  // namespace specdec::cuda
