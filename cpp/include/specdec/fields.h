// What the structs of facts and statistics hold, by name, for everything that passes them on to
// other languages.
#pragma once

#include <tuple>

#include "specdec/engine.h"

namespace specdec {

template <class Struct, class Value>
struct Field {
  const char* name;
  Value Struct::* member;
};

template <class Struct, class Value>
constexpr Field<Struct, Value> field(const char* name, Value Struct::* member) {
  return {name, member};
}

// The fields of a struct; empty for other types.
template <class Struct>
inline constexpr std::tuple<> kFields = {};

template <>
inline constexpr std::tuple kFields<ModelInfo> = {
    field("architecture", &ModelInfo::architecture),
    field("dtype", &ModelInfo::dtype),
    field("weight_format", &ModelInfo::weight_format),
    field("device", &ModelInfo::device),
    field("isa", &ModelInfo::isa),
    field("num_layers", &ModelInfo::num_layers),
    field("hidden_size", &ModelInfo::hidden_size),
    field("num_heads", &ModelInfo::num_heads),
    field("num_kv_heads", &ModelInfo::num_kv_heads),
    field("head_dim", &ModelInfo::head_dim),
    field("vocab_size", &ModelInfo::vocab_size),
    field("max_model_len", &ModelInfo::max_model_len),
    field("max_num_seqs", &ModelInfo::max_num_seqs),
    field("max_num_batched_tokens", &ModelInfo::max_num_batched_tokens),
    field("num_speculative_tokens", &ModelInfo::num_speculative_tokens),
    field("has_priorities", &ModelInfo::has_priorities),
    field("num_threads", &ModelInfo::num_threads),
    field("num_kv_blocks", &ModelInfo::num_kv_blocks),
    field("block_size", &ModelInfo::block_size),
    field("num_parameters", &ModelInfo::num_parameters),
    field("weight_bytes", &ModelInfo::weight_bytes),
    field("kv_cache_dtype", &ModelInfo::kv_cache_dtype),
    field("kv_cache_bytes", &ModelInfo::kv_cache_bytes),
    field("state_bytes", &ModelInfo::state_bytes),
};

template <>
inline constexpr std::tuple kFields<EngineLoad> = {
    field("num_running", &EngineLoad::num_running),
    field("num_waiting", &EngineLoad::num_waiting),
    field("num_waiting_tokens", &EngineLoad::num_waiting_tokens),
    field("num_free_kv_blocks", &EngineLoad::num_free_kv_blocks),
    field("num_kv_blocks", &EngineLoad::num_kv_blocks),
};

template <>
inline constexpr std::tuple kFields<StepTokens> = {
    field("counts", &StepTokens::counts),
    field("sum", &StepTokens::sum),
};

template <>
inline constexpr std::tuple kFields<DrafterStats> = {
    field("name", &DrafterStats::name),
    field("num_draft_tokens", &DrafterStats::num_draft_tokens),
    field("num_accepted_tokens", &DrafterStats::num_accepted_tokens),
    field("memory_bytes", &DrafterStats::memory_bytes),
};

template <>
inline constexpr std::tuple kFields<DraftPolicyStats> = {
    field("num_decisions", &DraftPolicyStats::num_decisions),
    field("num_without_drafts", &DraftPolicyStats::num_without_drafts),
    field("num_drafted_tokens", &DraftPolicyStats::num_drafted_tokens),
    field("num_verified_tokens", &DraftPolicyStats::num_verified_tokens),
    field("num_probes", &DraftPolicyStats::num_probes),
    field("num_measuring_steps", &DraftPolicyStats::num_measuring_steps),
    field("is_paused", &DraftPolicyStats::is_paused),
    field("num_pauses_too_costly", &DraftPolicyStats::num_pauses_too_costly),
    field("num_pauses_no_credit", &DraftPolicyStats::num_pauses_no_credit),
    field("saved_seconds", &DraftPolicyStats::saved_seconds),
};

template <>
inline constexpr std::tuple kFields<AcceptanceStats> = {
    field("num_steps", &AcceptanceStats::num_steps),
    field("num_draft_tokens", &AcceptanceStats::num_draft_tokens),
    field("num_accepted_tokens", &AcceptanceStats::num_accepted_tokens),
    field("num_emitted_tokens", &AcceptanceStats::num_emitted_tokens),
    field("num_predicted_draft_tokens", &AcceptanceStats::num_predicted_draft_tokens),
    field("num_predicted_accepted_tokens", &AcceptanceStats::num_predicted_accepted_tokens),
    field("proposed_per_position", &AcceptanceStats::proposed_per_position),
    field("accepted_per_position", &AcceptanceStats::accepted_per_position),
    field("histogram", &AcceptanceStats::histogram),
};

template <>
inline constexpr std::tuple kFields<EngineStats> = {
    field("num_running", &EngineStats::num_running),
    field("num_waiting", &EngineStats::num_waiting),
    field("num_kv_blocks", &EngineStats::num_kv_blocks),
    field("num_free_kv_blocks", &EngineStats::num_free_kv_blocks),
    field("num_cached_kv_blocks", &EngineStats::num_cached_kv_blocks),
    field("num_steps", &EngineStats::num_steps),
    field("num_device_steps", &EngineStats::num_device_steps),
    field("num_overlapped_steps", &EngineStats::num_overlapped_steps),
    field("num_prompt_tokens", &EngineStats::num_prompt_tokens),
    field("num_cached_tokens", &EngineStats::num_cached_tokens),
    field("num_generation_tokens", &EngineStats::num_generation_tokens),
    field("num_preemptions", &EngineStats::num_preemptions),
    field("num_finished_requests", &EngineStats::num_finished_requests),
    field("num_aborted_requests", &EngineStats::num_aborted_requests),
    field("schedule_seconds", &EngineStats::schedule_seconds),
    field("draft_seconds", &EngineStats::draft_seconds),
    field("forward_seconds", &EngineStats::forward_seconds),
    field("sample_seconds", &EngineStats::sample_seconds),
    field("commit_seconds", &EngineStats::commit_seconds),
    field("acceptance", &EngineStats::acceptance),
    field("step_tokens", &EngineStats::step_tokens),
    field("drafters", &EngineStats::drafters),
    field("draft_policy", &EngineStats::draft_policy),
};

// Calls visit(name, member) for every field.
template <class Struct, class Visit>
constexpr void for_each_field(const Visit& visit) {
  std::apply([&](const auto&... fields) { (visit(fields.name, fields.member), ...); },
             kFields<Struct>);
}

}  // namespace specdec
