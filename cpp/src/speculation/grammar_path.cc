#include "speculation/grammar_path.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/token_mask.h"
#include "specdec/error.h"

namespace specdec {
namespace {

template <class Work>
auto as_grammar_error(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw GrammarError(error.what());
  }
}

}  // namespace

GrammarPath::GrammarPath(const Grammar& grammar)
    : root_(grammar.make_matcher()),
      num_words_((static_cast<size_t>(grammar.vocab_size()) + 31) / 32) {}

void GrammarPath::commit(int32_t token) {
  masks_.clear();
  const bool is_on_path = !tip_path_.empty() && tip_path_.front() == token;
  if (is_on_path) {
    tip_path_.erase(tip_path_.begin());
  } else {
    tip_path_.clear();
  }
  std::unique_ptr<GrammarMatcher> tip = tip_path_.empty() ? std::move(tip_) : nullptr;
  if (error_ != nullptr) return;
  // The matcher keeps whatever its library computed for a mask.
  if (is_on_path && tip != nullptr) {
    root_ = std::move(tip);
    return;
  }
  try {
    as_grammar_error([&] { root_->advance(token); });
  } catch (...) {
    error_ = std::current_exception();
  }
}

std::span<const uint32_t> GrammarPath::mask_after(std::span<const int32_t> path) {
  std::vector<int32_t> key(path.begin(), path.end());
  if (const auto known = masks_.find(key); known != masks_.end()) return known->second;
  std::vector<uint32_t> mask(num_words_);
  as_grammar_error([&] { matcher_after(path).fill_mask(mask); });
  return masks_.emplace(std::move(key), std::move(mask)).first->second;
}

bool GrammarPath::allows(std::span<const int32_t> path, int32_t token) {
  return is_in(mask_after(path), token);
}

bool GrammarPath::make_mask(std::span<const int32_t> path) noexcept {
  try {
    mask_after(path);
    return true;
  } catch (...) {  // thrown again by the next call
    return false;
  }
}

bool GrammarPath::make_masks(const DraftTree* tree) noexcept try {
  bool all_made = make_mask({});
  for (int node = 1; tree != nullptr && node < tree->num_nodes(); ++node) {
    all_made &= make_mask(tree->path(node));
  }
  return all_made;
} catch (const std::bad_alloc&) {  // from copying a path
  return false;
}

std::vector<int32_t> GrammarPath::forced_tokens() {
  return as_grammar_error([&] { return matcher_after({}).forced_tokens(); });
}

GrammarMatcher& GrammarPath::matcher_after(std::span<const int32_t> path) {
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (path.empty()) return *root_;
  // Moved out while it advances, because a matcher that has failed is of no further use.
  std::unique_ptr<GrammarMatcher> tip = std::move(tip_);
  const bool goes_on = tip != nullptr && tip_path_.size() <= path.size() &&
                       std::ranges::equal(tip_path_, path.first(tip_path_.size()));
  if (!goes_on) {
    tip_path_.clear();
    tip = root_->clone();
  }
  for (const int32_t token : path.subspan(tip_path_.size())) {
    tip->advance(token);
    tip_path_.push_back(token);
  }
  tip_ = std::move(tip);
  return *tip_;
}

}  // namespace specdec
