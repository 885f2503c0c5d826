// Rules of a step that the host and a device's kernels share. They are plain constexpr functions,
// written once: nvcc compiles them for the device (--expt-relaxed-constexpr).
#pragma once

#include <cstdint>

namespace specdec {

// ---- sampling

// Below this temperature the likeliest token is taken, and nothing is drawn.
inline constexpr float kGreedyTemperature = 1e-5f;
constexpr bool is_greedy(float temperature) { return temperature < kGreedyTemperature; }

// ---- how much is drafted

// The shape of the trees a drafter grows.
struct TreeShape {
  int width = 1;      // continuations of a node, and nodes of a level that are continued; 1: chains
  int max_nodes = 0;  // drafts in all: the root is not counted

  // Drafts of a tree that may get `depth` tokens deep.
  constexpr int num_nodes(int depth) const {
    return depth * width < max_nodes ? depth * width : max_nodes;
  }
};

// How deep a step may draft for a request with `num_tokens` committed tokens that ends at
// `max_num_tokens`: at most `max_depth`, and leaving room for the token that every step commits
// after the accepted drafts.
constexpr int draft_depth_limit(int max_depth, int num_tokens, int max_num_tokens) {
  const int room = max_num_tokens - num_tokens - 1;
  const int limit = max_depth < room ? max_depth : room;
  return limit > 0 ? limit : 0;
}

// What a draft head drafts with in one pass: rows at the positions from the last token's on, that
// token (the anchor) and masks after it, each of which sees all the others.
struct SpanConfig {
  int32_t num_rows = 0;  // 0: the head has no such pass
  int32_t mask_token = -1;
  bool samples_anchor = false;  // row i gives the token after its own; else that of its own

  // The row that gives the first token after the anchor.
  constexpr int first_output() const { return samples_anchor ? 0 : 1; }
  constexpr int max_depth() const { return num_rows - first_output(); }
};

// ---- recurrent states

// The number of tokens whose state a step of decoding keeps for the prefix cache, if it may keep
// one: `begin` tokens have been read before it and `end` after its committed row. A state is kept
// at the end of the last full block, if the step gets there; 0: none.
constexpr int kept_tokens(int begin, int end, int block_size) {
  const int last = end / block_size * block_size;
  return last > begin ? last : 0;
}

// ---- what a draft model has seen: the tokens whose KV it has

// Which input a draft model reads, and which state it keeps per token.
enum class DraftModelKind : uint8_t {
  kModel,               // reads tokens
  kDraftHead,           // reads its target's features, and its own states where there are none yet
  kStatelessDraftHead,  // the same without KV: each step is its first
  kSpanHead,            // drafts over masks, after KV made of its target's features
  // The same, but it reads the KV of its target. All rows of a step stand at the position of the
  // last committed token, and see the KV of those before it.
  kTargetKvDraftHead,
};

// Whether it keeps no KV, so that there is nothing to run but the last committed token and drafts.
constexpr bool keeps_no_kv(DraftModelKind kind) {
  return kind == DraftModelKind::kStatelessDraftHead || kind == DraftModelKind::kTargetKvDraftHead;
}

// Tokens of a request that a draft model may not have seen when a device step begins to draft; the
// last committed token is one of them.
inline constexpr int kMaxUnseen = 16;

// The first token that a step's first draft pass runs, for a request with `num_tokens` committed
// tokens of which the draft model has seen `num_seen`. A draft head has no row for token 0, since
// no features precede it: with that token alone (the result is num_tokens) it cannot draft.
constexpr int first_unseen(DraftModelKind kind, int num_tokens, int num_seen) {
  if (kind == DraftModelKind::kModel || kind == DraftModelKind::kSpanHead) return num_seen;
  const int first = keeps_no_kv(kind) ? num_tokens - 1 : num_seen;
  return first > 1 ? first : 1;
}

// How many committed tokens a draft model has seen after a step in which it drafted `num_drafts`
// tokens, of which `num_accepted` were accepted. `num_tokens` is the number committed before the
// step; all of these have been seen, because the draft model began with the last.
//
// A model that reads tokens ran every token of a chain but the last. Of a tree it ran only some
// nodes: the parent of every node, so all accepted nodes except possibly the last. A draft head ran
// drafts on its own states, so it runs the accepted ones again on the target's features. A head
// that drafts over masks has KV of the tokens before the last alone.
constexpr int num_seen_after(DraftModelKind kind, int num_tokens, int num_drafts, int num_accepted,
                             bool is_tree) {
  if (kind == DraftModelKind::kSpanHead) return num_tokens - 1;
  if (kind != DraftModelKind::kModel) return num_tokens;
  const int num_run = is_tree ? num_accepted - 1 : num_drafts - 1;
  const int num_kept = num_accepted < num_run ? num_accepted : num_run;
  return num_tokens + (num_kept > 0 ? num_kept : 0);
}

// The most committed tokens it has not seen after a step that drafted `depth` tokens deep.
constexpr int max_unseen_after(DraftModelKind kind, int depth) {
  if (kind == DraftModelKind::kSpanHead) return depth + 2;
  if (kind == DraftModelKind::kDraftHead) return depth + 1;
  return kind == DraftModelKind::kModel ? 2 : 1;
}

// ---- noise: streams of Philox words that no two uses share

// Stream 0 is that of plain decoding, the last one that of verification. The others belong to
// drafters that draw independently of the target: one for each step and drafter.
inline constexpr uint32_t kVerificationStream = 0xFFFFFFFFu;
inline constexpr int kMaxDrafters = 16;

// SampleRow::noise_stream of tokens that drafter `drafter` (below kMaxDrafters) draws independently
// of the target, in the step whose root is at `root_position`. Verification assumes that attempts
// of different drafters are independent, and that a step's drafts are independent of the steps
// before. Equals 1 + (root_position * kMaxDrafters + drafter) % (kVerificationStream - 1).
constexpr uint32_t draft_noise_stream(int64_t root_position, int drafter) {
  constexpr uint64_t kNumStreams = kVerificationStream - 1;  // 2^32 - 2
  uint64_t use =
      static_cast<uint64_t>(root_position) * kMaxDrafters + static_cast<uint64_t>(drafter);
  // 2^32 is 2 modulo kNumStreams, which spares the device a division.
  use = (use & 0xFFFFFFFFu) + 2 * (use >> 32);
  use = (use & 0xFFFFFFFFu) + 2 * (use >> 32);
  return static_cast<uint32_t>(1 + (use >= kNumStreams ? use - kNumStreams : use));
}

// A uniform of verification is named by the depth of the token it decides about (the root's child
// has depth 1) and by an index: kFinalDraw for the token that is emitted without a draft, or the
// coin of an attempt.
inline constexpr int kFinalDraw = 0;
inline constexpr int kMaxUniformIndex = 1 << 16;
constexpr int coin_of(int attempt) { return attempt + 1; }
// The word of the Philox counter for that depth and index.
constexpr uint32_t uniform_counter(int depth, int index) {
  return static_cast<uint32_t>(depth * kMaxUniformIndex + index);
}
// Maps 64 random bits to a uniform number in (0, 1). 52 bits are used, so that adding a half is
// exact and the result is neither 0 nor 1.
constexpr double uniform_of(uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

}  // namespace specdec
