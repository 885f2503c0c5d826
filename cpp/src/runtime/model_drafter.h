// Drafts with a model: a smaller one of the same vocabulary, or a head on the target's features.
// Its KV lies behind the target's block ids: one block table serves both models, and the prefix
// cache keeps a prompt for both.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "backend/op_args.h"
#include "core/draft_sampling.h"
#include "core/step_rules.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "runtime/model_runner.h"
#include "specdec/speculative_config.h"
#include "speculation/drafter.h"
#include "speculation/tree_growth.h"

namespace specdec {

// Records which tokens the draft model has seen (has KV of), block by block. A record is valid
// until its block is handed out anew.
class DraftKvLedger {
 public:
  explicit DraftKvLedger(const BlockPool& pool);

  // Leading tokens of a sequence, at most `limit`, that the model has seen.
  int num_seen(const BlockTable& blocks, int limit) const;
  // Records that the model has seen the first `num_tokens` tokens of the sequence, of which it had
  // already seen those before `first`.
  void set_seen(const BlockTable& blocks, int first, int num_tokens);

 private:
  struct Entry {
    uint64_t generation = 0;
    int num_tokens = 0;
  };
  const BlockPool& pool_;
  std::vector<Entry> entries_;  // by block
};

struct ModelDrafterOptions {
  int id = 0;  // as the drafter is known in a DraftTree
  DraftSampling sampling = DraftSampling::kCoupled;
  double min_confidence = 0.0;  // stop below this survival
  int max_rows = 0;             // of one forward pass
  int max_model_len = 0;        // nothing is drafted past it
  int vocab_size = 0;           // the target's; its padding may differ from the draft's
  // Cost of a pass relative to the target's, before passes are measured
  double relative_cost = 1.0;
  bool is_draft_head = false;    // reads the target's features of the token before each row's
  int num_layers = 0;            // whose KV it keeps
  bool reads_target_kv = false;  // see DraftModelKind::kTargetKvDraftHead
  int max_depth = 0;             // of a draft, by the model; 0: any
  bool is_parallel = false;      // one pass drafts all levels, from committed tokens alone
  // Token of the rows after the root's, in a parallel model with a row per level. -1: the root's
  // row has an output for every level.
  int32_t mask_token = -1;
  // Of a parallel head whose rows all see each other; else without rows. Such rows go to slots that
  // the next step overwrites: where a sequence has none, to those of the runner's spare blocks.
  SpanConfig span = {};
  int max_span_rows = 0;  // of a pass; at least one span
  StaticTree shape;

  DraftModelKind kind() const {
    if (!is_draft_head) return DraftModelKind::kModel;
    if (span.num_rows > 0) return DraftModelKind::kSpanHead;
    if (reads_target_kv) return DraftModelKind::kTargetKvDraftHead;
    return num_layers > 0 ? DraftModelKind::kDraftHead : DraftModelKind::kStatelessDraftHead;
  }
};

class ModelDrafter final : public Drafter {
 public:
  // `runner` has its cache, with the blocks of `pool`. Both must outlive the drafter.
  ModelDrafter(ModelRunner& runner, const BlockPool& pool, const ModelDrafterOptions& options);

  DrafterTraits traits() const override {
    using Cost = DrafterTraits::Cost;
    return {.cost = options_.is_parallel ? Cost::kOnePass : Cost::kPerLevel,
            .relative_pass_cost = options_.relative_cost};
  }
  // First runs the tokens of each sequence that the model has not seen (a prompt, or the tokens
  // accepted last), all requests together, then one pass for each level of their trees. A parallel
  // model drafts all levels where it runs the root.
  void draft(std::span<DraftRequest> requests) override;
  int num_unseen(const DraftRequest& request) const override;
  std::span<const TimedPass> passes() const override { return passes_; }

  // For device steps, which run the model by themselves.
  DraftKvLedger& ledger() { return ledger_; }
  DraftModelKind kind() const { return options_.kind(); }
  int span_rows() const { return options_.span.num_rows; }

 private:
  // A node whose continuations are drafted in the next pass, and its row in that pass.
  struct Frontier {
    OpenNode open;
    int row = 0;
    int slot = 0;                // of its row, counted from the root's
    int parent_slot = 0;         // of its parent's
    std::vector<uint64_t> mask;  // slots past the committed tokens: its ancestors' and its own
  };
  // A request while its tree grows.
  struct Growth {
    DraftRequest* request = nullptr;
    int base_len = 0;   // tokens before the root
    int num_seen = 0;   // tokens the model has seen, at most base_len + 1
    int num_slots = 1;  // nodes whose continuations were asked for; each has a slot past base_len
    std::vector<Frontier> frontier;
    bool has_span = false;  // whether its rows of a span were run
    int first_kept = 0;     // of its rows whose logits are kept
    // The last samples: one per node of the frontier, or one per level below the root.
    std::vector<size_t> samples = {};

    bool is_behind() const { return num_seen <= base_len; }
  };

  // The rows of a pass are of one kind.
  enum class Stage : uint8_t {
    kBulk,     // many tokens the model has not seen, without the root: their KV alone is wanted
    kCatchUp,  // tokens it has not seen, up to the root
    kLevel,    // the nodes of a level
    kSpan,     // the root and masks after it, which all see each other
  };

  bool can_draft(const DraftRequest& request) const;
  int num_seen(const DraftRequest& request) const;
  int max_depth(const DraftRequest& request) const;
  // Rows after the root's for levels past the first.
  int num_masks(const DraftRequest& request) const;
  // Rows of a growth in a pass of that stage; 0: none.
  int num_rows(const Growth& growth, Stage stage) const;
  bool drafts_spans() const { return options_.span.num_rows > 0; }
  // Whether a pass of a parallel model has a row for each level.
  bool has_row_per_level() const { return options_.mask_token >= 0; }
  // Whether levels are sampled together, before the drafts between are known.
  bool samples_all_levels() const { return options_.is_parallel && !drafts_spans(); }
  // Most rows of a pass of that stage.
  int room(Stage stage) const;
  // Passes over the rows that all growths have in that stage.
  void run_stage(std::vector<Growth>& growths, Stage stage, int level);
  // One pass over the rows of growths[next] and of as many after it as fit. Returns the first
  // growth with rows that are left for another pass.
  size_t run_pass(std::vector<Growth>& growths, size_t next, Stage stage, int level);
  // Adds rows of tokens the model has not seen. With the root's row the frontier begins.
  void add_unseen(Growth& growth, int num_rows);
  // Adds the rows of a span. With them the frontier begins.
  void add_span(Growth& growth);
  // Samples level after level from the rows of a span, as drafts change what follows them.
  void draft_after_span(std::span<Growth* const> growths);
  // Adds the rows of a request's frontier.
  void add_level(Growth& growth);
  // The same for a head that reads the target's KV, whose rows see no others; the first level is
  // the root alone.
  void add_level_of_context(Growth& growth);
  int num_levels(std::span<const Growth* const> growths) const;
  // Ends the paths below which the policy does not go on.
  void ask_policy(std::vector<Growth>& growths) const;
  // Samples continuations at every frontier row of the last forward pass and sets the new
  // frontiers. A failure that concerns one request becomes that request's error.
  void expand(std::span<Growth* const> growths);
  // Makes the masks of what sample() draws next, a request's by one thread.
  void make_masks(std::span<Growth* const> growths);
  void sample(std::span<Growth* const> growths);
  // Samples for all levels below the root. A draw knows the text only up to the root: where
  // penalties or similar settings depend on the drafts in between, the target will differ.
  void sample_levels(std::span<Growth* const> growths);
  // Samples for a level at a row. `ahead`: tokens between the node and the one to be sampled.
  void add_sample(Growth& growth, int row, int node, int ahead);
  // Grows a tree by its samples.
  void grow(Growth& growth);
  void grow_levels(Growth& growth);
  // Keeps the distribution that a sample was drawn from, where there is one, in the request's tree.
  int keep_distribution(Growth& growth, size_t sample);
  // Nothing more is drafted for the request.
  static void fail(Growth& growth, std::exception_ptr error);
  SampleRow make_row(const DraftRequest& request, int node);
  // `distribution`: index in the tree of the one its draws came from; -1 for deterministic ones.
  void add_children(Growth& growth, const Frontier& frontier, int distribution,
                    const SampleResult& result, std::vector<Frontier>& next);
  // Chooses the frontier from a new level; the chosen nodes are moved out of `level`.
  void choose_frontier(Growth& growth, std::span<Frontier> level) const;

  ModelRunner& runner_;
  ModelDrafterOptions options_;
  DraftKvLedger ledger_;
  int num_tokens_;  // that samples may be of
  std::vector<TimedPass> passes_;

  // State of the current pass, kept to reuse its memory.
  BatchInputs inputs_;
  int num_spare_used_ = 0;
  std::vector<int32_t> row_ids_;
  std::vector<int32_t> tokens_before_;  // of row_ids_, for a Markov head
  std::vector<SampleRow> rows_;
  std::vector<SampleResult> results_;
  std::vector<std::vector<float>> distributions_;  // by row; empty where none is wanted
  std::vector<std::vector<int32_t>> id_lists_;     // spans of rows cut to the draft's vocabulary
};

}  // namespace specdec
