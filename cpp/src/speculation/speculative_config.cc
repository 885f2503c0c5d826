#include "specdec/speculative_config.h"

#include <algorithm>
#include <string>

#include "core/str_cat.h"
#include "specdec/error.h"
#include "specdec/quantization.h"
#include "speculation/draft_schedule.h"

namespace specdec {
namespace {

constexpr int kMaxSpeculativeTokens = 128;
constexpr int kMaxTreeWidth = 16;
constexpr int kMaxDraftNodes = 512;
constexpr int kMaxLookup = 128;  // tokens of an n-gram; every length up to it has an index

// Written as "throw unless it holds", so that NaN, for which nothing holds, is refused.
template <class Value>
void require(bool holds, const char* key, const std::string& range, const Value& value) {
  if (!holds) throw InvalidArgument(key, str_cat("must be ", range, ", got ", value));
}

void validate_ngram(const DrafterConfig& drafter) {
  require(drafter.prompt_lookup_max <= kMaxLookup, "prompt_lookup_max",
          str_cat("at most ", kMaxLookup), drafter.prompt_lookup_max);
  require(drafter.prompt_lookup_min >= 1, "prompt_lookup_min", "at least 1",
          drafter.prompt_lookup_min);
  require(drafter.prompt_lookup_max >= drafter.prompt_lookup_min, "prompt_lookup_max",
          str_cat("at least prompt_lookup_min = ", drafter.prompt_lookup_min),
          drafter.prompt_lookup_max);
}

void validate_suffix(const DrafterConfig& drafter) {
  require(drafter.suffix_max_tree_depth >= 1, "suffix_decoding_max_tree_depth", "at least 1",
          drafter.suffix_max_tree_depth);
  require(drafter.suffix_max_cached_requests >= 0, "suffix_decoding_max_cached_requests",
          "0 (nothing shared between requests) or more", drafter.suffix_max_cached_requests);
  require(drafter.suffix_max_spec_factor >= 0, "suffix_decoding_max_spec_factor", "0 or more",
          drafter.suffix_max_spec_factor);
  require(drafter.suffix_min_token_prob >= 0 && drafter.suffix_min_token_prob <= 1,
          "suffix_decoding_min_token_prob", "in [0, 1]", drafter.suffix_min_token_prob);
}

void validate_draft_model(const DrafterConfig& drafter, Verification verification) {
  if (drafter.model.empty()) {
    throw InvalidArgument("model",
                          "method 'draft_model' needs the checkpoint of a model with the "
                          "target's vocabulary");
  }
  parse_quantization(drafter.quantization);
  require(drafter.min_confidence >= 0 && drafter.min_confidence <= 1, "min_confidence", "in [0, 1]",
          drafter.min_confidence);
  if (weighs_drafts(verification) && drafter.sampling == DraftSampling::kCoupled) {
    throw InvalidArgument(
        "draft_sample_method",
        str_cat("coupled drafts share the target's noise, which rejection_sample_method '",
                verification == Verification::kBlock ? "block" : "standard",
                "' must not see: use 'probabilistic'"));
  }
}

void validate_drafter(const DrafterConfig& drafter, Verification verification) {
  switch (drafter.method) {
    case DraftMethod::kNgram:
      return validate_ngram(drafter);
    case DraftMethod::kSuffix:
      return validate_suffix(drafter);
    case DraftMethod::kDraftModel:
      return validate_draft_model(drafter, verification);
    case DraftMethod::kCustom:
      if (drafter.custom == nullptr) {
        throw InvalidArgument("method", "'custom' needs the drafter itself: an object to call");
      }
      return;
  }
}

void validate_tree(const SpeculativeConfig& config) {
  require(config.tree_width >= 1 && config.tree_width <= kMaxTreeWidth, "tree_width",
          str_cat("in [1, ", kMaxTreeWidth, "]"), config.tree_width);
  if (config.max_draft_nodes != 0) {
    require(config.max_draft_nodes >= 1 && config.max_draft_nodes <= kMaxDraftNodes,
            "max_draft_nodes", str_cat("in [1, ", kMaxDraftNodes, "]"), config.max_draft_nodes);
    require(config.max_draft_nodes >= config.num_speculative_tokens, "max_draft_nodes",
            str_cat("at least num_speculative_tokens = ", config.num_speculative_tokens),
            config.max_draft_nodes);
  } else if (config.max_nodes() > kMaxDraftNodes) {
    throw InvalidArgument(
        "max_draft_nodes",
        str_cat("num_speculative_tokens * tree_width = ", config.max_nodes(),
                " drafts are too many: give max_draft_nodes, at most ", kMaxDraftNodes));
  }
}

void validate_verification(const SpeculativeConfig& config) {
  const std::vector<double>& rates = config.synthetic_acceptance_rates;
  if (config.verification != Verification::kSynthetic) {
    if (rates.empty()) return;
    throw InvalidArgument("synthetic_acceptance_rates",
                          "needs rejection_sample_method 'synthetic'");
  }
  const int num_rates = static_cast<int>(rates.size());
  if (num_rates != config.num_speculative_tokens) {
    throw InvalidArgument("synthetic_acceptance_rates",
                          str_cat("rejection_sample_method 'synthetic' needs one rate for each of "
                                  "the num_speculative_tokens = ",
                                  config.num_speculative_tokens, " tokens, got ", num_rates));
  }
  for (const double rate : rates) {
    require(rate >= 0 && rate <= 1, "synthetic_acceptance_rates", "in [0, 1]", rate);
  }
}

void validate_block(const SpeculativeConfig& config) {
  if (config.verification != Verification::kBlock) return;
  if (config.tree_width > 1) {
    throw InvalidArgument("tree_width",
                          "rejection_sample_method 'block' verifies chains: set tree_width to 1, "
                          "or use 'standard' for trees");
  }
  if (config.merge_drafters && config.drafters.size() > 1) {
    throw InvalidArgument("merge_drafters",
                          "rejection_sample_method 'block' verifies chains: leave merge_drafters "
                          "out, or use 'standard' for trees");
  }
}

}  // namespace

std::string name_of(DraftMethod method) {
  const auto named =
      std::ranges::find(kDraftMethodNames, method, &std::pair<DraftMethod, const char*>::first);
  return named->second;
}

void SpeculativeConfig::validate() const {
  if (num_speculative_tokens == 0 && drafters.empty()) return;
  require(num_speculative_tokens >= 1 && num_speculative_tokens <= kMaxSpeculativeTokens,
          "num_speculative_tokens", str_cat("in [1, ", kMaxSpeculativeTokens, "]"),
          num_speculative_tokens);
  if (drafters.empty()) {
    throw InvalidArgument("method",
                          "num_speculative_tokens needs a method that drafts them: 'ngram', "
                          "'suffix', 'draft_model' or 'custom'");
  }
  validate_tree(*this);
  validate_verification(*this);
  validate_block(*this);
  for (const DrafterConfig& drafter : drafters) validate_drafter(drafter, verification);
  DraftSchedule schedule(*this);  // checks the table
}

}  // namespace specdec
