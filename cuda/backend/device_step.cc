#include "cuda/backend/device_step.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/check.h"
#include "cuda/backend/kv_runs.h"

namespace specdec::cuda {
namespace {

constexpr int kMaxLogitRows = 512;  // more rows' logits are computed and sampled in turns

}  // namespace

CudaDeviceStep::CudaDeviceStep(CudaBackend& backend, const KernelTable& kernels,
                               const DeviceStepConfig& config)
    : backend_(backend),
      kernels_(kernels),
      config_(config),
      vocab_size_(config.target->vocab_size()),
      logit_rows_(std::min(config.max_rows, std::max(kMaxLogitRows, config.num_seats))),
      target_{config.target},
      draft_{config.draft},
      layout_(backend.device()),
      seats_(backend, kernels.step, config),
      reports_(backend, config) {
  allocate();
}

CudaDeviceStep::~CudaDeviceStep() {
  reports_.wait_for_all();  // does not wait for a rank that is gone
  backend_.recorder().forget(this);
}

void CudaDeviceStep::allocate() {
  const auto seats = static_cast<size_t>(config_.num_seats);
  const auto rows = static_cast<size_t>(config_.max_rows);
  const auto nodes = static_cast<size_t>(config_.tree.max_nodes);
  const auto width = static_cast<size_t>(config_.tree.width);
  const auto vocab = static_cast<size_t>(vocab_size_);
  const bool is_independent = config_.sampling == DraftSampling::kIndependent;
  const bool is_weighed = weighs_drafts(config_.verification);
  // Sizes of arrays that only some steps need, else 0.
  const size_t tree_rows = config_.accepts_trees || grows_trees() ? rows : 0;
  const size_t tree_nodes = config_.accepts_trees || grows_trees() ? seats * nodes : 0;
  const size_t grown = grows_trees() ? seats : 0;
  const size_t capacity = width * (1 + nodes);  // children of the root and of each node that runs
  const size_t weighed_rows = is_weighed ? rows : 0;
  const size_t state_seats = config_.has_states ? seats : 0;
  const size_t draft_head_rows = has_draft_head() ? rows : 0;
  memory_ = {.state = seats_.state(),
             .batch = {.token_ids = layout_.array<int32_t>(rows),
                       .positions = layout_.array<int32_t>(rows),
                       .slot_mapping = layout_.array<int64_t>(rows),
                       .cu_rows = layout_.array<int32_t>(seats + 1),
                       .base_lens = layout_.array<int32_t>(seats),
                       .sample_ids = layout_.array<int32_t>(rows),
                       .samples = layout_.array<DeviceSampleRow>(rows),
                       .feature_slots = layout_.array<int64_t>(draft_head_rows),
                       .state_slots = layout_.array<int64_t>(draft_head_rows),
                       .max_rows = config_.max_rows},
             .trees = {.is_tree = layout_.array<uint8_t>(seats),
                       .masks = layout_.array<uint64_t>(rows),
                       .parents = layout_.array<int32_t>(rows),
                       .paths = layout_.array<int32_t>(tree_rows * kMaxStepDrafts),
                       .seeds = layout_.array<uint64_t>(seats),
                       .attempts = layout_.array<VerifyAttempt>(rows),
                       .cu_attempts = layout_.array<int32_t>(seats + 1),
                       .targets = layout_.array<float>(weighed_rows * vocab, "distributions")},
             .states = {.slots_in = layout_.array<int32_t>(state_seats),
                        .cu_pending = layout_.array<int32_t>(config_.has_states ? seats + 1 : 0),
                        .pending = layout_.array<int32_t>(state_seats * nodes),
                        .cu_stores = layout_.array<int32_t>(config_.has_states ? seats + 1 : 0),
                        .stores = layout_.array<StateStore>(2 * state_seats),
                        .records = layout_.array<int32_t>(config_.has_states ? rows : 0)},
             .growths = {.seats = layout_.array<StepGrowth>(grown),
                         .nodes = layout_.array<StepTreeNode>(grown * capacity),
                         .frontiers = layout_.array<StepFrontier>(grown * width),
                         .num_kv_slots = layout_.array<int32_t>(grown),
                         .kv_offsets = layout_.array<int32_t>(grown * kMaxStepDrafts),
                         .capacity = static_cast<int32_t>(capacity),
                         .shape = config_.tree},
             .spans = {.span = config_.span,
                       .block_tables = seats_.span_tables(),
                       .first_spare = layout_.array<int32_t>(drafts_spans() ? seats : 0),
                       .tokens_before = layout_.array<int32_t>(drafts_spans() ? seats * width : 0),
                       .first_spare_block = 0,
                       .num_spare = 0},
             .accepted = {.num_accepted = layout_.array<int32_t>(seats),
                          .nodes = layout_.array<int32_t>(seats * nodes),
                          .num_tokens = layout_.array<int32_t>(seats),
                          .tokens = layout_.array<int32_t>(seats * (nodes + 1)),
                          .max_depth = config_.tree.max_nodes},
             .sampled = layout_.array<int32_t>(rows),
             .num_candidates = layout_.array<int32_t>(grown * width),
             .candidates = layout_.array<DeviceCandidate>(grown * width * width),
             .distributions =
                 layout_.array<float>(is_independent ? seats * nodes * vocab : 0, "distributions"),
             .token_lists = nullptr,
             .masks = nullptr,
             .reports = {},
             .ended_times = {},
             .times = layout_.array<StepTimes>(1),
             .num_ended = layout_.array<uint64_t>(1),
             .vocab_size = vocab_size_,
             .num_mask_words = seats_.num_mask_words(),
             .draft_kind = config_.draft_kind,
             .argmax = config_.sampling == DraftSampling::kArgmax,
             .is_weighed = is_weighed};
  reports_.set_addresses(memory_);
  no_trees_ = layout_.array<uint8_t>(seats);
  logits_ = layout_.array<float>(logit_rows_ * vocab, "logits");
  if (draft_.model != nullptr && draft_.model->draft_vocabulary().token_ids != nullptr) {
    SPECDEC_CHECK_EQ(draft_.model->draft_vocabulary().target_vocab_size, vocab_size_);
    const auto own_vocab = static_cast<size_t>(draft_.model->vocab_size());
    draft_head_logits_ = layout_.array<float>(logit_rows_ * own_vocab, "logits");
  }
  if (drafts_spans()) {
    const size_t span_rows = seats * static_cast<size_t>(config_.span.num_rows);
    span_logits_ = layout_.array<float>(std::min({span_rows, rows, size_t{kMaxSpanRows}}) *
                                            static_cast<size_t>(draft_.model->vocab_size()),
                                        "logits");
  }
  processed_.size = is_raw(config_.logprobs_mode) ? logits_.size : 0;
  sampler_ = layout_.array<char>(sample_workspace_bytes(logit_rows_, vocab_size_));
  residuals_ = layout_.array<double>(weighed_rows);
  moves_ = layout_.array<int64_t>(2 * tree_nodes);
  num_moves_ = layout_.array<int32_t>(1);
  accept_rates_ = layout_.array<double>(config_.synthetic_rates.size());
  backend_.staging().upload_to(accept_rates_, config_.synthetic_rates.data(),
                               accept_rates_.size_bytes());
}

int64_t CudaDeviceStep::bytes_on_demand() const {
  return static_cast<int64_t>(seats_.missing_bytes() + reports_.missing_bytes() +
                              processed_.missing_bytes());
}

void CudaDeviceStep::find_layers(Model& model) {
  if (model.model == nullptr || model.layers != nullptr) return;
  std::vector<KvLayerPointers> layers;
  for (const PagedKvView& layer : model.model->kv_layers()) {
    layers.push_back({.keys = layer.keys, .values = layer.values});
  }
  model.layers = layout_.array<KvLayerPointers>(layers.size());
  backend_.staging().upload_to(model.layers, layers.data(), model.layers.size_bytes());
}

void CudaDeviceStep::set_seats(std::span<const DeviceSeat> seats) {
  SPECDEC_CHECK_EQ(num_under_way(), 0);
  // The KV caches are made after the device step, but before the first request.
  if (config_.accepts_trees || grows_trees()) find_layers(target_);
  if (grows_trees() && !has_draft_head()) find_layers(draft_);
  if (drafts_spans()) {
    const std::span<const int32_t> spare = draft_.model->spare_blocks();
    StepSpans& spans = memory_.spans;
    spans.first_spare_block = spare.front();
    spans.num_spare = (config_.span.num_rows - 2) / config_.block_size + 1;
    SPECDEC_CHECK_LE(config_.num_seats * spans.num_spare, static_cast<int>(spare.size()));
  }
  if (seats_.set(seats)) backend_.recorder().forget(this);
  memory_.token_lists = seats_.token_lists();
}

StepShape CudaDeviceStep::shape_of(const DeviceStepPlan& plan) const {
  const int bucket = static_cast<int>(std::bit_ceil(static_cast<unsigned>(plan.num_seats)));
  StepShape shape = {.num_seats = std::min(bucket, config_.num_seats),
                     .num_passes = plan.num_passes,
                     .has_host_drafts = !plan.host_drafts.empty(),
                     .num_rows = 0,
                     .max_unseen = plan.num_passes > 0 ? plan.max_unseen : 0,
                     .num_logprobs = plan.want_logprobs ? config_.max_logprobs : -1,
                     .any_edits = seats_.any_edits() || !plan.masks.empty(),
                     .has_masks = !plan.masks.empty(),
                     .all_greedy = seats_.all_greedy()};
  if (!shape.has_host_drafts) {
    shape.num_rows = shape.num_seats * (1 + config_.tree.num_nodes(shape.num_passes));
    return shape;
  }
  shape.num_rows = plan.num_seats;
  for (const HostDraft& draft : plan.host_drafts) {
    shape.num_rows += static_cast<int>(draft.tokens.size());
  }
  SPECDEC_CHECK_LE(shape.num_rows, config_.max_rows);
  shape.num_rows = std::min(padded_count(shape.num_rows), config_.max_rows);
  return shape;
}

void CudaDeviceStep::launch(const DeviceStepPlan& plan) {
  SPECDEC_CHECK(!reports_.is_full());
  SPECDEC_CHECK_LE(plan.num_seats, config_.num_seats);
  SPECDEC_CHECK_LE(plan.num_passes, config_.tree.max_nodes);
  const StepShape shape = shape_of(plan);
  if (shape.has_host_drafts || shape.has_masks) {
    SPECDEC_CHECK(shape.num_passes == 0 && num_under_way() == 0);
    SPECDEC_CHECK(config_.accepts_trees || !shape.has_host_drafts);
    seats_.set_drafts(plan);
  }
  seats_.set_kept_slots(plan.kept_slots);
  reports_.reserve(shape);
  if (shape.num_logprobs >= 0 && shape.any_edits) {
    layout_.reserve(processed_, "logprobs of device steps");
  }
  backend_.recorder().run({.owner = this, .shape = shape.key()}, [&] {
    draft(shape);
    verify(shape);
  });
  reports_.launched(shape, memory_);
}

StepParams CudaDeviceStep::params(const StepShape& shape, int num_rows, int pass) const {
  SPECDEC_CHECK_LE(num_rows, config_.max_rows);
  StepParams params = {.memory = memory_,
                       .num_passes = shape.num_passes,
                       .has_host_drafts = shape.has_host_drafts,
                       .pass = pass};
  params.memory.state.num_seats = shape.num_seats;
  params.memory.masks = shape.has_masks ? seats_.masks() : nullptr;
  params.memory.batch.max_rows = num_rows;
  return params;
}

RecurrentRows CudaDeviceStep::recurrent_rows() const {
  const StepStates& states = memory_.states;
  return {.slots_in = states.slots_in,
          .cu_pending = states.cu_pending,
          .pending = states.pending,
          .cu_stores = states.cu_stores,
          .stores = states.stores,
          .parents = memory_.trees.parents,
          .records = states.records};
}

BatchView CudaDeviceStep::view(const StepShape& shape, int num_rows, bool has_trees) const {
  return {.num_requests = shape.num_seats,
          .num_rows = num_rows,
          .token_ids = memory_.batch.token_ids,
          .positions = memory_.batch.positions,
          .slot_mapping = memory_.batch.slot_mapping,
          .cu_rows = memory_.batch.cu_rows,
          .base_lens = memory_.batch.base_lens,
          .block_tables = memory_.state.block_tables,
          .max_blocks_per_request = memory_.state.max_blocks,
          .is_tree = has_trees ? memory_.trees.is_tree : no_trees_,
          .ancestor_mask = has_trees ? memory_.trees.masks : nullptr};
}

void CudaDeviceStep::draft_spans(const StepShape& shape) {
  if (shape.num_passes == 0) return;
  const auto rows_of = [&](int num_rows, bool is_span) {
    BatchView rows = view(shape, num_rows, is_span);
    if (is_span) rows.block_tables = memory_.spans.block_tables;
    rows.feature_slots = memory_.batch.feature_slots;
    rows.state_slots = memory_.batch.state_slots;
    return rows;
  };
  const int num_unseen = std::min(shape.num_seats * shape.max_unseen, config_.max_rows);
  forward(draft_, rows_of(num_unseen, false), PassRows::kContext, params(shape, num_unseen));
  const int num_rows = shape.num_seats * config_.span.num_rows;
  SPECDEC_CHECK_LE(num_rows, kMaxSpanRows);
  forward(draft_, rows_of(num_rows, true), PassRows::kSpan, params(shape, num_rows, /*pass=*/1));
  draft_.model->compute_logits(nullptr, num_rows, span_logits_);
  for (int pass = 0; pass < shape.num_passes; ++pass) {
    const StepParams params = this->params(shape, num_rows, pass);
    kernels_.step.make_rows(backend_.stream(), PassRows::kSpanSamples, params);
    sample(shape, draft_, shape.num_seats * (pass > 0 ? config_.tree.width : 1));
    if (grows_trees()) kernels_.step.grow_trees(backend_.stream(), params);
  }
}

void CudaDeviceStep::draft(const StepShape& shape) {
  if (drafts_spans()) return draft_spans(shape);
  for (int pass = 0; pass < shape.num_passes; ++pass) {
    const bool is_level = grows_trees() && pass > 0;
    const int rows_per_seat = pass == 0 ? shape.max_unseen : config_.tree.width;
    const int num_rows = std::min(shape.num_seats * rows_per_seat, config_.max_rows);
    const StepParams params = this->params(shape, num_rows, pass);
    BatchView rows = view(shape, num_rows, /*has_trees=*/is_level || reads_target_kv());
    if (is_level) rows.num_tree_slots = memory_.growths.num_kv_slots;
    rows.feature_slots = memory_.batch.feature_slots;
    rows.state_slots = memory_.batch.state_slots;
    forward(draft_, rows, is_level ? PassRows::kTree : PassRows::kDraft, params);
    sample(shape, draft_, shape.num_seats * (is_level ? config_.tree.width : 1));
    if (grows_trees()) kernels_.step.grow_trees(backend_.stream(), params);
  }
}

void CudaDeviceStep::forward(const Model& model, const BatchView& rows, PassRows kind,
                             const StepParams& params) {
  kernels_.step.make_rows(backend_.stream(), kind, params);
  model.model->forward(rows, params.pass);
}

void CudaDeviceStep::verify(const StepShape& shape) {
  const bool has_trees = shape.has_host_drafts || grew_trees(shape);
  const StepParams params = this->params(shape, shape.num_rows);
  BatchView rows = view(shape, shape.num_rows, has_trees);
  if (config_.has_states) rows.recurrent = recurrent_rows();
  forward(target_, rows, PassRows::kVerify, params);
  sample(shape, target_, shape.num_rows);
  if (!has_trees && !is_weighed(shape)) {
    return kernels_.step.walk_and_commit(backend_.stream(), params, walk_params(shape));
  }
  accept(shape);
  if (has_trees) move_kv(shape, target_, /*kv_offsets=*/nullptr);
  // A draft head runs accepted nodes again, so it needs no move.
  if (grew_trees(shape) && !has_draft_head()) move_kv(shape, draft_, memory_.growths.kv_offsets);
  kernels_.step.commit(backend_.stream(), params);
}

VerifyTrees CudaDeviceStep::trees(const StepShape& shape) const {
  return {.cu_rows = memory_.batch.cu_rows,
          .token_ids = memory_.batch.token_ids,
          .parents = memory_.trees.parents,
          .positions = memory_.batch.positions,
          .seeds = memory_.trees.seeds,
          .num_requests = shape.num_seats};
}

WalkParams CudaDeviceStep::walk_params(const StepShape& shape) const {
  return {.trees = trees(shape),
          .sampled = memory_.sampled,
          .rates = accept_rates_,
          .num_rates = static_cast<int>(accept_rates_.size),
          .accepted = memory_.accepted};
}

void CudaDeviceStep::accept(const StepShape& shape) {
  if (!is_weighed(shape)) {
    return kernels_.verify.walk(backend_.stream(), walk_params(shape));
  }
  kernels_.verify.weigh(backend_.stream(),
                        {.trees = trees(shape),
                         .attempts = memory_.trees.attempts,
                         .cu_attempts = memory_.trees.cu_attempts,
                         .target = memory_.trees.targets,
                         .drafts = memory_.distributions,
                         .vocab_size = vocab_size_,
                         .draft_vocab_size = vocab_size_,
                         .num_rows = shape.num_rows,
                         .is_block = config_.verification == Verification::kBlock,
                         .residuals = residuals_,
                         .accepted = memory_.accepted});
}

void CudaDeviceStep::move_kv(const StepShape& shape, const Model& model,
                             const int32_t* kv_offsets) {
  kernels_.verify.kv_moves(backend_.stream(), {.cu_rows = memory_.batch.cu_rows,
                                               .accepted = memory_.accepted,
                                               .base_lens = memory_.batch.base_lens,
                                               .kv_offsets = kv_offsets,
                                               .max_offsets = kMaxStepDrafts,
                                               .block_tables = memory_.state.block_tables,
                                               .max_blocks_per_request = memory_.state.max_blocks,
                                               .block_size = memory_.state.block_size,
                                               .num_requests = shape.num_seats,
                                               .slots = moves_,
                                               .num_pairs = num_moves_});
  const std::span<const PagedKvView> layers = model.model->kv_layers();
  for (const auto& run : runs_of_one_shape(layers)) {
    kernels_.attention.copy_kv(backend_.stream(),
                               {.layers = model.layers + (run.data() - layers.data()),
                                .num_layers = static_cast<int>(run.size()),
                                .shape = run.front(),
                                .slots = moves_,
                                .num_pairs = num_moves_});
  }
  const PagedRowsView features = model.model->features();
  if (features.width == 0) return;
  kernels_.attention.copy_rows(backend_.stream(),
                               {.rows = features, .slots = moves_, .num_pairs = num_moves_});
}

SampleOutputs CudaDeviceStep::draft_outputs(int first_row) const {
  SampleOutputs outputs{};
  outputs.token_ids = memory_.sampled + first_row;
  if (!grows_trees()) return outputs;
  outputs.num_candidates = memory_.num_candidates + first_row;
  outputs.candidates = memory_.candidates + int64_t{first_row} * config_.tree.width;
  outputs.max_candidates = config_.tree.width;
  return outputs;
}

void CudaDeviceStep::compute_logits(const Model& model, int first, int num_rows) {
  const DraftVocabulary own = model.model->draft_vocabulary();
  float* const logits = own.token_ids == nullptr ? logits_ : draft_head_logits_;
  const int32_t* row_ids = memory_.batch.sample_ids + first;
  if (&model == &draft_ && drafts_spans()) {
    const bool has_markov_head = model.model->has_markov_head();
    if (has_markov_head) {
      model.model->compute_markov_logits(memory_.spans.tokens_before + first, num_rows, logits);
    }
    backend_.gather_rows({.rows = span_logits_,
                          .row_ids = row_ids,
                          .out = logits,
                          .accumulate = has_markov_head,
                          .num_rows = num_rows,
                          .dim = model.model->vocab_size()});
  } else {
    model.model->compute_logits(row_ids, num_rows, logits);
  }
  if (own.token_ids == nullptr) return;
  kernels_.sampling.spread(backend_.stream(), {.logits = draft_head_logits_,
                                               .token_ids = own.token_ids,
                                               .out = logits_,
                                               .num_rows = num_rows,
                                               .vocab_size = model.model->vocab_size(),
                                               .target_vocab_size = vocab_size_});
}

bool CudaDeviceStep::takes_best(const StepShape& shape, bool is_draft) const {
  if (shape.any_edits || (is_draft && drafts_spans())) return false;
  if (!is_draft) return shape.all_greedy && shape.num_logprobs < 0 && !is_weighed(shape);
  return (shape.all_greedy || memory_.argmax != 0) && memory_.distributions == nullptr &&
         !grows_trees();
}

void CudaDeviceStep::sample(const StepShape& shape, const Model& model, int num_rows) {
  const bool is_draft = &model == &draft_;
  const bool best = takes_best(shape, is_draft);
  const bool raw = is_raw(config_.logprobs_mode);
  const bool keeps_raw = !is_draft && shape.num_logprobs >= 0 && raw && shape.any_edits;
  for (int first = 0; first < num_rows; first += logit_rows_) {
    const int count = std::min(logit_rows_, num_rows - first);
    if (best && model.model->best_tokens(memory_.batch.sample_ids + first, count,
                                         memory_.sampled + first)) {
      continue;
    }
    compute_logits(model, first, count);
    kernels_.sampling.sample(
        backend_.stream(),
        {.rows = memory_.batch.samples + first,
         .logits = logits_,
         .processed = keeps_raw ? processed_ : logits_,
         .token_lists = seats_.token_lists(),
         .counts = nullptr,
         .biases = seats_.biases(),
         .workspace = sample_workspace_at(sampler_, logit_rows_, vocab_size_),
         .outputs =
             is_draft ? draft_outputs(first) : reports_.outputs(shape, memory_.sampled, first),
         .num_rows = count,
         .vocab_size = vocab_size_,
         .raw_logprobs = raw,
         .logprobs_hold_logits = holds_logits(config_.logprobs_mode),
         .any_edits = shape.any_edits,
         .any_vectors = is_draft ? memory_.distributions != nullptr : is_weighed(shape)});
  }
}

}  // namespace specdec::cuda
