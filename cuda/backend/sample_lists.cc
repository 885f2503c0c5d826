#include "cuda/backend/sample_lists.h"

namespace specdec::cuda {
namespace {

template <class To, class From, class Convert>
DeviceRange append(std::vector<To>& to, std::span<const From> from, Convert convert) {
  const auto begin = static_cast<int32_t>(to.size());
  for (const From& value : from) to.push_back(convert(value));
  return {begin, static_cast<int32_t>(to.size())};
}

}  // namespace

DeviceRange SampleLists::add_tokens(std::span<const int32_t> tokens) {
  return append(tokens_, tokens, [](int32_t token) { return token; });
}

DeviceSampleRow SampleLists::add(const SampleRow& row) {
  DeviceSampleRow out;
  out.temperature = row.temperature;
  out.top_p = row.top_p;
  out.min_p = row.min_p;
  out.repetition_penalty = row.repetition_penalty;
  out.presence_penalty = row.presence_penalty;
  out.frequency_penalty = row.frequency_penalty;
  out.top_k = row.top_k;
  out.noise_stream = row.noise_stream;
  out.seed = row.seed;
  out.position = row.position;
  out.num_candidates = row.num_candidates;
  out.num_logprobs = row.num_logprobs;
  out.want_logprobs = row.want_logprobs ? 1 : 0;
  out.forced_token = row.forced_token;
  out.counts = append(counts_, row.counts, [](const TokenCount& count) {
    return DeviceTokenCount{count.token_id, count.output_count};
  });
  out.bias = append(biases_, row.logit_bias, [](const std::pair<int32_t, float>& bias) {
    return DeviceLogitBias{bias.first, bias.second};
  });
  out.allowed = add_tokens(row.allowed_token_ids);
  out.banned = add_tokens(row.banned_token_ids);
  edits_ |= !row.counts.empty() || !row.logit_bias.empty() || !row.allowed_token_ids.empty() ||
            !row.banned_token_ids.empty() || !row.allowed_mask.empty() ||
            row.given_logits != nullptr;
  return out;
}

void SampleLists::clear() {
  edits_ = false;
  tokens_.clear();
  counts_.clear();
  biases_.clear();
}

}  // namespace specdec::cuda
