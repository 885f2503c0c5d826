#include "speculation/custom_drafter.h"

#include <algorithm>
#include <utility>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// The drafter gives only the order of its drafts, not how good they are.
constexpr float kDecay = 0.85f;

}  // namespace

CustomDrafterAdapter::CustomDrafterAdapter(std::shared_ptr<CustomDrafter> custom, int id,
                                           int vocab_size)
    : custom_(std::move(custom)), id_(id), vocab_size_(vocab_size) {}

void CustomDrafterAdapter::check(std::span<const int32_t> continuation) const {
  for (const int32_t token : continuation) {
    if (token >= 0 && token < vocab_size_) continue;
    throw InvalidArgument(
        str_cat("custom drafter ", id_),
        str_cat("propose() must return token ids in [0, ", vocab_size_ - 1, "], got ", token));
  }
}

bool CustomDrafterAdapter::may_branch(const DraftRequest& request, int parent,
                                      int32_t token) const {
  const DraftTree& tree = *request.tree;
  if (tree.find_child(parent, token) >= 0) return true;
  const auto attempts = tree.attempts(parent);
  const auto own = std::count_if(attempts.begin(), attempts.end(), [&](const auto& attempt) {
    return attempt.distribution < 0 && tree.drafter(attempt.child) == id_;
  });
  return own < request.tree_width;
}

void CustomDrafterAdapter::add(const DraftRequest& request, std::span<const int32_t> continuation,
                               int order) const {
  int node = DraftTree::kRoot;
  float survival = 1.0f / static_cast<float>(order + 1);
  const size_t depth = std::min(continuation.size(), static_cast<size_t>(request.max_depth));
  for (const int32_t token : continuation.first(depth)) {
    if (!may_branch(request, node, token)) return;
    survival *= kDecay;
    node = add_draft(request, node, token, survival, id_);
    if (node < 0) return;
  }
}

void CustomDrafterAdapter::draft(std::span<DraftRequest> requests) {
  draft_each(requests, nullptr, [this](const DraftRequest& request) {
    const auto continuations = custom_->propose(request.tokens, request.max_depth);
    for (const auto& continuation : continuations) check(continuation);
    int order = 0;
    for (const auto& continuation : continuations) add(request, continuation, order++);
  });
}

}  // namespace specdec
