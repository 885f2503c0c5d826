#include "runtime/model_drafter.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/run_or_blame.h"
#include "core/step_rules.h"
#include "core/stopwatch.h"
#include "speculation/grammar_path.h"

namespace specdec {
namespace {

// The survival of a sampled continuation relative to the previous draw. It must not depend on the
// tokens drawn: survival decides which draws stay when a tree is cut, and with token-dependent
// survival rejection would favour likely tokens twice.
constexpr float kDrawDecay = 0.5f;

// More tokens than these are bulk.
constexpr int kMostWithRoot = kMaxUnseen;

int num_words(int num_slots) { return (num_slots + 63) / 64; }

// Tokens past the target's vocabulary, which are padding of the draft model's, are never drafted.
void cut_to_vocabulary(std::vector<float>& probabilities, int vocab_size) {
  if (static_cast<int>(probabilities.size()) == vocab_size) return;
  probabilities.resize(vocab_size);
  const double total = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  for (float& probability : probabilities) probability = static_cast<float>(probability / total);
}

RowFeatures features_of(const ModelDrafterOptions& options) {
  if (!options.is_draft_head) return RowFeatures::kNone;
  return options.span.num_rows > 0 ? RowFeatures::kOfToken : RowFeatures::kOfPreviousToken;
}

void set_bit(std::vector<uint64_t>& mask, int bit) {
  if (num_words(bit + 1) > static_cast<int>(mask.size())) mask.resize(num_words(bit + 1), 0);
  mask[bit / 64] |= uint64_t{1} << (bit % 64);
}

}  // namespace

DraftKvLedger::DraftKvLedger(const BlockPool& pool)
    : pool_(pool), entries_(static_cast<size_t>(pool.num_blocks()) + 1) {}

int DraftKvLedger::num_seen(const BlockTable& blocks, int limit) const {
  int total = 0;
  for (BlockId id : blocks.ids()) {
    const Entry& entry = entries_[id];
    if (entry.generation != pool_.generation(id)) break;
    total += entry.num_tokens;
    if (entry.num_tokens < blocks.block_size() || total >= limit) break;
  }
  return std::min(total, limit);
}

void DraftKvLedger::set_seen(const BlockTable& blocks, int first, int num_tokens) {
  const int block_size = blocks.block_size();
  for (int index = first / block_size; index * block_size < num_tokens; ++index) {
    const BlockId id = blocks.ids()[index];
    const int in_block = std::min(block_size, num_tokens - index * block_size);
    Entry& entry = entries_[id];
    const bool is_current = entry.generation == pool_.generation(id);
    entry = {pool_.generation(id), is_current ? std::max(entry.num_tokens, in_block) : in_block};
  }
}

ModelDrafter::ModelDrafter(ModelRunner& runner, const BlockPool& pool,
                           const ModelDrafterOptions& options)
    : runner_(runner),
      options_(options),
      ledger_(pool),
      num_tokens_(runner.num_tokens()),
      inputs_(features_of(options)) {
  SPECDEC_CHECK(options.id >= 0 && options.id < kMaxDrafters);
}

// Every node's row takes a slot.
int ModelDrafter::max_depth(const DraftRequest& request) const {
  const int limit = std::min(request.max_depth, request.draft_budget);
  return options_.max_depth > 0 ? std::min(limit, options_.max_depth) : limit;
}

int ModelDrafter::num_masks(const DraftRequest& request) const {
  return options_.mask_token < 0 || drafts_spans() ? 0 : max_depth(request) - 1;
}

// The draft model has no embedding for tokens that only the target's vocabulary has. These are
// padding, which in practice no text contains. A draft head reads the previous token, except that a
// span may begin a text.
bool ModelDrafter::can_draft(const DraftRequest& request) const {
  if (static_cast<int>(request.tokens.size()) + max_depth(request) > options_.max_model_len) {
    return false;
  }
  if (options_.is_draft_head) return drafts_spans() || request.tokens.size() > 1;
  return num_tokens_ >= options_.vocab_size ||
         std::ranges::all_of(request.tokens, [&](int32_t token) { return token < num_tokens_; });
}

// Without KV there is nothing to run but the root. The first token has no row in a head that reads
// the token before.
int ModelDrafter::num_seen(const DraftRequest& request) const {
  const int base_len = static_cast<int>(request.tokens.size()) - 1;
  if (options_.num_layers == 0) return base_len;
  const int least = options_.is_draft_head && !drafts_spans() ? 1 : 0;
  return std::max(ledger_.num_seen(*request.blocks, base_len), least);
}

int ModelDrafter::num_unseen(const DraftRequest& request) const {
  return static_cast<int>(request.tokens.size()) - num_seen(request);
}

void ModelDrafter::draft(std::span<DraftRequest> requests) {
  passes_.clear();
  std::vector<Growth> growths;
  for (DraftRequest& request : requests) {
    if (!can_draft(request)) continue;
    growths.push_back({.request = &request,
                       .base_len = static_cast<int>(request.tokens.size()) - 1,
                       .num_seen = num_seen(request),
                       .frontier = {}});
  }
  // The KV of a single layer needs neither its attention nor its MLP, nor does KV of features.
  if (options_.num_layers == 1 || drafts_spans()) run_stage(growths, Stage::kBulk, 0);
  run_stage(growths, drafts_spans() ? Stage::kSpan : Stage::kCatchUp, drafts_spans() ? 1 : 0);
  const auto goes_on = [](const Growth& growth) { return !growth.frontier.empty(); };
  for (int level = 1; std::ranges::any_of(growths, goes_on); ++level) {
    if (growths[0].request->policy != nullptr) ask_policy(growths);
    run_stage(growths, Stage::kLevel, level);
  }
  for (Growth& growth : growths) {
    // A policy cuts trees by itself.
    const DraftRequest& request = *growth.request;
    if (request.policy == nullptr) request.tree->truncate(request.draft_budget);
  }
}

int ModelDrafter::num_rows(const Growth& growth, Stage stage) const {
  if (growth.request->error != nullptr) return 0;
  const int num_unseen = growth.base_len + 1 - growth.num_seen;
  switch (stage) {
    case Stage::kBulk:
      return drafts_spans() || num_unseen > kMostWithRoot ? num_unseen - 1 : 0;
    case Stage::kCatchUp:
      return num_unseen;
    case Stage::kSpan:
      return growth.has_span ? 0 : options_.span.num_rows;
    case Stage::kLevel:
      break;
  }
  return static_cast<int>(growth.frontier.size());
}

// Kept logits bound the rows of spans, and spare blocks their number.
int ModelDrafter::room(Stage stage) const {
  return stage == Stage::kSpan ? options_.max_span_rows : options_.max_rows;
}

void ModelDrafter::run_stage(std::vector<Growth>& growths, Stage stage, int level) {
  const auto has_rows = [&](const Growth& growth) { return num_rows(growth, stage) > 0; };
  if (stage == Stage::kLevel) {
    for (size_t next = 0; next < growths.size();) next = run_pass(growths, next, stage, level);
    return;
  }
  while (std::ranges::any_of(growths, has_rows)) {
    for (size_t next = 0; next < growths.size();) next = run_pass(growths, next, stage, level);
  }
}

size_t ModelDrafter::run_pass(std::vector<Growth>& growths, size_t next, Stage stage, int level) {
  inputs_.clear();
  num_spare_used_ = 0;
  const bool is_whole = stage == Stage::kLevel || stage == Stage::kSpan;
  std::vector<Growth*> ran;
  std::vector<int> seen_before;
  int num_masked = 0;
  for (; next < growths.size(); ++next) {
    Growth& growth = growths[next];
    const int num_wanted = num_rows(growth, stage);
    if (num_wanted == 0) continue;
    // A level is run as a whole, as is the root with its masks; unseen tokens before it in as many
    // passes as they take.
    const int room = this->room(stage) - inputs_.num_rows();
    if ((is_whole ? num_wanted : 1) > room && !ran.empty()) break;
    int num_added = is_whole ? num_wanted : std::min(num_wanted, room);
    const int masks_wanted = stage == Stage::kCatchUp ? num_masks(*growth.request) : 0;
    if (masks_wanted > 0 && num_added == num_wanted && num_wanted + masks_wanted > room) {
      if (!ran.empty()) break;
      num_added = num_wanted - 1;
    }
    const int num_seen = growth.num_seen;
    try {
      if (stage == Stage::kLevel) {
        add_level(growth);
      } else if (stage == Stage::kSpan) {
        add_span(growth);
      } else {
        add_unseen(growth, num_added);
      }
    } catch (...) {
      fail(growth, std::current_exception());
      continue;
    }
    ran.push_back(&growth);
    seen_before.push_back(num_seen);
    if (num_added < num_wanted) break;
    num_masked += stage == Stage::kSpan ? num_added - 1 : masks_wanted;
  }
  if (ran.empty()) return next;
  double seconds = 0;
  {
    const Stopwatch watch(seconds);
    runner_.forward(inputs_, {.level = options_.is_draft_head ? level : 0,
                              .kv_only = stage == Stage::kBulk,
                              .num_levels = num_levels(ran)});
    if (stage == Stage::kSpan) {
      draft_after_span(ran);
    } else if (stage != Stage::kBulk) {
      expand(ran);
    }
  }
  // A request always has as many masks: they are part of what one of its rows costs.
  passes_.push_back({.num_rows = inputs_.num_rows() - num_masked, .seconds = seconds});
  for (size_t i = 0; i < ran.size(); ++i) {
    if (ran[i]->num_seen == seen_before[i]) continue;
    ledger_.set_seen(*ran[i]->request->blocks, seen_before[i], ran[i]->num_seen);
  }
  return next;
}

// For a parallel model without masks: the number of levels of the deepest request whose root is
// among the rows.
int ModelDrafter::num_levels(std::span<const Growth* const> growths) const {
  int levels = 1;
  if (!options_.is_parallel || has_row_per_level() || drafts_spans()) return levels;
  for (const Growth* growth : growths) levels = std::max(levels, max_depth(*growth->request));
  return levels;
}

void ModelDrafter::ask_policy(std::vector<Growth>& growths) const {
  std::vector<FrontierNode> nodes;
  for (const Growth& growth : growths) {
    for (const Frontier& frontier : growth.frontier) {
      nodes.push_back({.sequence = growth.request->sequence,
                       .tree = growth.request->tree,
                       .node = frontier.open.node});
    }
  }
  if (nodes.empty()) return;
  const DraftRequest& request = *growths[0].request;
  request.policy->plan_pass(*request.step, options_.id, nodes);
  auto next = nodes.begin();
  for (Growth& growth : growths) {
    std::erase_if(growth.frontier, [&](const Frontier&) { return !(next++)->goes_on; });
  }
}

void ModelDrafter::add_unseen(Growth& growth, int num_rows) {
  const DraftRequest& request = *growth.request;
  if (options_.reads_target_kv) {
    growth.frontier = {{.open = {}, .mask = {}}};
    ++growth.num_seen;
    return add_level_of_context(growth);
  }
  const bool has_root = growth.num_seen + num_rows > growth.base_len;
  const int first_row =
      inputs_.add_chain(request.tokens.subspan(growth.num_seen, num_rows), growth.num_seen,
                        *request.blocks, has_root && !options_.is_parallel);
  growth.num_seen += num_rows;
  if (!has_root) return;
  if (const int count = num_masks(request); count > 0) {
    inputs_.add_masks(count, options_.mask_token,
                      options_.is_draft_head ? runner_.mask_slot() : -1);
  }
  growth.frontier = {{.open = {}, .row = first_row + num_rows - 1, .mask = {1}}};
}

void ModelDrafter::add_span(Growth& growth) {
  const DraftRequest& request = *growth.request;
  const SpanConfig& span = options_.span;
  const BlockTable& blocks = *request.blocks;
  const int num_spare =
      std::max(0, num_blocks_for(growth.base_len + span.num_rows, blocks.block_size()) -
                      blocks.num_blocks());
  const int first_row =
      inputs_.add_span(request.tokens.back(), span.num_rows - 1, span.mask_token, growth.base_len,
                       blocks, runner_.spare_blocks().subspan(num_spare_used_, num_spare));
  num_spare_used_ += num_spare;
  growth.has_span = true;
  growth.frontier = {{.open = {}, .row = first_row + span.first_output(), .mask = {1}}};
}

void ModelDrafter::draft_after_span(std::span<Growth* const> growths) {
  std::vector<int32_t> kept;
  for (Growth* growth : growths) {
    growth->first_kept = static_cast<int>(kept.size());
    for (int level = 0; level < max_depth(*growth->request); ++level) {
      kept.push_back(growth->frontier[0].row + level);
    }
  }
  runner_.keep_logits(kept);
  std::vector<Growth*> open(growths.begin(), growths.end());
  for (int level = 0; !open.empty(); ++level) {
    for (Growth* growth : open) {
      for (Frontier& frontier : growth->frontier) frontier.row = growth->first_kept + level;
      if (level > 0) growth->num_slots += static_cast<int>(growth->frontier.size());
    }
    expand(open);
    std::erase_if(open, [](const Growth* growth) { return growth->frontier.empty(); });
  }
}

// For the batch, the last token that the target has read is the root of a tree, of which the rows
// see the root alone: the committed tokens before it and itself. Their slots follow its own, so
// that slot 0 of the growth, the root's, is slot 1 there.
void ModelDrafter::add_level_of_context(Growth& growth) {
  const DraftTree& tree = *growth.request->tree;
  const bool has_root = growth.frontier.front().open.node == DraftTree::kRoot;
  const int first_slot = has_root ? 0 : growth.num_slots;
  std::vector<int32_t> tokens;
  std::vector<int> parent_slots;
  for (Frontier& frontier : growth.frontier) {
    frontier.slot = first_slot + static_cast<int>(tokens.size());
    tokens.push_back(tree.tokens()[frontier.open.node]);
    parent_slots.push_back(has_root ? 0 : frontier.parent_slot + 1);
  }
  const std::vector<int32_t> depths(tokens.size(), 1);
  const std::vector<uint64_t> masks(tokens.size(), 1);
  int row = inputs_.add_tree_level(tokens, depths, first_slot + 1, masks, /*mask_words=*/1,
                                   growth.base_len - 1, *growth.request->blocks, parent_slots);
  for (Frontier& frontier : growth.frontier) frontier.row = row++;
  growth.num_slots = first_slot + static_cast<int>(tokens.size());
}

void ModelDrafter::add_level(Growth& growth) {
  if (options_.reads_target_kv) return add_level_of_context(growth);
  const DraftTree& tree = *growth.request->tree;
  const int width = static_cast<int>(growth.frontier.size());
  const int mask_words = num_words(growth.num_slots + width);
  std::vector<int32_t> tokens;
  std::vector<int32_t> depths;
  std::vector<int> parent_slots;
  std::vector<uint64_t> masks;
  for (Frontier& frontier : growth.frontier) {
    frontier.slot = growth.num_slots + static_cast<int>(tokens.size());
    tokens.push_back(tree.tokens()[frontier.open.node]);
    depths.push_back(tree.depth(frontier.open.node));
    parent_slots.push_back(frontier.parent_slot);
    set_bit(frontier.mask, frontier.slot);
    frontier.mask.resize(mask_words, 0);
    masks.insert(masks.end(), frontier.mask.begin(), frontier.mask.end());
  }
  int row = inputs_.add_tree_level(tokens, depths, growth.num_slots, masks, mask_words,
                                   growth.base_len, *growth.request->blocks, parent_slots);
  for (Frontier& frontier : growth.frontier) frontier.row = row++;
  growth.num_slots += width;
}

SampleRow ModelDrafter::make_row(const DraftRequest& request, int node) {
  SampleRow row = request.rows->make_row(request.tree->path(node));
  row.want_logprobs = false;
  row.num_logprobs = 0;
  row.num_candidates = request.tree_width;
  if (options_.sampling == DraftSampling::kArgmax) row.temperature = 0.0f;
  if (options_.sampling == DraftSampling::kIndependent) {
    const auto root_position = static_cast<int64_t>(request.tokens.size()) - 1;
    row.noise_stream = draft_noise_stream(root_position, options_.id);
  }

  // A processor is made for logits of the target's vocabulary.
  if (runner_.vocab_size() != options_.vocab_size) row.processor = nullptr;
  if (num_tokens_ < options_.vocab_size) {
    const auto keep = [&](std::span<const int32_t>& ids) {
      if (std::ranges::all_of(ids, [&](int32_t id) { return id < num_tokens_; })) return;
      std::vector<int32_t>& kept = id_lists_.emplace_back();
      std::ranges::copy_if(ids, std::back_inserter(kept),
                           [&](int32_t id) { return id < num_tokens_; });
      ids = kept;
    };
    keep(row.allowed_token_ids);
    keep(row.banned_token_ids);
    // A bias on a token the draft cannot give changes nothing it can.
    if (!std::ranges::all_of(row.logit_bias,
                             [&](const auto& b) { return b.first < num_tokens_; })) {
      row.logit_bias = {};
    }
  }
  return row;
}

void ModelDrafter::fail(Growth& growth, std::exception_ptr error) {
  growth.request->error = std::move(error);
  growth.frontier.clear();
}

void ModelDrafter::expand(std::span<Growth* const> growths) {
  const auto work = [&](size_t begin, size_t end) {
    const std::span<Growth* const> part = growths.subspan(begin, end - begin);
    sample(part);
    for (Growth* growth : part) {
      try {
        if (samples_all_levels()) {
          grow_levels(*growth);
        } else {
          grow(*growth);
        }
      } catch (...) {
        fail(*growth, std::current_exception());
      }
    }
  };
  run_or_blame(growths.size(), work,
               [&](size_t i, std::exception_ptr error) { fail(*growths[i], std::move(error)); });
}

void ModelDrafter::make_masks(std::span<Growth* const> growths) {
  std::vector<const Growth*> constrained;
  for (const Growth* growth : growths) {
    if (growth->request->grammar != nullptr) constrained.push_back(growth);
  }
  for_each_index(&runner_.thread_pool(), constrained.size(), [&](size_t i) {
    const DraftRequest& request = *constrained[i]->request;
    for (const Frontier& frontier : constrained[i]->frontier) {
      request.grammar->make_mask(request.tree->path(frontier.open.node));
    }
  });
}

void ModelDrafter::sample(std::span<Growth* const> growths) {
  make_masks(growths);
  row_ids_.clear();
  rows_.clear();
  id_lists_.clear();
  distributions_.clear();
  for (Growth* growth : growths) growth->samples.clear();
  if (samples_all_levels()) return sample_levels(growths);
  tokens_before_.clear();
  for (Growth* growth : growths) {
    for (const Frontier& frontier : growth->frontier) {
      add_sample(*growth, frontier.row, frontier.open.node, 0);
      tokens_before_.push_back(growth->request->tree->tokens()[frontier.open.node]);
    }
  }
  results_.assign(rows_.size(), SampleResult{});
  if (drafts_spans()) {
    return runner_.sample_after(tokens_before_, row_ids_, rows_, LogprobsMode::kRaw, results_);
  }
  runner_.sample(row_ids_, rows_, LogprobsMode::kRaw, results_);
}

void ModelDrafter::sample_levels(std::span<Growth* const> growths) {
  const int row_step = has_row_per_level() ? 1 : runner_.rows_per_level();
  std::vector<size_t> level_ends;
  for (int level = 0;; ++level) {
    for (Growth* growth : growths) {
      if (growth->frontier.empty() || level >= max_depth(*growth->request)) continue;
      add_sample(*growth, growth->frontier[0].row + level * row_step, DraftTree::kRoot, level);
    }
    if (rows_.size() == (level_ends.empty() ? 0 : level_ends.back())) break;
    level_ends.push_back(rows_.size());
  }
  results_.assign(rows_.size(), SampleResult{});
  if (!runner_.model().has_output_per_level()) {
    return runner_.sample(row_ids_, rows_, LogprobsMode::kRaw, results_);
  }
  size_t begin = 0;
  for (size_t level = 0; level < level_ends.size(); ++level) {
    const size_t count = level_ends[level] - begin;
    runner_.sample(std::span(row_ids_).subspan(begin, count),
                   std::span(rows_).subspan(begin, count), LogprobsMode::kRaw,
                   std::span(results_).subspan(begin, count), static_cast<int>(level));
    begin = level_ends[level];
  }
}

void ModelDrafter::add_sample(Growth& growth, int row, int node, int ahead) {
  growth.samples.push_back(rows_.size());
  row_ids_.push_back(row);
  SampleRow params = make_row(*growth.request, node);
  params.position += ahead;
  // The grammar's mask there depends on earlier levels, so forbidden drafts are cut later.
  if (ahead > 0) params.allowed_mask = {};
  std::vector<float>& distribution = distributions_.emplace_back();
  if (options_.sampling == DraftSampling::kIndependent && !is_greedy(params.temperature)) {
    distribution.resize(std::max(num_tokens_, options_.vocab_size), 0.0f);
    params.distribution = distribution.data();
  }
  rows_.push_back(params);
}

int ModelDrafter::keep_distribution(Growth& growth, size_t sample) {
  std::vector<float>& probabilities = distributions_[sample];
  if (probabilities.empty()) return -1;
  cut_to_vocabulary(probabilities, options_.vocab_size);
  return growth.request->tree->add_distribution(std::move(probabilities));
}

void ModelDrafter::grow(Growth& growth) {
  std::vector<Frontier> next;
  for (size_t i = 0; i < growth.frontier.size(); ++i) {
    const size_t sample = growth.samples[i];
    const int distribution = keep_distribution(growth, sample);
    add_children(growth, growth.frontier[i], distribution, results_[sample], next);
  }
  choose_frontier(growth, next);
}

// Nodes of a level have the same continuations.
void ModelDrafter::grow_levels(Growth& growth) {
  for (const size_t sample : growth.samples) {
    if (growth.frontier.empty()) break;
    const int distribution = keep_distribution(growth, sample);
    std::vector<Frontier> next;
    for (const Frontier& frontier : growth.frontier) {
      add_children(growth, frontier, distribution, results_[sample], next);
    }
    choose_frontier(growth, next);
  }
  growth.frontier.clear();
}

void ModelDrafter::add_children(Growth& growth, const Frontier& frontier, int distribution,
                                const SampleResult& result, std::vector<Frontier>& next) {
  DraftTree& tree = *growth.request->tree;
  const auto add_open = [&](const OpenNode& open) {
    next.push_back({.open = open, .row = 0, .parent_slot = frontier.slot, .mask = frontier.mask});
  };
  float draw_survival = tree.survival(frontier.open.node);
  int order = 0;
  for (const Candidate& candidate : result.candidates) {
    if (candidate.token_id >= options_.vocab_size) continue;
    const int shape_node = options_.shape.child(frontier.open.shape_node, order++);
    if (shape_node < 0) break;
    int child = 0;
    if (distribution < 0) {
      child = tree.add(frontier.open.node, candidate.token_id,
                       tree.survival(frontier.open.node) * candidate.probability, options_.id,
                       candidate.probability);
    } else {
      child = tree.add_sampled(frontier.open.node, candidate.token_id, draw_survival, options_.id,
                               distribution);
      draw_survival *= kDrawDecay;
    }
    const float confidence = frontier.open.confidence * candidate.probability;
    add_open(
        {.node = child, .shape_node = shape_node, .confidence = confidence, .rating = confidence});
  }
  for (const OpenNode& open : children_of_others(tree, frontier.open, options_.id)) add_open(open);
}

void ModelDrafter::choose_frontier(Growth& growth, std::span<Frontier> level) const {
  const DraftRequest& request = *growth.request;
  std::vector<OpenNode> open;
  for (const Frontier& frontier : level) {
    open.push_back(frontier.open);
    if (request.policy == nullptr) continue;
    open.back().rating = static_cast<float>(
        request.policy->survival(request.sequence, *request.tree, frontier.open.node));
  }
  const std::vector<int> parents =
      choose_parents(*request.tree, open, options_.shape,
                     {.max_depth = max_depth(request),
                      .width = request.tree_width,
                      .room = std::max(0, request.draft_budget + 1 - growth.num_slots),
                      .min_confidence = options_.min_confidence});
  growth.frontier.clear();
  for (const int parent : parents) growth.frontier.push_back(std::move(level[parent]));
}

}  // namespace specdec
