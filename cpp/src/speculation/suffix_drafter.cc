#include "speculation/suffix_drafter.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

void add_to_tree(const SuffixDraft& draft, const DraftRequest& request, int id) {
  std::vector<int> added;  // the tree's node for each drafted token, -1 where the tree was full
  added.reserve(draft.nodes.size());
  for (const SuffixDraft::Node& drafted : draft.nodes) {
    const int parent = drafted.parent < 0 ? DraftTree::kRoot : added[drafted.parent];
    const float survival = static_cast<float>(drafted.probability);
    added.push_back(parent < 0 ? -1 : add_draft(request, parent, drafted.token, survival, id));
  }
}

}  // namespace

SuffixDrafter::SuffixDrafter(const DrafterConfig& config, int id, int vocab_size, ThreadPool* pool,
                             int64_t max_shared_bytes)
    : max_tree_depth_(config.suffix_max_tree_depth),
      max_spec_factor_(config.suffix_max_spec_factor),
      min_token_prob_(config.suffix_min_token_prob),
      id_(id),
      pool_(pool),
      max_outputs_(config.suffix_max_cached_requests),
      outputs_(config.suffix_max_cached_requests, max_shared_bytes),
      corpus_(config.suffix_max_tree_depth) {
  index_corpus(config, vocab_size, max_shared_bytes);
  if (!config.suffix_store.empty()) open_store(config, vocab_size);
}

void SuffixDrafter::index_corpus(const DrafterConfig& config, int vocab_size, int64_t max_bytes) {
  int64_t num_tokens = 0;
  int64_t num_left_out = 0;
  for (const std::vector<int32_t>& text : config.suffix_corpus) {
    for (const int32_t token : text) {
      if (token < 0 || token >= vocab_size) {
        throw InvalidArgument(
            "suffix_corpus", str_cat("token id must be in [0, ", vocab_size - 1, "], got ", token));
      }
      if (num_left_out > 0 || corpus_.used_bytes() > max_bytes) {
        ++num_left_out;
        continue;
      }
      corpus_.append(token);
      ++num_tokens;
    }
    corpus_.close_sequence();
  }
  if (num_left_out == 0) return;
  log_warning("suffix_corpus: the first ", num_tokens, " tokens fill the ", max_bytes >> 20,
              " MiB of their index; ", num_left_out, " tokens were left out");
}

void SuffixDrafter::open_store(const DrafterConfig& config, int vocab_size) {
  recorder_.emplace(AnswerStore({.option = "suffix_store",
                                 .path = config.suffix_store,
                                 .tokenizer = config.store_tokenizer,
                                 .vocab_size = vocab_size,
                                 .max_bytes = kMaxStoreBytes}));
  add_others();
}

void SuffixDrafter::add_output(std::string_view salt, std::span<const int32_t> output) {
  if (output.empty() || max_outputs_ == 0) return;
  outputs_.add(
      salt, [this] { return SuffixTree(max_tree_depth_); },
      [&](SuffixTree& tree) {
        for (const int32_t token : output) tree.append(token);
        tree.close_sequence();
      });
}

void SuffixDrafter::add_others() {
  const AnswerStore::Answers answers = recorder_->take_others();
  const auto most = static_cast<size_t>(max_outputs_);
  for (size_t i = answers.size() - std::min(answers.size(), most); i < answers.size(); ++i) {
    add_output({}, answers[i].tokens);
  }
}

void SuffixDrafter::draft(std::span<DraftRequest> requests) {
  draft_each(requests, nullptr, [this](const DraftRequest& request) {
    own_.try_emplace(request.sequence, max_tree_depth_);
  });
  draft_each(requests, pool_, [this](DraftRequest& request) {
    SuffixTree& own = own_.at(request.sequence);
    SPECDEC_CHECK_LE(own.open_length(), static_cast<int>(request.tokens.size()));
    for (const int32_t token : request.tokens.subspan(own.open_length())) own.append(token);

    const SuffixDraftLimits limits{.max_depth = request.max_depth,
                                   .max_nodes = request.max_nodes,
                                   .tree_width = request.tree_width,
                                   .max_spec_factor = max_spec_factor_,
                                   .min_token_prob = min_token_prob_};
    SuffixDraft best = own.draft_open(limits);
    const std::array<const SuffixTree*, 2> shared = {outputs_.find(request.cache_salt), &corpus_};
    for (const SuffixTree* tree : shared) {
      if (tree == nullptr) continue;
      SuffixDraft draft = tree->draft(request.tokens, limits);
      if (draft.score > best.score) best = std::move(draft);
    }
    request.match_length = best.nodes.empty() ? 0 : best.match_length;
    add_to_tree(best, request, id_);
  });
}

void SuffixDrafter::finish(const FinishedSequence& finished) {
  own_.erase(finished.sequence);
  if (recorder_.has_value()) add_others();
  const auto output = finished.tokens.subspan(finished.num_prompt_tokens);
  add_output(finished.cache_salt, output);
  if (!recorder_.has_value() || !finished.cache_salt.empty() || output.empty()) return;
  recorder_->add({.tokens = {output.begin(), output.end()}});
}

int64_t SuffixDrafter::memory_bytes() const {
  int64_t bytes = outputs_.memory_bytes() + corpus_.memory_bytes();
  for (const auto& [sequence, tree] : own_) {
    bytes += tree.memory_bytes() + static_cast<int64_t>(sizeof(tree) + sizeof(sequence));
  }
  return bytes;
}

}  // namespace specdec
