// How an engine drafts tokens ahead and verifies them. Key names in Python are vLLM's where it has
// the feature; see python/specdec_native/speculative_config.py.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace specdec {

// A drafter of your own. Called by the thread that steps the engine, one request at a time.
class CustomDrafter {
 public:
  virtual ~CustomDrafter() = default;

  // Continuations of `tokens` (prompt and output so far), each at most max_tokens long, most likely
  // first; they are merged into one tree. Empty for no draft. Tokens outside the vocabulary are an
  // error of the request.
  virtual std::vector<std::vector<int32_t>> propose(std::span<const int32_t> tokens,
                                                    int max_tokens) = 0;
};

enum class DraftMethod : uint8_t { kNgram, kSuffix, kDraftModel, kCustom };
inline constexpr std::array<std::pair<DraftMethod, const char*>, 4> kDraftMethodNames{
    {{DraftMethod::kNgram, "ngram"},
     {DraftMethod::kSuffix, "suffix"},
     {DraftMethod::kDraftModel, "draft_model"},
     {DraftMethod::kCustom, "custom"}}};
std::string name_of(DraftMethod method);

// How a draft model picks its tokens, after the request's own processors.
enum class DraftSampling : uint8_t {
  kArgmax,       // the most likely ones, whatever the temperature
  kCoupled,      // with the noise the target will use: agrees as often as it can
  kIndependent,  // with noise of its own, for rejection verification
};

struct DrafterConfig {
  DraftMethod method = DraftMethod::kNgram;

  int prompt_lookup_min = 1;  // ngram: shortest and longest match, in tokens
  int prompt_lookup_max = 5;

  int suffix_max_tree_depth = 24;          // suffix: longest stored pattern, in tokens
  int suffix_max_cached_requests = 10000;  // finished outputs kept for others; 0: none
  double suffix_max_spec_factor = 1.0;     // draft at most factor * match length tokens
  double suffix_min_token_prob = 0.1;      // stop where the estimated probability falls below

  std::string model;  // draft_model: directory of a checkpoint with the target's vocabulary
  // draft_model: as EngineConfig::quantization. What a draft loses by rounding costs acceptance at
  // most, never an answer: exact verification compares with the target's own draws, and rejection
  // with the distribution the draft drew from, whatever that is.
  std::string quantization = "int8";
  // draft_model: it drafts no further than this position; 0: as far as both models go.
  int max_model_len = 0;
  DraftSampling sampling = DraftSampling::kCoupled;
  double min_confidence = 0.0;  // draft_model: stop below this probability of the path; 0: never

  std::shared_ptr<CustomDrafter> custom;
};

enum class DraftLengthPolicy : uint8_t {
  // As much as is measured to pay, down to nothing.
  // With verification other than exact the tokens would depend on how much is drafted, so there it
  // is the same as kFixed.
  kAuto,
  kFixed,  // num_speculative_tokens, or what the table says, whatever it costs
};

enum class Verification : uint8_t {
  kExact,      // tokens are those of plain decoding, whatever is drafted
  kRejection,  // same distribution: accept with min(1, p/q), else draw from the residual
  kBlock,      // the same over a chain as a whole (Sun et al. 2024); accepts at least as much
  kSynthetic,  // accepts at given rates whatever the tokens: for measuring only
};
// Whether drafts are weighed by their probabilities instead of compared with sampled tokens.
constexpr bool weighs_drafts(Verification verification) {
  return verification == Verification::kRejection || verification == Verification::kBlock;
}

// num_speculative_tokens for a number of decoding requests from first to last, inclusive.
struct BatchSizeRange {
  int first = 1;
  int last = 1;
  int num_speculative_tokens = 0;
};

struct SpeculativeConfig {
  int num_speculative_tokens = 0;  // longest draft path of a request; 0: no speculation
  DraftLengthPolicy draft_length_policy = DraftLengthPolicy::kAuto;  // how much of it is used
  std::vector<DrafterConfig> drafters;  // several: composite, in the order given
  bool merge_drafters =
      false;                // composite: graft all drafts into one tree, not the first non-empty
  int tree_width = 1;       // continuations considered at a node; 1: chains
  int max_draft_nodes = 0;  // drafted tokens of a request and step; 0: tokens * width
  Verification verification = Verification::kExact;
  std::vector<double> synthetic_acceptance_rates;  // of position i given all before; one per token
  // Sorted; gaps and the tail carry the entry before. Empty: num_speculative_tokens throughout.
  std::vector<BatchSizeRange> num_speculative_tokens_per_batch_size;

  bool enabled() const { return num_speculative_tokens > 0; }
  bool adapts() const {
    return draft_length_policy == DraftLengthPolicy::kAuto && verification == Verification::kExact;
  }
  int max_nodes() const {
    return max_draft_nodes > 0 ? max_draft_nodes : num_speculative_tokens * tree_width;
  }
  // Throws InvalidArgument naming the key and what to write instead.
  void validate() const;
};

// Rates of K positions whose mean acceptance length (accepted + 1) is `length` in [1, K + 1], with
// the least variance: position i is accepted given all before with the rate returned.
std::vector<double> synthetic_rates(double length, int num_speculative_tokens);

}  // namespace specdec
