// Suffix decoding: drafts the tokens that followed the last tokens earlier, in this sequence, in
// the outputs of finished ones or in a corpus.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "specdec/speculative_config.h"
#include "speculation/answer_recorder.h"
#include "speculation/drafter.h"
#include "speculation/salted_texts.h"
#include "speculation/suffix_tree.h"

namespace specdec {

// Each sequence has a tree of its prompt and output. The outputs of finished sequences of one
// cache_salt share a tree; all outputs together stay within suffix_max_cached_requests and the
// memory limit (SaltedTexts). The corpus has a tree for everybody, cut at the same limit. The draft
// with the highest score is taken; between equal scores that of the sequence's own tree, then that
// of the outputs.
//
// With suffix_store outputs without a salt are added to the file (AnswerRecorder), and those that
// the file has or that other engines add are drafted from, too.
class SuffixDrafter : public Drafter {
 public:
  static constexpr int64_t kMaxSharedBytes = int64_t{256} << 20;
  // More tokens would be forgotten while they are indexed at the start.
  static constexpr int64_t kMaxStoreBytes = int64_t{32} << 20;

  // Drafts on the threads of `pool`, which is borrowed; null: on the caller's thread. Throws
  // InvalidArgument for a store that cannot be read or written (AnswerStore), and for a token of
  // the corpus outside of the vocabulary.
  SuffixDrafter(const DrafterConfig& config, int id, int vocab_size, ThreadPool* pool = nullptr,
                int64_t max_shared_bytes = kMaxSharedBytes);

  DrafterTraits traits() const override { return {}; }
  void draft(std::span<DraftRequest> requests) override;
  void finish(const FinishedSequence& finished) override;
  int64_t memory_bytes() const override;

  int num_shared() const { return outputs_.num_texts(); }

 private:
  void index_corpus(const DrafterConfig& config, int vocab_size, int64_t max_bytes);
  void open_store(const DrafterConfig& config, int vocab_size);
  void add_output(std::string_view salt, std::span<const int32_t> output);
  void add_others();

  int max_tree_depth_;
  double max_spec_factor_;
  double min_token_prob_;
  int id_;
  ThreadPool* pool_;
  std::unordered_map<uint64_t, SuffixTree> own_;  // by sequence
  int max_outputs_;
  SaltedTexts<SuffixTree> outputs_;
  SuffixTree corpus_;
  std::optional<AnswerRecorder> recorder_;
};

}  // namespace specdec
