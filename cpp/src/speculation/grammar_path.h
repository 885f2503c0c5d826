// The state of a completion in its grammar, and the tokens that the grammar allows along drafted
// paths. Pure.
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

// A path is the drafted tokens that follow the committed ones. A path that extends the previous one
// costs one token; any other path is walked from its beginning.
class GrammarPath {
 public:
  explicit GrammarPath(const Grammar& grammar);

  // Advances past a committed token. Does not throw; the next call throws what went wrong.
  void commit(int32_t token);

  // Which tokens may follow `path`, [ceil(vocab_size / 32)] words of GrammarMatcher::fill_mask.
  // Valid until the next commit(), and so are the masks of other paths. Throws GrammarError.
  std::span<const uint32_t> mask_after(std::span<const int32_t> path);
  bool allows(std::span<const int32_t> path, int32_t token);
  // Computes masks ahead of their use, possibly on another thread: after `path`, or at each node of
  // a tree (null: at the root alone). Returns false where one fails; mask_after() then throws the
  // error.
  bool make_mask(std::span<const int32_t> path) noexcept;
  bool make_masks(const DraftTree* tree) noexcept;
  // Tokens that must come next. Throws GrammarError.
  std::vector<int32_t> forced_tokens();

 private:
  GrammarMatcher& matcher_after(std::span<const int32_t> path);

  std::unique_ptr<GrammarMatcher> root_;  // state after the committed tokens
  std::unique_ptr<GrammarMatcher> tip_;   // state after tip_path_; null where that is empty
  std::vector<int32_t> tip_path_;
  size_t num_words_;
  std::map<std::vector<int32_t>, std::vector<uint32_t>> masks_;
  std::exception_ptr error_;
};

}  // namespace specdec
