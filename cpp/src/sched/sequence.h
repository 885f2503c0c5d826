// One completion in the making: its tokens, its blocks, where it stands in its life.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kv/block_table.h"
#include "specdec/request_output.h"
#include "specdec/sampling_params.h"

namespace specdec {

// The life cycle. Waiting and Preempted hold no blocks; Prefilling and Decoding are in the running
// set. Preempted goes back to Prefilling and recomputes what the prefix cache no longer has.
struct Waiting {};
struct Prefilling {};
struct Decoding {};
struct Preempted {};
struct Finished {
  FinishReason reason = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;
};
using SequenceState = std::variant<Waiting, Prefilling, Decoding, Preempted, Finished>;

// A running sequence's recurrent state, in models with recurrent layers.
struct SequenceStates {
  int slot = -1;           // where its state lies; -1: it does not run
  BlockRef source = {};    // the cached state that its first rows continue, until these have run
  bool is_stored = false;  // the slot has a state, once the steps under way have run
  int num_tokens = 0;      // that this state, or before it the source, has read
  std::vector<int32_t> pending = {};  // records of the committed tokens after these
  // The first record that drafts write: of the next step, and of the one after it.
  std::array<int, 2> first_records = {};
  int num_known_tokens = 0;   // as PrefixMatch has it: where the sequence leaves a known text
  int num_latest_tokens = 0;  // of the cached state that the next one replaces; 0: none
};

class Sequence {
 public:
  // `params` is borrowed from the request and must outlive the sequence. `ordinal` is unique and
  // rises with arrival.
  Sequence(uint64_t ordinal, std::vector<int32_t> prompt, const SamplingParams& params,
           int block_size, int max_model_len);

  // Commits a generated token and says whether it ends the sequence: a stop or end-of-sequence
  // token once min_tokens are there, max_tokens, or max_model_len. If it does, the state becomes
  // Finished; the blocks stay until the scheduler takes them back. A token that stops stays in
  // tokens().
  FinishReason append(int32_t token);

  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int32_t> prompt() const;
  std::span<const int32_t> output() const;
  int num_tokens() const { return static_cast<int>(tokens_.size()); }
  int num_prompt_tokens() const { return num_prompt_tokens_; }
  int num_output_tokens() const { return num_tokens() - num_prompt_tokens_; }
  // The most tokens the sequence can reach: the lower of max_model_len and prompt + max_tokens.
  int max_num_tokens() const;
  // How deep it may draft in a step that allows `limit`: no deeper than the request wants, nor than
  // could be kept whole, since a step commits one token more than it accepts.
  int max_draft_depth(int limit) const;

  bool is_finished() const { return std::holds_alternative<Finished>(state); }
  bool is_running() const {
    return std::holds_alternative<Prefilling>(state) || std::holds_alternative<Decoding>(state);
  }
  // Once its first token is there, its prompt has been computed and its blocks could be shared.
  bool has_prefilled() const { return num_output_tokens() > 0; }

  // The first token that no row has been planned for.
  int next_row() const { return num_computed_tokens + num_rows_under_way; }

  // Scheduling order: the lower precedence goes first.
  using Precedence = std::pair<int64_t, uint64_t>;
  Precedence precedence() const { return {priority, ordinal}; }

  const uint64_t ordinal;
  int64_t priority = 0;  // the request's; set before Scheduler::add()
  const SamplingParams& params;
  SequenceState state = Waiting{};
  int num_computed_tokens = 0;  // tokens whose KV is committed
  // Rows of the steps under way that plan() has made, and whether the last of them samples: until
  // that one is committed it is not known what comes next.
  int num_rows_under_way = 0;
  bool samples_under_way = false;
  // The most tokens that steps under way, planned ahead of their outcomes, may yet append.
  int num_tokens_under_way = 0;
  BlockTable blocks;
  SequenceStates states;
  // Another completion of the same prompt. This sequence waits for its prefill, to share its blocks
  // through the prefix cache. Null when there is none. Set before Scheduler::add(), which borrows
  // the leader; the scheduler clears it once waiting has no more use.
  const Sequence* prefill_leader = nullptr;
  // False when every prompt position must be computed (prompt_logprobs). The sequence then takes no
  // blocks from the prefix cache, not even after a preemption, but others may take blocks from it.
  bool use_prefix_cache = true;
  // Sequences share cached blocks only with sequences of the same salt. Borrowed from the request.
  std::string_view cache_salt = {};
  int num_resumed_tokens = 0;        // of the output, appended before Scheduler::add()
  int num_cached_prompt_tokens = 0;  // first admission only
  int num_preemptions = 0;

 private:
  std::vector<int32_t> tokens_;  // prompt, then output
  int num_prompt_tokens_;
  int max_model_len_;
};

}  // namespace specdec
