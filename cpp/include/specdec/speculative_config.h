// How an engine drafts tokens ahead and verifies them. Key names in Python are vLLM's where it has
// the feature; see python/specdec_native/speculation/speculative_config.py.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "specdec/options.h"

namespace specdec {

// A drafter of your own. Called by the thread that steps the engine, one request at a time.
class CustomDrafter {
 public:
  virtual ~CustomDrafter() = default;

  // Continuations of `tokens` (prompt and output so far), each at most max_tokens long, most likely
  // first; the engine merges them into one tree. Empty for no draft. A token outside the vocabulary
  // is an error of the request.
  virtual std::vector<std::vector<int32_t>> propose(std::span<const int32_t> tokens,
                                                    int max_tokens) = 0;
};

enum class DraftMethod : uint8_t {
  kNgram,
  kSuffix,
  kReplay,  // earlier answers to the same prompt
  kDraftModel,
  kEagle,          // EAGLE-1 and -2: a layer over the target's last hidden states
  kEagle3,         // EAGLE-3, and P-EAGLE: over states of three of its layers
  kMedusa,         // a head for each position, all over one hidden state
  kMlpSpeculator,  // a small recurrent network over one hidden state
  kMtp,            // the layer for the token after the next that the target's checkpoint has
  kDflash,         // masks after the last token, all drafted in one pass over states of the target
  kDspark,         // the same, where each draft also depends on the one before
  kCustom
};
template <>
inline constexpr auto kEnumNames<DraftMethod> =
    std::to_array<EnumName<DraftMethod>>({{DraftMethod::kNgram, "ngram"},
                                          {DraftMethod::kSuffix, "suffix"},
                                          {DraftMethod::kReplay, "replay"},
                                          {DraftMethod::kDraftModel, "draft_model"},
                                          {DraftMethod::kEagle, "eagle"},
                                          {DraftMethod::kEagle3, "eagle3"},
                                          {DraftMethod::kMedusa, "medusa"},
                                          {DraftMethod::kMlpSpeculator, "mlp_speculator"},
                                          {DraftMethod::kMtp, "mtp"},
                                          {DraftMethod::kDflash, "dflash"},
                                          {DraftMethod::kDspark, "dspark"},
                                          {DraftMethod::kCustom, "custom_class"}});

// How a draft model picks its tokens, after the request's own processors.
enum class DraftSampleMethod : uint8_t {
  kGreedy,  // the most likely tokens, whatever the temperature
  // Drawn: where drafts are compared with the target's tokens, with the noise that the target will
  // use, so that both agree as often as they can; where drafts are weighed, with noise of their
  // own.
  kProbabilistic,
};
template <>
inline constexpr auto kEnumNames<DraftSampleMethod> = std::to_array<EnumName<DraftSampleMethod>>(
    {{DraftSampleMethod::kGreedy, "greedy"}, {DraftSampleMethod::kProbabilistic, "probabilistic"}});

// Reads what the target made of a text, and cannot run without it.
constexpr bool is_draft_head(DraftMethod method) {
  return method == DraftMethod::kEagle || method == DraftMethod::kEagle3 ||
         method == DraftMethod::kMedusa || method == DraftMethod::kMlpSpeculator ||
         method == DraftMethod::kMtp || method == DraftMethod::kDflash ||
         method == DraftMethod::kDspark;
}
constexpr bool has_model(DraftMethod method) {
  return method == DraftMethod::kDraftModel || is_draft_head(method);
}

inline constexpr int kMaxSpeculativeTokens = 128;
inline constexpr int kMaxDraftNodes = 512;

// kDrafterOptions, below, says what members without a comment mean and which values they take.
struct DrafterConfig {
  DraftMethod method = DraftMethod::kNgram;
  int prompt_lookup_min = 1;
  int prompt_lookup_max = 5;
  int suffix_max_tree_depth = 24;
  int suffix_max_cached_requests = 10000;
  double suffix_max_spec_factor = 1.0;
  double suffix_min_token_prob = 0.1;
  std::string suffix_store;
  std::string record;
  std::string replay;
  std::string store_tokenizer;
  // Texts as token ids that requests of every salt are drafted from, beside finished outputs.
  std::vector<std::vector<int32_t>> suffix_corpus;
  std::string model;
  std::string quantization = "int8";
  int max_model_len = 0;
  DraftSampleMethod sample_method = DraftSampleMethod::kProbabilistic;
  double min_confidence = 0.0;
  bool parallel_drafting = false;
  int draft_tensor_parallel_size = 0;
  std::vector<int32_t> token_map;         // of heads that score tokens with the target's own head
  std::shared_ptr<CustomDrafter> custom;  // of DraftMethod::kCustom
};

inline constexpr std::tuple kDrafterOptions = {
    option(&DrafterConfig::method, {.name = "method", .help = "what drafts"}),
    option(&DrafterConfig::prompt_lookup_min, {.name = "prompt_lookup_min",
                                               .help = "ngram: shortest match, in tokens",
                                               .range = at_least(1)}),
    option(&DrafterConfig::prompt_lookup_max, {.name = "prompt_lookup_max",
                                               .help = "ngram: longest match, in tokens",
                                               .range = between(1, 128)}),
    option(&DrafterConfig::suffix_max_tree_depth,
           {.name = "suffix_decoding_max_tree_depth",
            .help = "suffix: longest stored pattern, in tokens",
            .range = at_least(1)}),
    option(&DrafterConfig::suffix_max_cached_requests,
           {.name = "suffix_decoding_max_cached_requests",
            .help = "suffix: finished outputs kept for other requests, 0 for none",
            .range = at_least(0)}),
    option(&DrafterConfig::suffix_max_spec_factor,
           {.name = "suffix_decoding_max_spec_factor",
            .help = "suffix: draft at most this many times the length of the match",
            .range = at_least(0)}),
    option(&DrafterConfig::suffix_min_token_prob,
           {.name = "suffix_decoding_min_token_prob",
            .help = "suffix: stop where the estimated probability falls below",
            .range = between(0, 1)}),
    option(&DrafterConfig::suffix_store,
           {.name = "suffix_store",
            .help = "suffix: the file in which finished outputs outlive the engine, and which "
                    "engines share",
            .details = "Outputs of requests with a cache_salt are never written."}),
    option(&DrafterConfig::record,
           {.name = "record",
            .help = "replay: the file to which answers are added, with a hash of their prompts; "
                    "what it holds is drafted, too",
            .details = "Answers to requests with a cache_salt are never written."}),
    option(&DrafterConfig::replay,
           {.name = "replay",
            .help = "replay: a file of recorded answers that are drafted; it is not changed"}),
    option(&DrafterConfig::store_tokenizer,
           {.name = "store_tokenizer",
            .help = "suffix, replay: names the tokenizer whose ids files of answers hold, such as "
                    "a hash; a file of another tokenizer is refused"}),
    option(&DrafterConfig::model, {.name = "model",
                                   .help = "the checkpoint of a draft model with the target's "
                                           "vocabulary, or of a head for it; mtp: "
                                           "the target's own where it is left out"}),
    option(&DrafterConfig::quantization,
           {.name = "quantization",
            .help = "draft models and heads: how weights are held, as the engine's",
            .details = "What rounding changes is which drafts are accepted, never an answer: exact "
                       "verification compares with the target's own draws, and rejection sampling "
                       "with the distribution the draft was drawn from."}),
    option(&DrafterConfig::max_model_len,
           {.name = "max_model_len",
            .help = "draft models and heads: no drafts past this position",
            .range = at_least(1),
            .zero = "as far as target and drafter go"}),
    option(
        &DrafterConfig::sample_method,
        {.name = "draft_sample_method", .help = "draft models and heads: how tokens are picked"}),
    option(&DrafterConfig::min_confidence,
           {.name = "min_confidence",
            .help =
                "draft models and heads: stop where the probability of the whole draft falls below",
            .range = between(0, 1)}),
    option(&DrafterConfig::parallel_drafting,
           {.name = "parallel_drafting",
            .help = "draft_model, eagle3: all positions in one pass, over mask tokens (PARD, "
                    "P-EAGLE)"}),
    option(&DrafterConfig::token_map,
           {.name = "speculative_token_map",
            .help = "eagle, medusa, mtp, dflash: the tokens that are drafted",
            .details = "Distinct ids; empty for all tokens.",
            .range = at_least(0)}),
    option(&DrafterConfig::draft_tensor_parallel_size,
           {.name = "draft_tensor_parallel_size",
            .help = "draft models and heads: devices that share the drafter, the first ones of the "
                    "target's",
            .details = "A small model drafts sooner on one device, which waits for no others.",
            .range = between(1, 8),
            .zero = "the fastest, by what reading weights and waiting for each other take"}),
};

// Whether an option of this table changes anything for a method.
constexpr bool method_takes(DraftMethod method, std::string_view option) {
  if (option == "method") return true;
  if (option.starts_with("prompt_lookup_")) return method == DraftMethod::kNgram;
  if (option.starts_with("suffix_")) return method == DraftMethod::kSuffix;
  if (option == "record" || option == "replay") return method == DraftMethod::kReplay;
  if (option == "store_tokenizer") {
    return method == DraftMethod::kSuffix || method == DraftMethod::kReplay;
  }
  if (option == "parallel_drafting") {
    return method == DraftMethod::kDraftModel || method == DraftMethod::kEagle3;
  }
  if (option == "speculative_token_map") {
    return method == DraftMethod::kEagle || method == DraftMethod::kMedusa ||
           method == DraftMethod::kMtp || method == DraftMethod::kDflash;
  }
  return has_model(method);
}

enum class DraftLengthPolicy : uint8_t {
  // As much as is measured to pay, down to nothing. With verification other than exact the tokens
  // would depend on how much is drafted, so there it is the same as kFixed.
  kAuto,
  kFixed,  // num_speculative_tokens, or what the table says, whatever it costs
};
template <>
inline constexpr auto kEnumNames<DraftLengthPolicy> = std::to_array<EnumName<DraftLengthPolicy>>(
    {{DraftLengthPolicy::kAuto, "auto"}, {DraftLengthPolicy::kFixed, "fixed"}});

enum class Verification : uint8_t {
  kExact,      // tokens equal those of plain decoding, whatever is drafted
  kStandard,   // same distribution: accept with min(1, p/q), else draw from the residual
  kBlock,      // the same over a chain as a whole (Sun et al. 2024); accepts at least as much
  kSynthetic,  // accepts at given rates whatever the tokens: for measuring only
};
template <>
inline constexpr auto kEnumNames<Verification> =
    std::to_array<EnumName<Verification>>({{Verification::kExact, "exact"},
                                           {Verification::kStandard, "standard"},
                                           {Verification::kBlock, "block"},
                                           {Verification::kSynthetic, "synthetic"}});
// Whether drafts are weighed by their probabilities instead of compared with sampled tokens.
constexpr bool weighs_drafts(Verification verification) {
  return verification == Verification::kStandard || verification == Verification::kBlock;
}

// num_speculative_tokens for a number of decoding requests from first to last, inclusive.
struct BatchSizeRange {
  int first = 1;
  int last = 1;
  int num_speculative_tokens = 0;
};

// kSpeculativeOptions, below, says what members without a comment mean and which values they take.
struct SpeculativeConfig {
  int num_speculative_tokens = 0;
  DraftLengthPolicy draft_length_policy = DraftLengthPolicy::kAuto;
  std::vector<DrafterConfig> drafters;  // several: composite, in the order given
  bool merge_drafters = false;
  int tree_width = 1;
  int max_draft_nodes = 0;
  // The shape of every draft tree: a path of ranks for each node, where (1, 0) is the likeliest
  // child of the root's second likeliest. Empty: trees are as wide as tree_width, and the likeliest
  // nodes of each level get children.
  std::vector<std::vector<int>> speculative_token_tree;
  Verification verification = Verification::kExact;
  std::vector<double> synthetic_acceptance_rates;
  double synthetic_acceptance_length = 0.0;
  // Gaps and the tail carry the entry before. Empty: num_speculative_tokens throughout.
  std::vector<BatchSizeRange> num_speculative_tokens_per_batch_size;

  bool enabled() const { return num_speculative_tokens > 0; }
  bool adapts() const {
    return draft_length_policy == DraftLengthPolicy::kAuto && verification == Verification::kExact;
  }
  int max_nodes() const {
    if (!speculative_token_tree.empty()) return static_cast<int>(speculative_token_tree.size());
    return max_draft_nodes > 0 ? max_draft_nodes : num_speculative_tokens * tree_width;
  }
  // Nodes of a level of a draft tree that may get children.
  int widest_level() const { return speculative_token_tree.empty() ? tree_width : max_nodes(); }
  // For Verification::kSynthetic: per position, the share of steps that accept it among the steps
  // that accepted all earlier positions.
  std::vector<double> conditional_acceptance_rates() const;
  // Throws InvalidArgument naming the key and what to write instead.
  void validate() const;
};

inline constexpr std::tuple kSpeculativeOptions = {
    option(&SpeculativeConfig::num_speculative_tokens,
           {.name = "num_speculative_tokens",
            .help = "the longest draft of a request",
            .range = between(1, kMaxSpeculativeTokens)}),
    option(&SpeculativeConfig::draft_length_policy,
           {.name = "draft_length_policy",
            .help = "\"auto\": drafts are as long as is measured to pay; \"fixed\": "
                    "num_speculative_tokens always"}),
    option(&SpeculativeConfig::merge_drafters,
           {.name = "merge_drafters",
            .help = "put the drafts of all drafters into one tree, instead of taking the first "
                    "drafter that has one"}),
    option(&SpeculativeConfig::tree_width,
           {.name = "tree_width",
            .help = "alternatives considered at each position; above 1 drafts are trees",
            .range = between(1, 16)}),
    option(&SpeculativeConfig::max_draft_nodes, {.name = "max_draft_nodes",
                                                 .help = "tokens of one draft tree",
                                                 .range = between(1, kMaxDraftNodes),
                                                 .zero = "num_speculative_tokens * tree_width"}),
    option(&SpeculativeConfig::verification,
           {.name = "rejection_sample_method", .help = "how drafts are verified"}),
    option(&SpeculativeConfig::synthetic_acceptance_rates,
           {.name = "synthetic_acceptance_rates",
            .help = "synthetic: per position, the share of steps that accept it",
            .details = "No share is above the one before it.",
            .range = between(0, 1)}),
    option(&SpeculativeConfig::synthetic_acceptance_length,
           {.name = "synthetic_acceptance_length",
            .help = "synthetic: mean number of tokens that a step emits",
            .range = between(1, kMaxSpeculativeTokens + 1),
            .zero = "what synthetic_acceptance_rates say"}),
};

}  // namespace specdec
