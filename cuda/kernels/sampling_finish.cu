// From a row's maxima and sums to its token, candidates and logprobs.
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/sampling_passes.cuh"
#include "cuda/kernels/sampling_select.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

// Weights are added as integers, in units of 2^-44 of the greatest one.
constexpr float kWeightUnits = 0x1p44f;

__device__ __forceinline__ uint64_t weight_of(float value, float max) {
  return static_cast<uint64_t>(exp_negative(value - max) * kWeightUnits);
}

struct RowSummary {
  uint64_t max_key;
  uint64_t best_key;
  double sum;  // of exp(value - max); 0 when no value is above -inf
};

// Joins the chunks of a row; adds their sums in an order given by the vocabulary.
__device__ RowSummary summarize(SelectShared& shared, const ChunkPartial* partials, int num_chunks,
                                bool sums) {
  RowSummary summary = {worst_key(), worst_key(), 0.0};
  for (int i = threadIdx.x; i < num_chunks; i += kSelectThreads) {
    const ChunkPartial& partial = partials[2 * i];
    if (partial.max_key < summary.max_key) summary.max_key = partial.max_key;
    if (partial.best_key < summary.best_key) summary.best_key = partial.best_key;
  }
  summary.max_key = block_min(shared, summary.max_key);
  summary.best_key = block_min(shared, summary.best_key);
  if (!sums) return summary;
  if (warp_index() == 0) {
    const auto max = static_cast<double>(value_of_key(summary.max_key));
    double sum = 0.0;
    for (int i = lane_index(); i < num_chunks; i += 32) {
      const ChunkPartial& partial = partials[2 * i];
      if (partial.sum > 0.0) sum += partial.sum * exp(value_of_key(partial.max_key) - max);
    }
#pragma unroll 1
    for (int delta = 16; delta > 0; delta /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, delta);
    if (lane_index() == 0) shared.sum = sum;
  }
  __syncthreads();
  summary.sum = shared.sum;
  return summary;
}

// The least float that is >= x: a float compares with it as with x.
__device__ __forceinline__ float round_up(double x) {
  const auto rounded = static_cast<float>(x);
  return static_cast<double>(rounded) < x ? nextafterf(rounded, kInfinity) : rounded;
}

// The cut-off of top_p among the gathered tokens that `cutoff` keeps.
__device__ Cutoff top_p_cutoff(SelectShared& shared, const Gathered& gathered, Cutoff cutoff,
                               float max, float top_p, double total) {
  const double target = static_cast<double>(top_p) * total * static_cast<double>(kWeightUnits);
  const double fraction = total > 0.0 ? 0.0 : fmax(static_cast<double>(top_p), 1e-300);
  const SelectRange range = {.low = rank_of(max),
                             .high = rank_of(fmaxf(cutoff.value, gathered.threshold)),
                             .target = static_cast<uint64_t>(ceil(target)),
                             .fraction = fraction};
  const Selected selected = select_gathered(
      shared, gathered, range,
      [max](float value, int32_t) -> Measured { return {rank_of(value), weight_of(value, max)}; });
  const float value = value_of(selected.rank);
  Cutoff result = {.value = value};
  const uint64_t each = weight_of(value, max);
  if (!selected.reached || each == 0) return result;
  const uint64_t needed = (selected.target - selected.before + each - 1) / each;
  if (needed * each < selected.weight) {
    result.last_token = last_of_ties(shared, gathered, value, needed);
  }
  return result;
}

// The cut-off of min_p, top_k and top_p. `total`: the sum of exp(value - max) over the row.
__device__ Cutoff truncated(SelectShared& shared, const DeviceSampleRow& row, const RowNeeds& needs,
                            const RowView& view, const float* maxima, float max, double total) {
  const bool has_top_p = row.top_p < 1.0f;
  const bool has_min_p = row.min_p > 0.0f;
  Cutoff cutoff;
  float bound = -kInfinity;
  if (has_min_p) {
    cutoff.value = round_up(max + log(static_cast<double>(row.min_p)));
    bound = cutoff.value;
  }
  if (needs.has_top_k) {
    bound = fmaxf(bound, bound_of_top(shared, maxima, view.num_blocks(), row.top_k));
  }
  const bool lists_all = needs.has_top_k || has_min_p;
  if (!lists_all) {
    // Tokens below this together hold less than 1 - top_p of the weight.
    constexpr double kSlack = 0.01;
    const double share = 1.0 - static_cast<double>(row.top_p);
    bound = max - static_cast<float>(log(view.vocab_size / share) + kSlack);
  }
  const Gathered gathered = gather(shared, view, maxima, bound, fmaxf(bound, kLowest));
  if (needs.has_top_k && row.top_k <= gathered.count) {
    const SelectRange range = {.low = rank_of(max),
                               .high = rank_of(gathered.threshold),
                               .target = static_cast<uint64_t>(row.top_k)};
    const Selected selected = select_gathered(shared, gathered, range,
                                              [](float value, int32_t) { return count_of(value); });
    cutoff.value = value_of(selected.rank);
  }
  if (!has_top_p) return cutoff;
  return top_p_cutoff(shared, gathered, cutoff, max, row.top_p, lists_all ? 0.0 : total);
}

// The sum of exp(value - max) over the tokens that the view keeps.
__device__ double kept_sum(SelectShared& shared, const RowView& view, const float* maxima,
                           float max) {
  uint64_t mine = 0;
  visit_blocks(view, maxima, view.cutoff.value, [&](float value, int32_t) {
    if (value > -kInfinity) mine += weight_of(value, max);
  });
  return static_cast<double>(block_sum(shared, mine)) / static_cast<double>(kWeightUnits);
}

// The draw among the tokens that the noisy view keeps.
__device__ uint64_t draw_kept(SelectShared& shared, const RowView& view, const float* maxima) {
  uint64_t best = worst_key();
  visit_blocks(view, maxima, view.cutoff.value, [&](float value, int32_t token) {
    if (!(value > -kInfinity)) return;
    const uint64_t key = key_of(value, token);
    best = key < best ? key : best;
  });
  return block_min(shared, best);
}

__device__ bool is_in(const int32_t* list, DeviceRange range, int32_t token) {
  for (int i = range.begin; i < range.end; ++i) {
    if (list[i] == token) return true;
  }
  return false;
}

// The token of a row whose logits are all -inf.
__device__ int32_t first_permitted(const DeviceSampleRow& row, const SampleRowsParams& params) {
  const int32_t* lists = params.token_lists;
  const auto banned = [&](int32_t token) {
    return !mask_allows(row, token) || is_in(lists, row.banned, token) ||
           is_in(lists, row.early_banned, token);
  };
  if (size_of(row.allowed) > 0) {
    for (int i = row.allowed.begin; i < row.allowed.end; ++i) {
      if (!banned(lists[i])) return lists[i];
    }
    return lists[row.allowed.begin];
  }
  for (int32_t token = 0; token < params.vocab_size; ++token) {
    if (!banned(token)) return token;
  }
  return 0;
}

// A row being finished.
struct RowFinish {
  SelectShared& shared;
  const SampleRowsParams& params;
  const DeviceSampleRow& row;
  const RowNeeds& needs;
  int index;
  RowView view;         // processed, with its cutoff
  const float* maxima;  // of the processed logits
  float max = -kInfinity;
  double scale = 0.0;

  // For several candidates: puts the best draws into shared.keys, and returns how many.
  __device__ int list_draws() {
    RowView noisy = view;
    noisy.noisy = !needs.greedy;
    if (needs.greedy || !needs.truncates) {
      const int64_t offset = static_cast<int64_t>(index) * view.num_blocks();
      return list_top(shared, noisy, needs.greedy ? maxima : params.workspace.noisy_max + offset,
                      needs.num_candidates);
    }
    const Gathered kept = gather(shared, noisy, maxima, view.cutoff.value, kLowest);
    return sort_top(shared, kept, needs.num_candidates);
  }

  __device__ void report_candidates(int32_t token) {
    const SampleOutputs& outputs = params.outputs;
    DeviceCandidate* out =
        outputs.candidates + static_cast<int64_t>(index) * outputs.max_candidates;
    if (scale == 0.0) {
      if (threadIdx.x == 0) {
        outputs.num_candidates[index] = 1;
        out[0] = {token, 1.0f};
      }
      return;
    }
    if (needs.num_candidates == 1) {
      __syncthreads();
      if (threadIdx.x == 0) shared.keys[0] = static_cast<uint32_t>(token);
      __syncthreads();
    }
    const int found = needs.num_candidates == 1 ? 1 : list_draws();
    if (threadIdx.x == 0) outputs.num_candidates[index] = found;
    if (static_cast<int>(threadIdx.x) < found) {
      const int32_t candidate = token_of(shared.keys[threadIdx.x]);
      const double weight = exp_negative(view.logit(candidate) - max);
      out[threadIdx.x] = {candidate, static_cast<float>(weight * scale)};
    }
  }

  __device__ int32_t draw(const RowSummary& summary) {
    uint64_t best = needs.greedy ? summary.max_key : summary.best_key;
    if (needs.truncates && max > -kInfinity) {
      RowView noisy = view;
      noisy.noisy = true;
      best = draw_kept(shared, noisy, maxima);
    }
    return value_of_key(best) > -kInfinity ? token_of(best) : first_permitted(row, params);
  }
};

// Reports the token, then the `num_top` greatest logits.
__device__ void report_logprobs(SelectShared& shared, const RowView& view, const float* maxima,
                                double log_total, int32_t token, int num_top, DeviceLogprob* out) {
  const auto logprob_of = [log_total](float logit) {
    return logit == -kInfinity ? -kInfinity : static_cast<float>(logit - log_total);
  };
  const float chosen = view.logit(token);
  uint64_t mine = 0;
  if (chosen > -kInfinity) {
    visit_blocks(view, maxima, chosen,
                 [&](float value, int32_t) { mine += value >= chosen ? 1 : 0; });
  }
  const auto rank = static_cast<int32_t>(block_sum(shared, mine));
  if (threadIdx.x == 0) {
    out[0] = {token, logprob_of(chosen), chosen > -kInfinity ? rank : view.vocab_size};
  }
  if (num_top == 0) return;
  const int found = list_top(shared, view, maxima, num_top);
  const int own_entry = threadIdx.x;
  if (own_entry < found) {
    const uint64_t key = shared.keys[own_entry];
    out[1 + own_entry] = {token_of(key), logprob_of(value_of_key(key)), own_entry + 1};
  }
  // If fewer than asked for are above -inf, the other tokens follow, by id.
  if (threadIdx.x != 0) return;
  int filled = found;
  for (int32_t other = 0; filled < num_top; ++other) {
    if (view.logit(other) > -kInfinity) continue;
    out[1 + filled] = {other, -kInfinity, filled + 1};
    ++filled;
  }
}

__global__ void __launch_bounds__(kSelectThreads) finish_kernel(SampleRowsParams params) {
  SPECDEC_SHARED_BYTES(shared_bytes);
  SelectShared& shared = *reinterpret_cast<SelectShared*>(shared_bytes);
  ptx::wait_for_previous();
  const int index = static_cast<int>(blockIdx.x);
  const DeviceSampleRow& row = params.rows[index];
  const RowNeeds needs = needs_of(row, params);
  const SampleWorkspace& workspace = params.workspace;
  const SampleOutputs& outputs = params.outputs;
  const int num_chunks = workspace.num_chunks;
  const int64_t block_offset = static_cast<int64_t>(index) * workspace.num_blocks;
  const ChunkPartial* partials = workspace.partials + static_cast<int64_t>(index) * num_chunks * 2;

  RowFinish finish = {.shared = shared,
                      .params = params,
                      .row = row,
                      .needs = needs,
                      .index = index,
                      .view = processed_view(row, needs, params, index),
                      .maxima = workspace.block_max + block_offset};
  RowSummary summary = {worst_key(), worst_key(), 0.0};
  int32_t token = row.forced_token;
  int32_t only_token = token;
  double sum = 0.0;
  if (needs.processes) {
    summary = summarize(shared, partials, num_chunks,
                        needs.weighs || needs.truncates || needs.shares_scan);
    finish.max = value_of_key(summary.max_key);
    sum = summary.sum;
    if (needs.truncates && finish.max > -kInfinity) {
      finish.view.cutoff =
          truncated(shared, row, needs, finish.view, finish.maxima, finish.max, summary.sum);
      if (needs.weighs) sum = kept_sum(shared, finish.view, finish.maxima, finish.max);
    }
    finish.scale = sum > 0.0 ? 1.0 / sum : 0.0;
    if (!needs.forced || needs.greedy || finish.scale == 0.0) only_token = finish.draw(summary);
    if (!needs.forced) token = only_token;
    if (needs.num_candidates > 0) finish.report_candidates(token);
  }
  if (threadIdx.x == 0) {
    outputs.token_ids[index] = token;
    if (outputs.num_candidates != nullptr && needs.num_candidates == 0) {
      outputs.num_candidates[index] = 0;
    }
  }
  RowView reported = finish.view;
  const float* maxima = finish.maxima;
  float max = finish.max;
  if (needs.reports_raw) {
    reported = raw_view(params, index);
    sum = summary.sum;
    if (!needs.shares_scan) {
      maxima = workspace.raw_max + block_offset;
      const RowSummary raw = summarize(shared, partials + 1, num_chunks, true);
      max = value_of_key(raw.max_key);
      sum = raw.sum;
    }
  }
  // The device's logarithm may differ from the host's in the last bit of a double, and then one
  // logprob in some hundred million differs in its last bit. All answers of a device take the
  // device's.
  const double log_total = params.logprobs_hold_logits ? 0.0 : max + log(sum);
  const bool lists = row.num_logprobs >= 0 && row.num_logprobs <= kMaxListed;
  const int num_top = lists ? min(row.num_logprobs, params.vocab_size) : 0;
  if (row.want_logprobs != 0) {
    report_logprobs(shared, reported, maxima, log_total, token, num_top,
                    outputs.logprobs + static_cast<int64_t>(index) * (outputs.max_logprobs + 1));
  }
  if (threadIdx.x == 0) {
    if (outputs.num_logprobs != nullptr) {
      outputs.num_logprobs[index] = row.want_logprobs != 0 ? num_top + 1 : 0;
    }
    workspace.states[index] = {.scale = needs.greedy ? 0.0 : finish.scale,
                               .log_total = log_total,
                               .max = finish.max,
                               .cutoff_value = finish.view.cutoff.value,
                               .cutoff_last = finish.view.cutoff.last_token,
                               .only_token = only_token};
  }
  ptx::let_next_start();
}

}  // namespace

void finish_rows(Stream& stream, const SampleRowsParams& params) {
  launch("sample_finish", stream, finish_kernel,
         {.grid = {static_cast<unsigned>(params.num_rows)},
          .block = {kSelectThreads},
          .shared_bytes = sizeof(SelectShared),
          .overlaps_previous = true},
         params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
