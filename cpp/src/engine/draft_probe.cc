#include "specdec/draft_probe.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "engine/model_probe.h"
#include "runtime/batch_inputs.h"
#include "runtime/model_drafter.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr int kMostDrafts = 63;  // a bit each in a mask of one word, beside the root's

void check(const EngineConfig& config, const std::vector<int32_t>& tokens) {
  const std::vector<DrafterConfig>& drafters = config.speculative.drafters;
  if (drafters.size() != 1 || !has_model(drafters[0].method)) {
    throw InvalidArgument("drafters", "give one, which drafts with a model");
  }
  if (tokens.size() < 2) throw InvalidArgument("tokens", "give two or more");
}

// Runs passes of a head and collects the logits of all their rows.
class LogitsReader {
 public:
  LogitsReader(ModelProbe& probe, ModelRunner& head)
      : backend_(probe.backend()),
        head_(head),
        row_(backend_.allocate(static_cast<size_t>(head.vocab_size()) * sizeof(float), "logits")) {}

  void run(BatchInputs& inputs, int level) {
    backend_.begin_step();
    head_.forward(inputs, {.level = level});
    for (int32_t row = 0; row < inputs.num_rows(); ++row) {
      head_.compute_logits(backend_.stage_ids({&row, 1}), 1, row_.as<float>());
      const size_t begin = logits_.size();
      logits_.resize(begin + static_cast<size_t>(head_.vocab_size()));
      backend_.read(row_.as<float>(), std::span(logits_).subspan(begin));
    }
    backend_.end_step();
  }
  const std::vector<float>& logits() const { return logits_; }

 private:
  Backend& backend_;
  ModelRunner& head_;
  Buffer row_;
  std::vector<float> logits_;
};

// The likeliest tokens, whatever the path.
class GreedyRows final : public SampleRowSource {
 public:
  explicit GreedyRows(int64_t num_tokens) : num_tokens_(num_tokens) {}
  SampleRow make_row(std::span<const int32_t> path) override {
    return {.temperature = 0.0f, .position = num_tokens_ + static_cast<int64_t>(path.size())};
  }

 private:
  int64_t num_tokens_;
};

}  // namespace

std::vector<float> head_logits(const EngineConfig& config, const std::vector<int32_t>& tokens,
                               const std::vector<int32_t>& drafts) {
  check(config, tokens);
  if (!is_head(config.speculative.drafters[0].method)) {
    throw InvalidArgument("drafters", "the drafter has no head but a model of its own");
  }
  const int num_drafts = static_cast<int>(drafts.size());
  if (num_drafts > kMostDrafts) throw InvalidArgument("drafts", "give at most 63");
  ModelProbe probe(config, tokens, num_drafts);
  const std::span<const int32_t> text(tokens);
  const int root = static_cast<int>(tokens.size()) - 1;
  probe.run_target(text.first(static_cast<size_t>(root)));

  LogitsReader reader(probe, probe.draft_models().runner(0));
  BatchInputs inputs(/*of_head=*/true);
  for (int begin = 1; begin <= root;) {
    const int count = std::min(root + 1 - begin, probe.config().max_num_batched_tokens);
    inputs.clear();
    inputs.add_chain(text.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), begin,
                     probe.blocks(), /*keeps_state=*/begin + count > root);
    reader.run(inputs, 0);
    begin += count;
  }
  for (int depth = 1; depth <= num_drafts; ++depth) {
    const uint64_t mask = (uint64_t{2} << depth) - 1;
    const int parent = depth - 1;
    inputs.clear();
    inputs.add_tree_level({&drafts[static_cast<size_t>(parent)], 1}, {&depth, 1}, depth, {&mask, 1},
                          1, root, probe.blocks(), {&parent, 1});
    reader.run(inputs, depth);
  }
  return reader.logits();
}

DraftedTree drafted_tree(const EngineConfig& config, const std::vector<int32_t>& tokens) {
  check(config, tokens);
  const SpeculativeConfig& speculative = config.speculative;
  ModelProbe probe(config, tokens, speculative.max_nodes());
  const std::span<const int32_t> text(tokens);
  probe.run_target(text.first(tokens.size() - 1));
  const auto drafter = probe.draft_models().make_drafter(0, probe.pool());
  GreedyRows rows(static_cast<int64_t>(tokens.size()));
  DraftTree tree;
  tree.reset(tokens.back());
  DraftRequest request{.tokens = text,
                       .max_depth = speculative.num_speculative_tokens,
                       .max_nodes = speculative.max_nodes(),
                       .num_slots = speculative.max_nodes(),
                       .tree_width = speculative.tree_width,
                       .blocks = &probe.blocks(),
                       .rows = &rows,
                       .tree = &tree,
                       .error = {}};
  probe.backend().begin_step();
  drafter->draft({&request, 1});
  probe.backend().end_step();
  if (request.error) std::rethrow_exception(request.error);
  DraftedTree drafted;
  for (int node = 1; node < tree.num_nodes(); ++node) {
    drafted.tokens.push_back(tree.tokens()[static_cast<size_t>(node)]);
    drafted.parents.push_back(tree.parents()[static_cast<size_t>(node)]);
    drafted.survivals.push_back(tree.survival(node));
  }
  return drafted;
}

}  // namespace specdec
