// Suffix decoding: drafts the tokens that followed the last tokens earlier, in this sequence, in
// the outputs of finished ones or in a corpus.
#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <span>
#include <unordered_map>

#include "specdec/speculative_config.h"
#include "speculation/drafter.h"
#include "speculation/suffix_outputs.h"
#include "speculation/suffix_store.h"
#include "speculation/suffix_tree.h"

namespace specdec {

// Each sequence has a tree of its prompt and output. The outputs of finished sequences of one
// cache_salt share a tree; of all outputs together the oldest are evicted beyond
// suffix_max_cached_requests or the memory limit. The corpus has a tree for everybody, cut at the
// same limit. The draft with the highest score is taken; between equal scores that of the
// sequence's own tree, then that of the outputs.
//
// With suffix_store the outputs without a salt begin with those of the file, which is written again
// after every kOutputsPerWrite outputs, by a thread of its own, and when the drafter ends.
class SuffixDrafter : public Drafter {
 public:
  static constexpr int64_t kMaxSharedBytes = int64_t{256} << 20;
  static constexpr int kOutputsPerWrite = 64;

  // Drafts on the threads of `pool`, which is borrowed; null: on the caller's thread. Throws
  // InvalidArgument for a store that cannot be read or written (SuffixStore), and for a token of
  // the corpus outside of the vocabulary.
  SuffixDrafter(const DrafterConfig& config, int id, int vocab_size, ThreadPool* pool = nullptr,
                int64_t max_shared_bytes = kMaxSharedBytes);
  ~SuffixDrafter() override;

  DrafterTraits traits() const override { return {}; }
  void draft(std::span<DraftRequest> requests) override;
  void finish(const FinishedSequence& finished) override;
  int64_t memory_bytes() const override;

  int num_shared() const { return outputs_.num_outputs(); }

 private:
  void index_corpus(const DrafterConfig& config, int vocab_size, int64_t max_bytes);
  void open_store(const DrafterConfig& config, int vocab_size);
  SuffixStore::Outputs stored_outputs() const;
  // Writes in a thread of its own, unless the last write is still under way.
  void write_store();

  int max_tree_depth_;
  double max_spec_factor_;
  double min_token_prob_;
  int id_;
  ThreadPool* pool_;
  std::unordered_map<uint64_t, SuffixTree> own_;  // by sequence
  SuffixOutputs outputs_;
  SuffixTree corpus_;
  std::optional<SuffixStore> store_;
  int num_unwritten_ = 0;      // outputs
  std::future<void> writing_;  // the last write
};

}  // namespace specdec
