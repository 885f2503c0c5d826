#include "specdec/speculative_config.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "config/option_checks.h"
#include "core/str_cat.h"
#include "specdec/error.h"
#include "specdec/quantization.h"

namespace specdec {
namespace {

constexpr const char* kBatchSizeTable = "num_speculative_tokens_per_batch_size";
constexpr const char* kSyntheticRates = "synthetic_acceptance_rates";
constexpr const char* kSyntheticLength = "synthetic_acceptance_length";

void validate_ngram(const DrafterConfig& drafter) {
  if (drafter.prompt_lookup_max >= drafter.prompt_lookup_min) return;
  throw InvalidArgument("prompt_lookup_max",
                        str_cat("must be at least prompt_lookup_min = ", drafter.prompt_lookup_min,
                                ", got ", drafter.prompt_lookup_max));
}

void validate_model(const DrafterConfig& drafter) {
  if (drafter.model.empty() && drafter.method != DraftMethod::kMtp) {
    throw InvalidArgument("model", str_cat("method '", name_of(drafter.method), "' needs ",
                                           is_draft_head(drafter.method)
                                               ? "the checkpoint of a head for the target"
                                               : "the checkpoint of a model with the target's "
                                                 "vocabulary"));
  }
  parse_quantization(drafter.quantization);
  if (drafter.parallel_drafting && !method_takes(drafter.method, "parallel_drafting")) {
    throw InvalidArgument("parallel_drafting",
                          str_cat("needs method 'draft_model' or 'eagle3', got '",
                                  name_of(drafter.method), "': leave it out"));
  }
  constexpr const char* kTokenMap = "speculative_token_map";
  if (!drafter.token_map.empty() && !method_takes(drafter.method, kTokenMap)) {
    throw InvalidArgument(
        kTokenMap,
        str_cat(
            "cuts the target's output head, which method '", name_of(drafter.method),
            "' does not draft with: leave it out, or use 'eagle', 'medusa', 'mtp' or 'dflash'"));
  }
}

void validate_drafter(const DrafterConfig& drafter) {
  check_options(drafter, kDrafterOptions);
  if (has_model(drafter.method)) return validate_model(drafter);
  if (drafter.method == DraftMethod::kNgram) return validate_ngram(drafter);
  if (drafter.method == DraftMethod::kCustom && drafter.custom == nullptr) {
    throw InvalidArgument("method", "'custom_class' needs the drafter itself: an object to call");
  }
}

void validate_tree(const SpeculativeConfig& config) {
  if (config.max_draft_nodes != 0 && config.max_draft_nodes < config.num_speculative_tokens) {
    throw InvalidArgument("max_draft_nodes",
                          str_cat("must be at least num_speculative_tokens = ",
                                  config.num_speculative_tokens, ", got ", config.max_draft_nodes));
  }
  if (config.max_nodes() > kMaxDraftNodes) {
    throw InvalidArgument(
        "max_draft_nodes",
        str_cat("num_speculative_tokens * tree_width = ", config.max_nodes(),
                " drafts are too many: give max_draft_nodes, at most ", kMaxDraftNodes));
  }
}

std::string text_of(const std::vector<int>& path) {
  std::string text = "(";
  for (const int rank : path) text += str_cat(rank, path.size() == 1 ? "," : ", ");
  if (path.size() > 1) text.resize(text.size() - 2);
  return text + ")";
}

void check_token_tree(bool is_good, const std::string& message) {
  if (!is_good) throw InvalidArgument("speculative_token_tree", message);
}

// Checks that the tree has every node's parent and its siblings of smaller rank.
void validate_paths(const std::vector<std::vector<int>>& paths) {
  const std::set<std::vector<int>> all(paths.begin(), paths.end());
  check_token_tree(all.size() == paths.size(), "has a path twice");
  for (const std::vector<int>& path : all) {
    check_token_tree(!path.empty(), "has an empty path: leave the root out");
    check_token_tree(std::ranges::all_of(path, [](int rank) { return rank >= 0; }),
                     str_cat("ranks start at 0, got ", text_of(path)));
    std::vector<int> needed = path;
    if (needed.back() > 0) {
      --needed.back();
    } else {
      needed.pop_back();
    }
    check_token_tree(needed.empty() || all.contains(needed),
                     str_cat("has ", text_of(path), " without ", text_of(needed)));
  }
}

void validate_token_tree(const SpeculativeConfig& config) {
  const std::vector<std::vector<int>>& paths = config.speculative_token_tree;
  if (paths.empty()) return;
  validate_paths(paths);
  int depth = 0;
  int width = 0;
  for (const std::vector<int>& path : paths) {
    depth = std::max(depth, static_cast<int>(path.size()));
    width = std::max(width, path.back() + 1);
  }
  check_token_tree(static_cast<int>(paths.size()) <= kMaxDraftNodes,
                   str_cat("has ", paths.size(), " nodes, at most ", kMaxDraftNodes, " may be"));
  check_token_tree(config.drafters.size() == 1 && has_model(config.drafters[0].method),
                   "needs one drafter, a draft model or head: others draft without ranks");
  check_token_tree(depth == config.num_speculative_tokens,
                   str_cat("is ", depth, " deep: num_speculative_tokens must be ", depth, ", got ",
                           config.num_speculative_tokens));
  check_token_tree(width == config.tree_width,
                   str_cat("has up to ", width, " children of a node: tree_width must be ", width,
                           ", got ", config.tree_width));
  check_token_tree(config.max_draft_nodes == 0,
                   "says how many nodes there are: leave "
                   "max_draft_nodes out");
}

void validate_synthetic(const SpeculativeConfig& config) {
  const std::vector<double>& rates = config.synthetic_acceptance_rates;
  const double length = config.synthetic_acceptance_length;
  const char* given = length != 0.0 ? kSyntheticLength : kSyntheticRates;
  if (config.verification != Verification::kSynthetic) {
    if (rates.empty() && length == 0.0) return;
    throw InvalidArgument(given, "needs rejection_sample_method 'synthetic'");
  }
  if (rates.empty() == (length == 0.0)) {
    throw InvalidArgument("rejection_sample_method",
                          str_cat("'synthetic' needs either ", kSyntheticRates, " or ",
                                  kSyntheticLength, ", such as ", kSyntheticLength, " = 2.5"));
  }
  if (length > config.num_speculative_tokens + 1) {
    throw InvalidArgument(kSyntheticLength,
                          str_cat("must be in [1, ", config.num_speculative_tokens + 1,
                                  "] (num_speculative_tokens + 1), got ", length));
  }
  if (rates.empty()) return;
  if (static_cast<int>(rates.size()) != config.num_speculative_tokens) {
    throw InvalidArgument(kSyntheticRates,
                          str_cat("has ", rates.size(), " entries for num_speculative_tokens = ",
                                  config.num_speculative_tokens, ": give one for each"));
  }
  if (!std::ranges::is_sorted(rates, std::greater())) {
    throw InvalidArgument(kSyntheticRates,
                          "must not rise: a position is accepted only with all before it");
  }
}

void validate_block(const SpeculativeConfig& config) {
  if (config.verification != Verification::kBlock) return;
  if (config.tree_width > 1) {
    throw InvalidArgument("tree_width",
                          "rejection_sample_method 'block' verifies chains: set tree_width to 1, "
                          "or use 'standard' for trees");
  }
  if (config.merge_drafters) {
    throw InvalidArgument("merge_drafters",
                          "rejection_sample_method 'block' verifies chains: leave merge_drafters "
                          "out, or use 'standard' for trees");
  }
}

void validate_batch_size_range(const BatchSizeRange& range) {
  const std::string entry =
      str_cat("[", range.first, ", ", range.last, ", ", range.num_speculative_tokens, "]");
  if (range.first < 1) {
    throw InvalidArgument(kBatchSizeTable, str_cat("batch sizes start at 1, got ", entry));
  }
  if (range.last < range.first) {
    throw InvalidArgument(kBatchSizeTable,
                          str_cat("write [first, last, tokens] with first <= last, got ", entry));
  }
  if (range.num_speculative_tokens < 0) {
    throw InvalidArgument(kBatchSizeTable,
                          str_cat("the number of tokens must be 0 or more, got ", entry));
  }
}

// Checks that ranges do not overlap and the first starts at 1. Ends are inclusive; the order of the
// ranges does not matter.
void validate_batch_sizes(std::vector<BatchSizeRange> ranges) {
  if (ranges.empty()) return;
  for (const BatchSizeRange& range : ranges) validate_batch_size_range(range);
  std::ranges::sort(ranges, {}, &BatchSizeRange::first);
  if (ranges[0].first != 1) {
    throw InvalidArgument(kBatchSizeTable, str_cat("the first range must start at 1, it starts at ",
                                                   ranges[0].first));
  }
  for (size_t i = 1; i < ranges.size(); ++i) {
    const BatchSizeRange& before = ranges[i - 1];
    const BatchSizeRange& after = ranges[i];
    if (after.first > before.last) continue;
    throw InvalidArgument(kBatchSizeTable,
                          str_cat("ranges must not overlap: [", before.first, ", ", before.last,
                                  "] and [", after.first, ", ", after.last, "], both ends count"));
  }
}

}  // namespace

std::vector<double> SpeculativeConfig::conditional_acceptance_rates() const {
  std::vector<double> rates;
  for (int i = 0; i < num_speculative_tokens; ++i) {
    if (synthetic_acceptance_length != 0.0) {
      // So many are always accepted, one more sometimes: the number accepted differs by one at
      // most.
      rates.push_back(std::clamp(synthetic_acceptance_length - 1.0 - i, 0.0, 1.0));
    } else {
      const double before = i == 0 ? 1.0 : synthetic_acceptance_rates[i - 1];
      rates.push_back(before > 0.0 ? synthetic_acceptance_rates[i] / before : 0.0);
    }
  }
  return rates;
}

void SpeculativeConfig::validate() const {
  if (num_speculative_tokens == 0 && drafters.empty()) return;
  check_options(*this, kSpeculativeOptions);
  if (drafters.empty()) {
    throw InvalidArgument("method",
                          "num_speculative_tokens needs a method that drafts them: 'ngram', "
                          "'suffix', 'replay', 'draft_model', 'eagle', 'eagle3', 'medusa', "
                          "'mlp_speculator' or 'custom_class'");
  }
  if (merge_drafters && drafters.size() == 1) {
    throw InvalidArgument("merge_drafters", "needs several drafters: list them in drafters");
  }
  validate_token_tree(*this);
  validate_tree(*this);
  validate_synthetic(*this);
  validate_block(*this);
  for (const DrafterConfig& drafter : drafters) validate_drafter(drafter);
  validate_batch_sizes(num_speculative_tokens_per_batch_size);
}

}  // namespace specdec
