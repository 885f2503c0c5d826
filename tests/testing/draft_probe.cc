#include "testing/draft_probe.h"

#include <algorithm>
#include <exception>
#include <span>

#include "backend/backend.h"
#include "core/check.h"
#include "engine/engine_models.h"
#include "engine/step_guard.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "runtime/batch_inputs.h"
#include "runtime/model_drafter.h"

namespace specdec::testing {
namespace {

// The models of an engine, with room for one text and drafts below its last token.
class ModelsOfText {
 public:
  ModelsOfText(const EngineConfig& config, std::span<const int32_t> tokens, int num_drafts)
      : num_slots_(static_cast<int>(tokens.size()) + num_drafts),
        num_blocks_(num_blocks_for(num_slots_, config.block_size)),
        models_(with_blocks(config, num_blocks_), make_backend),
        pool_(num_blocks_),
        blocks_(config.block_size) {
    SPECDEC_CHECK_EQ(config.speculative.drafters.size(), 1u);
    models_.allocate_caches();
    SPECDEC_CHECK(blocks_.reserve(pool_, num_slots_));
    run_target(tokens.first(tokens.size() - 1));
  }

  Backend& backend() { return models_.backend(); }
  DraftModels& draft_models() { return models_.draft_models(); }
  const BlockPool& pool() const { return pool_; }
  const BlockTable& blocks() const { return blocks_; }
  int max_rows() const { return models_.config().max_num_batched_tokens; }

 private:
  static EngineConfig with_blocks(EngineConfig config, int num_blocks) {
    config.num_kv_blocks = num_blocks;
    config.validate();
    return config;
  }

  void run_target(std::span<const int32_t> tokens) {
    const auto num_tokens = static_cast<int>(tokens.size());
    StateAccess states;
    for (int begin = 0; begin < num_tokens; begin += max_rows()) {
      const StepGuard guard(backend());
      const int count = std::min(max_rows(), num_tokens - begin);
      const int slot = states.slot_in == 0 ? 1 : 0;
      states.stores = {{count, slot}};
      BatchInputs inputs;
      inputs.add_chain(tokens.subspan(begin, count), begin, blocks_, /*keeps_state=*/false,
                       models_.target().has_states() ? &states : nullptr);
      models_.target().forward(inputs);
      states.slot_in = slot;
    }
  }

  int num_slots_;
  int num_blocks_;
  EngineModels models_;
  BlockPool pool_;
  BlockTable blocks_;
};

// Runs passes of a head and collects the logits of all their rows.
class LogitsReader {
 public:
  LogitsReader(Backend& backend, ModelRunner& head)
      : backend_(backend),
        head_(head),
        row_(backend.allocate(static_cast<size_t>(head.vocab_size()) * sizeof(float), "logits")) {}

  // Returns the logits of these rows.
  std::vector<float> run(BatchInputs& inputs, int level) {
    const StepGuard guard(backend_);
    head_.forward(inputs, {.level = level});
    const auto num_before = static_cast<std::ptrdiff_t>(logits_.size());
    for (int32_t row = 0; row < inputs.num_rows(); ++row) {
      head_.compute_logits(backend_.stage_ids({&row, 1}), 1, row_.as<float>());
      const size_t begin = logits_.size();
      logits_.resize(begin + static_cast<size_t>(head_.vocab_size()));
      backend_.read(row_.as<float>(), std::span(logits_).subspan(begin));
    }
    return {logits_.begin() + num_before, logits_.end()};
  }
  const std::vector<float>& logits() const { return logits_; }

 private:
  Backend& backend_;
  ModelRunner& head_;
  Buffer row_;
  std::vector<float> logits_;
};

// head_logits() of a head that reads the target's KV, each of whose rows sees the tokens before its
// position and no others. Rows of later tokens and of drafts run first: each row keeps its state
// where the target's state of its token is.
std::vector<float> context_logits(ModelsOfText& models, LogitsReader& reader,
                                  std::span<const int32_t> text, std::span<const int32_t> drafts) {
  const auto root = static_cast<int>(text.size()) - 1;
  const int depth = 1;
  const uint64_t mask = 1;
  BatchInputs inputs(RowFeatures::kOfPreviousToken);
  std::vector<std::vector<float>> rows;
  const auto run = [&](const int32_t& token, int base_len, int offset, int level) {
    inputs.clear();
    inputs.add_tree_level({&token, 1}, {&depth, 1}, offset + 1, {&mask, 1}, 1, base_len,
                          models.blocks(), {&offset, 1});
    rows.push_back(reader.run(inputs, level));
  };
  for (int level = 0; level <= static_cast<int>(drafts.size()); ++level) {
    run(level == 0 ? text.back() : drafts[static_cast<size_t>(level) - 1], root - 1, level, level);
  }
  for (int position = root - 1; position > 0; --position) {
    run(text[static_cast<size_t>(position)], position - 1, 0, 0);
  }
  std::rotate(rows.begin(), rows.begin() + static_cast<int>(drafts.size()) + 1, rows.end());
  std::reverse(rows.begin(), rows.begin() + root - 1);
  std::vector<float> logits;
  for (const std::vector<float>& row : rows) logits.insert(logits.end(), row.begin(), row.end());
  return logits;
}

// The likeliest tokens, whatever the path.
class GreedyRows final : public SampleRowSource {
 public:
  explicit GreedyRows(size_t num_tokens) : num_tokens_(num_tokens) {}
  SampleRow make_row(std::span<const int32_t> path) override {
    return {.temperature = 0.0f, .position = static_cast<int64_t>(num_tokens_ + path.size())};
  }

 private:
  size_t num_tokens_;
};

}  // namespace

std::vector<float> head_logits(const EngineConfig& config, const std::vector<int32_t>& tokens,
                               const std::vector<int32_t>& drafts) {
  const auto num_drafts = static_cast<int>(drafts.size());
  SPECDEC_CHECK_LE(num_drafts, 63);  // a bit each in a mask of one word, beside the root's
  const std::span<const int32_t> text(tokens);
  const auto root = static_cast<int>(tokens.size()) - 1;
  ModelsOfText models(config, text, num_drafts);
  ModelRunner& head = models.draft_models().runner(0);
  LogitsReader reader(models.backend(), head);
  if (head.model().config().reads_target_kv) {
    return context_logits(models, reader, text, drafts);
  }
  BatchInputs inputs(RowFeatures::kOfPreviousToken);
  for (int begin = 1; begin <= root;) {
    const int count = std::min(root + 1 - begin, models.max_rows());
    inputs.clear();
    inputs.add_chain(text.subspan(begin, count), begin, models.blocks(),
                     /*keeps_state=*/begin + count > root);
    reader.run(inputs, 0);
    begin += count;
  }
  for (int depth = 1; depth <= num_drafts; ++depth) {
    const uint64_t mask = (uint64_t{2} << depth) - 1;
    const int parent = depth - 1;
    inputs.clear();
    inputs.add_tree_level({&drafts[parent], 1}, {&depth, 1}, depth, {&mask, 1}, 1, root,
                          models.blocks(), {&parent, 1});
    reader.run(inputs, depth);
  }
  return reader.logits();
}

DraftedTree drafted_tree(const EngineConfig& config, const std::vector<int32_t>& tokens) {
  const SpeculativeConfig& speculative = config.speculative;
  ModelsOfText models(config, tokens, speculative.max_nodes());
  const auto drafter = models.draft_models().make_drafter(0, models.pool());
  GreedyRows rows(tokens.size());
  DraftTree tree;
  tree.reset(tokens.back());
  DraftRequest request{.tokens = tokens,
                       .max_depth = speculative.num_speculative_tokens,
                       .max_nodes = speculative.max_nodes(),
                       .draft_budget = speculative.max_nodes(),
                       .tree_width = speculative.tree_width,
                       .blocks = &models.blocks(),
                       .rows = &rows,
                       .tree = &tree,
                       .error = {}};
  {
    const StepGuard guard(models.backend());
    drafter->draft({&request, 1});
  }
  if (request.error) std::rethrow_exception(request.error);
  DraftedTree drafted;
  for (int node = 1; node < tree.num_nodes(); ++node) {
    drafted.tokens.push_back(tree.tokens()[node]);
    drafted.parents.push_back(tree.parents()[node]);
    drafted.survivals.push_back(tree.survival(node));
  }
  return drafted;
}

}  // namespace specdec::testing
