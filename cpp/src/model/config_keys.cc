#include "model/config_keys.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

using Json = nlohmann::json;

// Keys that change nothing in a decoder's computation for given tokens. A key that begins with '*'
// matches every key with the rest as its suffix.
constexpr auto kWithoutEffect = std::to_array<std::string_view>({
    // Who wrote the file, and for which classes and versions.
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "auto_map",
    "base_model_name_or_path",
    "custom_pipelines",
    "eagle_architecture",
    "has_no_defaults_at_init",
    "is_llama_config",
    "language_model_only",
    "model_type",
    "name_or_path",
    "speculators_version",
    "transformer_layer_architecture",
    "transformers.js_config",
    "transformers_version",
    "transformers_weights",
    "unsloth_fixed",
    "unsloth_version",
    "version",
    // Each tensor in the file states its own dtype.
    "dtype",
    "torch_dtype",
    "params_dtype",
    // Training only.
    "*_loss_coef",
    "*_loss_coefficient",
    "*_pdrop",
    "*dropout",
    "aux_loss_alpha",
    "eagle_decoder_type",
    "eagle_freeze_base_model",
    "eagle_hidden_state_distillation",
    "eagle_loss_decay_factor",
    "eagle_offline",
    "eagle_report_acc",
    "eagle_self_logit_distillation",
    "embed_requires_grad",
    "gradient_checkpointing",
    "init_device",
    "init_method",
    "init_std",
    "initializer_factor",
    "initializer_range",
    "layerdrop",
    "output_router_logits",
    "router_jitter_noise",
    "target_model_type",
    "ttt_steps",
    "z_loss_alpha",
    // A matrix multiplied in this many pieces gives the same product.
    "pretraining_tp",
    // Tokens with a meaning for the tokenizer and for templates. The tokens that end an answer are
    // read elsewhere.
    "*_token_id",
    "*_token_ids",
    "*_token_index",
    "forced_bos_token_id",
    "model_max_length",
    "prefix",
    "tokenizer_class",
    // Text lengths in training or in use: max_position_embeddings decides.
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    // Read by the kinds of rope that depend on it.
    "original_max_position_embeddings",
    // layer_types, or the settings of windows, say which layers have a window.
    "max_window_layers",
    // Sampling defaults of old files; here requests set them.
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "disable_compile",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "frequency_penalty",
    "guidance_scale",
    "is_assistant",
    "length_penalty",
    "low_memory",
    "max_cache_len",
    "max_length",
    "max_matching_ngram_size",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_logits",
    "output_scores",
    "prefill_chunk_size",
    "presence_penalty",
    "prompt_lookup_num_tokens",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "return_dict_in_generate",
    "sequence_bias",
    "skip_special_tokens",
    "speculation_type",
    "suppress_tokens",
    "target_lookbehind",
    "temperature",
    "token_healing",
    "top_h",
    "top_k",
    "top_p",
    "typical_p",
    "use_mtp",
    "_from_model_config",
    // Choices among implementations in transformers and elsewhere that compute the same.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_experts_implementation",
    "_flash_attn_2_enabled",
    "add_cross_attention",
    "attn_implementation",
    "base_model_pp_plan",
    "base_model_tp_plan",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "experts_implementation",
    "is_decoder",
    "is_encoder_decoder",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pruned_heads",
    "return_dict",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "torchscript",
    "use_bfloat16",
    "use_cache",
    "use_flash_attn",
    // For classification models, and for the image and audio parts of others.
    "audio_config",
    "finetuning_task",
    "id2label",
    "label2id",
    "mm_tokens_per_image",
    "num_labels",
    "problem_type",
    "task_specific_params",
    "vision_config",
    // Draft layers come after the others, which compute the same without them.
    "mtp_loss_scaling_factor",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    // Decided by the draft head's tensors.
    "has_lm_head",
    "next_layer_regular",
    "use_aux_hidden_state",
    // How much the head's authors draft, which speculative_config sets here. The mask token of
    // models that draft in parallel is read where parallel drafting is asked for.
    "max_paths",
    "medusa_choices",
    "n_candidates",
    "num_lookahead_tokens",
    "num_speculative_tokens",
    "parallel_draft_step",
    "pard_token",
    "top_k_tokens_per_head",
    "topk",
});

// Keys, with the values at which they ask for the computation that is done anyway.
struct UsualValue {
  std::string_view key;
  std::string_view values;  // a JSON list
};
constexpr auto kUsual = std::to_array<UsualValue>({
    {"causal", "[true]"},
    {"embedding_multiplier", "[1]"},
    {"full_attn_mod", "[1]"},  // a window every this many layers (Phi-4-mini)
    {"interpolate_factor", "[1]"},
    {"is_causal", "[true]"},
    {"learned_embeddings", "[true]"},
    {"logit_scale", "[1]"},
    {"logits_scaling", "[1]"},
    {"position_embedding_type", R"(["rope"])"},
    {"residual_multiplier", "[1]"},
    {"rotary_pct", "[1]"},
    {"use_rope", "[true]"},
    {"use_rotary_pos_emb", "[true]"},
});

// Words in the names of a network's settings. '_' separates words here.
constexpr auto kArithmetic = std::to_array<std::string_view>({
    "_act_",    "_adapter",   "_alpha_",  "_beta_",       "_bits_",  "_cap_",     "_caps_",
    "_conv_",   "_delta_",    "_depth_",  "_dim",         "_eps",    "_ff_",      "_gamma_",
    "_kv_",     "_mup_",      "_pos_",    "_proj_",       "_qk",     "_rank_",    "_ssm",
    "_tie",     "activation", "alibi",    "attention",    "attn",    "bias",      "block",
    "capacity", "causal",     "chunk",    "clamp",        "clip",    "compress",  "embed",
    "expert",   "factor",     "ffn",      "feed_forward", "freq",    "gate",      "gating",
    "glu",      "group",      "hadamard", "head",         "hidden",  "interleav", "intermediate",
    "kernel",   "latent",     "layer",    "logit",        "lora",    "mamba",     "mask",
    "memory",   "mixture",    "mlp",      "moe",          "multipl", "nope",      "norm",
    "offset",   "permut",     "position", "quant",        "recurr",  "residual",  "rope",
    "rotar",    "rotat",      "rout",     "scal",         "share",   "sigmoid",   "sink",
    "skip",     "sliding",    "softcap",  "softmax",      "spars",   "stride",    "temperature",
    "theta",    "window",
});

// Null means absent; the other values are how files switch a setting off.
bool is_off(const Json& value) {
  if (value.is_number()) return value == 0;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_object()) return std::ranges::all_of(value, is_off);
  return value.empty() || (value.is_string() && value.get_ref<const std::string&>().empty());
}

bool changes_nothing(std::string_view key, const Json& value) {
  const auto usual = std::ranges::find(kUsual, key, &UsualValue::key);
  if (usual != kUsual.end()) {
    const Json values = Json::parse(usual->values);
    return value.is_null() || std::ranges::find(values, value) != values.end();
  }
  return is_off(value) || std::ranges::any_of(kWithoutEffect, [&](std::string_view known) {
           return known.starts_with('*') ? key.ends_with(known.substr(1)) : key == known;
         });
}

// `name` is a key with its scope. Every key in an object of settings, such as rope_scaling, counts.
bool may_be_arithmetic(std::string_view name) {
  std::string words = "_";
  for (const char c : name) {
    words += c == '.' || c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<uint8_t>(c)));
  }
  words += '_';
  return std::ranges::any_of(
      kArithmetic, [&](std::string_view word) { return words.find(word) != std::string::npos; });
}

// The name as a message shows it: unchanged if printable.
std::string shown(const std::string& name) {
  const bool is_plain =
      name.size() <= 100 && std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~'; });
  return is_plain ? name : excerpt(Json(name));
}

}  // namespace

std::string check_unread(const JsonFields& fields, const std::string& architecture) {
  constexpr size_t kMaxNames = 10;
  std::string unknown;
  size_t num_unknown = 0;
  fields.visit_unread([&](const JsonFields& scope, const std::string& key, const Json& value) {
    if (changes_nothing(key, value)) return;
    const std::string name = scope.name_of(key);
    if (may_be_arithmetic(name)) {
      throw CheckpointError(
          fields.path(), "",
          str_cat(shown(name), ": is ", excerpt(value), ", which may change what is computed and ",
                  "is not implemented for ", architecture,
                  "; if it changes nothing, take it out of the file, or give hf_overrides with "
                  "null for it where the file is a target's"));
    }
    if (++num_unknown > kMaxNames) return;
    unknown += str_cat(num_unknown == 1 ? "" : ", ", shown(name));
  });
  if (num_unknown == 0) return "";
  return str_cat(fields.path(), ": ", unknown, num_unknown > kMaxNames ? ", ..." : "");
}

}  // namespace specdec
