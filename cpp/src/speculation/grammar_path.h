// Where a completion stands in its grammar, and what the grammar allows along drafted paths. Pure.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "specdec/grammar.h"
#include "speculation/draft_tree.h"

namespace specdec {

// Paths are drafted tokens that follow what is committed. A path that goes on from the one before
// costs its last token alone; another one is walked from its beginning.
class GrammarPath {
 public:
  explicit GrammarPath(const Grammar& grammar);

  // Goes past a token for good. Does not throw: what went wrong is thrown by the next call.
  void commit(int32_t token);

  // Which tokens may follow `path`, [ceil(vocab_size / 32)] words of GrammarMatcher::fill_mask.
  // Valid until the next commit(), as are those of other paths. Throws GrammarError.
  std::span<const uint32_t> mask_after(std::span<const int32_t> path);
  bool allows(std::span<const int32_t> path, int32_t token);
  // Makes masks before they are asked for, as a thread of its own may: after `path`, or at each
  // node of a tree, of which null has the root alone. False where one fails; mask_after() throws
  // it.
  bool make_mask(std::span<const int32_t> path) noexcept;
  bool make_masks(const DraftTree* tree) noexcept;
  // Tokens that must come next. Throws GrammarError.
  std::vector<int32_t> forced_tokens();

 private:
  GrammarMatcher& matcher_after(std::span<const int32_t> path);

  std::unique_ptr<GrammarMatcher> root_;  // after what is committed
  std::unique_ptr<GrammarMatcher> tip_;   // after tip_path_; null where that is empty
  std::vector<int32_t> tip_path_;
  size_t num_words_;
  std::map<std::vector<int32_t>, std::vector<uint32_t>> masks_;
  std::exception_ptr error_;
};

}  // namespace specdec
