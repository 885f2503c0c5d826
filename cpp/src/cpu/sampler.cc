#include "cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/row_edits.h"
#include "core/check.h"
#include "core/token_mask.h"
#include "cpu/cpu_backend.h"
#include "cpu/sampler_select.h"

namespace specdec::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr DrawCutoff kKeepAll = {-kInfinity, std::numeric_limits<int32_t>::max()};

// Drawing from a listed candidate costs this many times as much per token as a pass over the row.
constexpr int kListedDrawCost = 8;

bool changes_logits(const SampleRow& params) {
  return !params.allowed_mask.empty() || !params.allowed_token_ids.empty() ||
         !params.banned_token_ids.empty() || !params.logit_bias.empty() || !params.counts.empty();
}

void apply_penalties(const SampleRow& params, float* logits, int vocab_size) {
  for (const TokenCount& count : params.counts) {
    SPECDEC_CHECK(count.token_id >= 0 && count.token_id < vocab_size);
    float& logit = logits[count.token_id];
    logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (count.output_count == 0) continue;
    logit -= params.frequency_penalty * static_cast<float>(count.output_count);
    logit -= params.presence_penalty;
  }
}

// The answer when no logit is above -inf.
int32_t first_permitted(const SampleRow& params, int vocab_size) {
  const auto banned = [&](int32_t token) {
    if (!params.allowed_mask.empty() && !is_in(params.allowed_mask, token)) return true;
    return std::find(params.banned_token_ids.begin(), params.banned_token_ids.end(), token) !=
           params.banned_token_ids.end();
  };
  if (!params.allowed_token_ids.empty()) {
    const auto found =
        std::find_if_not(params.allowed_token_ids.begin(), params.allowed_token_ids.end(), banned);
    return found != params.allowed_token_ids.end() ? *found : params.allowed_token_ids.front();
  }
  for (int32_t token = 0; token < vocab_size; ++token) {
    if (!banned(token)) return token;
  }
  return 0;
}

// Draws from logits / temperature after truncation, and leaves the `num_best` best draws in the
// scratch's `drawn`. With `store`, the processed logits are left in `logits` (truncation always
// divides in place). Returns -1 when no token can be drawn or num_best is 0.
int32_t draw_token(const SamplingKernels& kernels, const SampleRow& params, float* logits,
                   int vocab_size, bool store, int num_best, SamplingScratch& scratch) {
  const DrawNoise noise = {params.seed, params.position, params.noise_stream};
  scratch.drawn.resize(static_cast<size_t>(num_best));
  const auto draw = [&](float divisor, DrawCutoff cutoff) {
    if (num_best == 0) return -1;
    kernels.draw(logits, divisor, vocab_size, cutoff, noise, scratch.drawn.data(), num_best);
    return scratch.drawn.front().index;
  };
  const bool truncate = truncates(params, vocab_size);
  if (!truncate && !store) return draw(params.temperature, kKeepAll);
  kernels.block_maxima(logits, params.temperature, vocab_size, scratch.block_max.data(), logits);
  if (!truncate) return draw(1.0f, kKeepAll);

  const RowView row = {logits, scratch.block_max.data(), vocab_size};
  const KeptTokens kept = select_kept(kernels, row, params, scratch);
  if (store) {
    std::fill_n(logits, vocab_size, -kInfinity);
    for (int i = 0; i < kept.count; ++i) logits[scratch.tokens[i]] = scratch.values[i];
  }
  if (num_best == 0 || kept.count > vocab_size / kListedDrawCost) return draw(1.0f, kept.cutoff);
  kernels.draw_listed(scratch.tokens.data(), scratch.values.data(), kept.count, noise,
                      scratch.drawn.data(), num_best);
  return scratch.drawn.front().index;
}

float clean(float logit) {
  if (std::isnan(logit)) return -kInfinity;
  return std::min(logit, kMaxLogit);
}

// Weights of processed logits: exp(logit - max) * scale sum to one.
struct Softmax {
  float max = 0.0f;
  double scale = 0.0;  // 0 when no logit is above -inf
};

Softmax softmax_of(const SamplingKernels& kernels, const float* logits, int vocab_size) {
  const ExpSum sum = kernels.exp_sum(logits, vocab_size);
  return {sum.max, sum.sum > 0.0 ? 1.0 / sum.sum : 0.0};
}

void write_distribution(const SamplingKernels& kernels, const float* logits, int vocab_size,
                        bool greedy, int32_t token, float* out) {
  const Softmax softmax = greedy ? Softmax{} : softmax_of(kernels, logits, vocab_size);
  if (softmax.scale == 0.0) {
    std::fill_n(out, vocab_size, 0.0f);
    out[token] = 1.0f;
    return;
  }
  kernels.exp_shifted(logits, softmax.max, vocab_size, out);
  for (int i = 0; i < vocab_size; ++i) out[i] = static_cast<float>(out[i] * softmax.scale);
}

// Reports the candidates: the scratch's `drawn`, or for greedy rows the greatest logits.
void report_candidates(const SamplingKernels& kernels, const SampleRow& params, const float* logits,
                       int vocab_size, int num_candidates, SamplingScratch& scratch,
                       SampleResult* result) {
  const Softmax softmax = softmax_of(kernels, logits, vocab_size);
  if (softmax.scale == 0.0) {
    result->candidates.push_back({result->token_id, 1.0f});
    return;
  }
  const bool greedy = is_greedy(params.temperature);
  if (greedy) {
    kernels.block_maxima(logits, 1.0f, vocab_size, scratch.block_max.data(), nullptr);
    select_top(kernels, {logits, scratch.block_max.data(), vocab_size}, num_candidates, scratch);
  }
  for (int i = 0; i < num_candidates; ++i) {
    const int32_t token = greedy ? token_of(scratch.keys[i]) : scratch.drawn[i].index;
    if (token < 0 || clean(logits[token]) == -kInfinity) break;
    float weight = 0.0f;
    kernels.exp_shifted(logits + token, softmax.max, 1, &weight);
    result->candidates.push_back({token, static_cast<float>(weight * softmax.scale)});
  }
}

// Reports the token's entry, then the `num_top` greatest (all for a negative number).
void report_logprobs(const SamplingKernels& kernels, const float* logits, int vocab_size,
                     int32_t token, int num_top, bool holds_logits, SamplingScratch& scratch,
                     PositionLogprobs* out) {
  double log_total = 0.0;  // 0: logits are reported as they are
  if (!holds_logits) {
    const ExpSum sum = kernels.exp_sum(logits, vocab_size);
    log_total = sum.max + std::log(sum.sum);
  }
  const auto logprob_of = [&](float logit) {
    return logit == -kInfinity ? -kInfinity : static_cast<float>(logit - log_total);
  };
  const float chosen = clean(logits[token]);
  const int rank =
      chosen == -kInfinity ? vocab_size : kernels.count_at_least(logits, vocab_size, chosen);
  num_top = num_top < 0 ? vocab_size : std::min(num_top, vocab_size);
  out->reserve(static_cast<size_t>(num_top) + 1);
  out->push_back({token, logprob_of(chosen), rank});
  if (num_top == 0) return;
  kernels.block_maxima(logits, 1.0f, vocab_size, scratch.block_max.data(), nullptr);
  select_top(kernels, {logits, scratch.block_max.data(), vocab_size}, num_top, scratch);
  for (int i = 0; i < num_top; ++i) {
    const uint64_t key = scratch.keys[i];
    out->push_back({token_of(key), logprob_of(logit_of(key)), i + 1});
  }
}

}  // namespace

void SamplingScratch::reserve(int vocab_size) {
  const size_t size = static_cast<size_t>(vocab_size);
  if (row.size() >= size) return;
  const size_t num_blocks = (size + kSamplingBlock - 1) / kSamplingBlock;
  block_max.resize(num_blocks);
  block_order.resize(num_blocks);
  tokens.resize(size);
  values.resize(size);
  weights.resize(size);
  keys.resize(size);
  row.resize(size);  // resized last: a row of this size means that all buffers have grown
}

Sampler::Sampler(const SamplingKernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), scratch_(static_cast<size_t>(pool.num_threads())) {}

void Sampler::sample(const SampleArgs& args) {
  SPECDEC_CHECK(args.vocab_size > 0);
  SPECDEC_CHECK(args.rows.size() == args.results.size());
  const int vocab_size = args.token_ids != nullptr ? args.target_vocab_size : args.vocab_size;
  SPECDEC_CHECK_GT(vocab_size, 0);
  pool_.parallel_for(static_cast<int64_t>(args.rows.size()), 1,
                     [&](int64_t begin, int64_t end, int thread) {
                       SamplingScratch& scratch = scratch_[static_cast<size_t>(thread)];
                       scratch.reserve(vocab_size);
                       for (int64_t row = begin; row < end; ++row) {
                         float* logits = args.logits + row * args.vocab_size;
                         if (args.token_ids != nullptr) logits = spread(args, logits, scratch);
                         sample_row(args, static_cast<int>(row), logits, vocab_size, scratch);
                       }
                     });
}

// Each thread reuses one buffer for all its rows, so that the buffer stays in its caches.
float* Sampler::spread(const SampleArgs& args, const float* logits, SamplingScratch& scratch) {
  scratch.spread.assign(static_cast<size_t>(args.target_vocab_size), -kInfinity);
  for (int i = 0; i < args.vocab_size; ++i) scratch.spread[args.token_ids[i]] = logits[i];
  return scratch.spread.data();
}

void Sampler::sample_row(const SampleArgs& args, int row, float* raw, int vocab_size,
                         SamplingScratch& scratch) const {
  const SampleRow& params = args.rows[static_cast<size_t>(row)];
  SampleResult& result = args.results[static_cast<size_t>(row)];
  float* processed = raw;
  result.logprobs.clear();
  result.candidates.clear();
  const bool forced = params.forced_token >= 0;
  const bool greedy = is_greedy(params.temperature);
  const int num_candidates = forced ? 0 : std::min(params.num_candidates, vocab_size);
  const bool report_raw = params.want_logprobs && is_raw(args.logprobs_mode);
  const bool report_processed = params.want_logprobs && !report_raw;
  const bool store = report_processed || num_candidates > 0 || params.distribution != nullptr;

  if (!forced || store) {
    const bool in_place =
        changes_logits(params) || (!greedy && (store || truncates(params, vocab_size)));
    if (params.given_logits != nullptr || (report_raw && in_place)) {
      const float* from = params.given_logits != nullptr ? params.given_logits : raw;
      std::copy_n(from, vocab_size, scratch.row.begin());
      processed = scratch.row.data();
    }
    const std::span<float> values(processed, static_cast<size_t>(vocab_size));
    apply_masks(params, values, scratch.values);
    apply_bias(params, values);
    apply_penalties(params, processed, vocab_size);
    const int num_best = forced ? 0 : std::max(num_candidates, 1);
    const int32_t best =
        greedy ? kernels_.argmax(processed, vocab_size).index
               : draw_token(kernels_, params, processed, vocab_size, store, num_best, scratch);
    result.token_id = best >= 0 ? best : first_permitted(params, vocab_size);
    if (num_candidates > 0) {
      report_candidates(kernels_, params, processed, vocab_size, num_candidates, scratch, &result);
    }
    if (params.distribution != nullptr) {
      write_distribution(kernels_, processed, vocab_size, greedy, result.token_id,
                         params.distribution);
    }
  }
  if (forced) {
    SPECDEC_CHECK(params.forced_token < vocab_size);
    result.token_id = params.forced_token;
  }
  if (params.want_logprobs) {
    report_logprobs(kernels_, report_raw ? raw : processed, vocab_size, result.token_id,
                    params.num_logprobs, holds_logits(args.logprobs_mode), scratch,
                    &result.logprobs);
  }
}

void CpuBackend::sample(const SampleArgs& args) { sampler_.sample(args); }

}  // namespace specdec::cpu
