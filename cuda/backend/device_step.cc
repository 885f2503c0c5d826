#include "cuda/backend/device_step.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/check.h"

namespace specdec::cuda {
namespace {

// Logits of more rows are computed and sampled in turns.
constexpr int kMaxLogitRows = 512;
constexpr double kNanosecond = 1e-9;

// Nodes that a tree has before it is cut down: continuations of the root and of each node that the
// draft model ran.
int most_grown(const DeviceStepConfig& config) {
  return config.tree.width * (1 + config.tree.max_nodes);
}

int bucket_of(int num_slots, int limit) {
  return std::min(static_cast<int>(std::bit_ceil(static_cast<unsigned>(num_slots))), limit);
}

}  // namespace

CudaDeviceStep::CudaDeviceStep(CudaBackend& backend, const KernelTable& kernels,
                               const DeviceStepConfig& config)
    : backend_(backend), kernels_(kernels), config_(config) {
  const size_t slots = static_cast<size_t>(config.num_seats);
  const size_t rows = static_cast<size_t>(config.max_rows);
  const auto array = [&](size_t count, size_t size, const char* purpose = "device steps") {
    return backend.device().allocate(count * size, purpose);
  };
  slots_ = array(slots, sizeof(StepSlot));
  block_tables_ = array(slots * config.max_blocks_per_request, sizeof(int32_t));
  token_ids_ = array(rows, sizeof(int32_t));
  positions_ = array(rows, sizeof(int32_t));
  slot_mapping_ = array(rows, sizeof(int64_t));
  cu_rows_ = array(slots + 1, sizeof(int32_t));
  base_lens_ = array(slots, sizeof(int32_t));
  sample_ids_ = array(rows, sizeof(int32_t));
  is_tree_ = array(slots, sizeof(uint8_t));
  chains_ = array(slots, sizeof(uint8_t));
  masks_ = array(rows, sizeof(uint64_t));
  parents_ = array(rows, sizeof(int32_t));
  const bool has_trees = config.accepts_trees || config.tree.width > 1;
  if (has_trees) paths_ = array(rows * kMaxStepDrafts, sizeof(int32_t));
  seeds_ = array(slots, sizeof(uint64_t));
  attempts_ = array(rows, sizeof(VerifyAttempt));
  cu_attempts_ = array(slots + 1, sizeof(int32_t));
  const size_t drafts = static_cast<size_t>(config.tree.max_nodes);
  num_accepted_ = array(slots, sizeof(int32_t));
  accepted_nodes_ = array(std::max<size_t>(slots * drafts, 1), sizeof(int32_t));
  num_emitted_ = array(slots, sizeof(int32_t));
  emitted_ = array(slots * (drafts + 1), sizeof(int32_t));
  samples_ = array(rows, sizeof(DeviceSampleRow));
  sampled_ = array(rows, sizeof(int32_t));
  reports_ = array(slots, sizeof(StepReport));
  times_ = array(2, sizeof(StepTimes));
  logit_rows_ = std::min(config.max_rows, std::max(kMaxLogitRows, config.num_seats));
  const int vocab_size = config.target->vocab_size();
  logits_ = array(static_cast<size_t>(logit_rows_) * vocab_size, sizeof(float), "logits");
  sampler_ = array(sample_workspace_bytes(logit_rows_, vocab_size), 1);
  if (weighs_drafts(config.verification)) {
    targets_ = array(rows * vocab_size, sizeof(float), "distributions");
    residuals_ = array(rows, sizeof(double));
  }
  if (config.sampling == DraftSampling::kIndependent) {
    distributions_ = array(slots * drafts * vocab_size, sizeof(float), "distributions");
  }
  if (config.tree.width > 1) {
    const size_t samples = slots * config.tree.width;
    growths_ = array(slots, sizeof(StepGrowth));
    nodes_ = array(slots * most_grown(config), sizeof(StepTreeNode));
    frontiers_ = array(samples, sizeof(StepFrontier));
    num_kv_slots_ = array(slots, sizeof(int32_t));
    num_candidates_ = array(samples, sizeof(int32_t));
    candidates_ = array(samples * config.tree.width, sizeof(DeviceCandidate));
    kv_places_ = array(slots * kMaxStepDrafts, sizeof(int32_t));
  }
  if (has_trees) {
    moves_ = array(slots * drafts * 2, sizeof(int64_t));
    num_moves_ = array(1, sizeof(int32_t));
  }
  pinned_slots_ = backend.device().allocate_pinned(slots_.size_bytes(), "device steps");
  pinned_tables_ = backend.device().allocate_pinned(block_tables_.size_bytes(), "device steps");
  if (!config.synthetic_rates.empty()) {
    const size_t size_bytes = config.synthetic_rates.size() * sizeof(double);
    accept_rates_ = backend.device().allocate(size_bytes, "device steps");
    backend.stream().copy_to_device(accept_rates_.data(), config.synthetic_rates.data(),
                                    size_bytes);
    backend.stream().synchronize();
  }
  for (Ring& ring : rings_) {
    ring.reports = backend.device().allocate_pinned(slots * sizeof(StepReport), "device steps");
    ring.times = backend.device().allocate_pinned(sizeof(StepTimes), "device steps");
    ring.done = backend.device().make_event();
  }
}

CudaDeviceStep::~CudaDeviceStep() {
  while (num_under_way() > 0) rings_[num_collected_++ % rings_.size()].done->wait();
  backend_.recorder().forget(this);
}

StepSlots CudaDeviceStep::state(int num_slots) {
  return {.slots = slots_.as<StepSlot>(),
          .block_tables = block_tables_.as<int32_t>(),
          .num_slots = num_slots,
          .max_blocks = config_.max_blocks_per_request,
          .block_size = config_.block_size};
}

StepBatch CudaDeviceStep::batch(int max_rows) {
  SPECDEC_CHECK_LE(max_rows, config_.max_rows);
  return {.token_ids = token_ids_.as<int32_t>(),
          .positions = positions_.as<int32_t>(),
          .slot_mapping = slot_mapping_.as<int64_t>(),
          .cu_rows = cu_rows_.as<int32_t>(),
          .base_lens = base_lens_.as<int32_t>(),
          .sample_ids = sample_ids_.as<int32_t>(),
          .samples = samples_.as<DeviceSampleRow>(),
          .max_rows = max_rows};
}

BatchView CudaDeviceStep::view(int num_slots, int num_rows) {
  return {.num_requests = num_slots,
          .num_rows = num_rows,
          .token_ids = token_ids_.as<int32_t>(),
          .positions = positions_.as<int32_t>(),
          .slot_mapping = slot_mapping_.as<int64_t>(),
          .cu_rows = cu_rows_.as<int32_t>(),
          .base_lens = base_lens_.as<int32_t>(),
          .block_tables = block_tables_.as<int32_t>(),
          .max_blocks_per_request = config_.max_blocks_per_request,
          .is_tree = chains_.as<uint8_t>()};
}

BatchView CudaDeviceStep::tree_view(int num_slots, int num_rows) {
  BatchView trees = view(num_slots, num_rows);
  trees.is_tree = is_tree_.as<uint8_t>();
  trees.ancestor_mask = masks_.as<uint64_t>();
  return trees;
}

StepTrees CudaDeviceStep::trees(const Shape& shape) {
  return {.is_tree = is_tree_.as<uint8_t>(),
          .masks = masks_.as<uint64_t>(),
          .parents = parents_.as<int32_t>(),
          .paths = paths_.as<int32_t>(),
          .seeds = seeds_.as<uint64_t>(),
          .attempts = attempts_.as<VerifyAttempt>(),
          .cu_attempts = cu_attempts_.as<int32_t>(),
          .targets = is_weighed(shape) ? targets_.as<float>() : nullptr,
          .vocab_size = config_.target->vocab_size(),
          .max_drafts = config_.tree.max_nodes,
          .has_draft_distributions =
              config_.sampling == DraftSampling::kIndependent && shape.num_passes > 0};
}

StepGrowths CudaDeviceStep::growths() {
  return {.slots = growths_.as<StepGrowth>(),
          .nodes = nodes_.as<StepTreeNode>(),
          .frontiers = frontiers_.as<StepFrontier>(),
          .num_kv_slots = num_kv_slots_.as<int32_t>(),
          .kv_places = kv_places_.as<int32_t>(),
          .capacity = most_grown(config_),
          .width = config_.tree.width,
          .max_nodes = config_.tree.max_nodes};
}

AcceptedDrafts CudaDeviceStep::accepted() {
  return {.num_accepted = num_accepted_.as<int32_t>(),
          .nodes = accepted_nodes_.as<int32_t>(),
          .num_tokens = num_emitted_.as<int32_t>(),
          .tokens = emitted_.as<int32_t>(),
          .max_depth = config_.tree.max_nodes};
}

// ---- steps

CudaDeviceStep::Shape CudaDeviceStep::shape_of(const DeviceStepPlan& plan) const {
  Shape shape = {.num_slots = bucket_of(plan.num_seats, config_.num_seats),
                 .num_passes = plan.num_passes,
                 .num_rows = 0,
                 .lag = plan.num_passes > 0 ? plan.max_unseen : 0,
                 .num_logprobs = plan.want_logprobs ? config_.max_logprobs : -1,
                 .any_edits = any_edits_};
  shape.num_rows = shape.num_slots * (1 + config_.tree.num_nodes(shape.num_passes));
  if (plan.host_drafts.empty()) return shape;
  shape.num_passes = kHostDrafts;
  shape.num_rows = plan.num_seats;
  for (const HostDraft& draft : plan.host_drafts) {
    shape.num_rows += static_cast<int>(draft.tokens.size());
  }
  SPECDEC_CHECK_LE(shape.num_rows, config_.max_rows);
  shape.num_rows = std::min(padded_count(shape.num_rows), config_.max_rows);
  return shape;
}

void CudaDeviceStep::launch(const DeviceStepPlan& plan) {
  SPECDEC_CHECK_LT(num_under_way(), static_cast<int>(rings_.size()));
  SPECDEC_CHECK_LE(plan.num_seats, config_.num_seats);
  SPECDEC_CHECK_LE(plan.num_passes, config_.tree.max_nodes);
  if (!plan.host_drafts.empty()) set_drafts(plan.host_drafts);
  const Shape shape = shape_of(plan);
  reserve(shape);
  backend_.recorder().run({.owner = this,
                           .shape = {shape.num_slots, shape.num_passes, shape.num_rows, shape.lag,
                                     shape.num_logprobs, shape.any_edits}},
                          [&] {
                            draft(shape);
                            verify(shape);
                          });
  report(shape);
}

void CudaDeviceStep::set_drafts(std::span<const HostDraft> drafts) {
  SPECDEC_CHECK(config_.accepts_trees);
  SPECDEC_CHECK_EQ(num_under_way(), 0);
  std::vector<SlotDrafts> records;
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;
  for (const HostDraft& draft : drafts) {
    SPECDEC_CHECK_LE(draft.tokens.size(), static_cast<size_t>(config_.tree.max_nodes));
    SPECDEC_CHECK_EQ(draft.tokens.size(), draft.parents.size());
    SlotDrafts& record = records.emplace_back();
    record = {.slot = draft.seat,
              .num_drafts = static_cast<int32_t>(draft.tokens.size()),
              .first = static_cast<int32_t>(tokens.size()),
              .is_tree = 0};
    for (size_t i = 0; i < draft.tokens.size(); ++i) {
      if (draft.parents[i] != static_cast<int32_t>(i)) record.is_tree = 1;
    }
    tokens.insert(tokens.end(), draft.tokens.begin(), draft.tokens.end());
    parents.insert(parents.end(), draft.parents.begin(), draft.parents.end());
  }
  Staging& staging = backend_.staging();
  kernels_.step.set_drafts(backend_.stream(),
                           {.state = state(config_.num_seats),
                            .drafts = staging.upload(std::span<const SlotDrafts>(records)),
                            .tokens = staging.upload(std::span<const int32_t>(tokens)),
                            .parents = staging.upload(std::span<const int32_t>(parents)),
                            .num_drafted = static_cast<int32_t>(records.size())});
}

size_t CudaDeviceStep::num_logprobs_bytes() const {
  return static_cast<size_t>(config_.max_rows) * sizeof(int32_t);
}

size_t CudaDeviceStep::logprobs_bytes() const {
  return static_cast<size_t>(config_.max_rows) * (config_.max_logprobs + 1) * sizeof(DeviceLogprob);
}

size_t CudaDeviceStep::count_tables_bytes() const {
  return static_cast<size_t>(config_.num_seats) * config_.target->vocab_size() * sizeof(int32_t);
}

int64_t CudaDeviceStep::bytes_on_demand() const {
  size_t bytes = 0;
  const auto add = [&](const Buffer& buffer, size_t size_bytes) {
    if (buffer.empty()) bytes += size_bytes;
  };
  add(num_logprobs_, num_logprobs_bytes());
  add(logprobs_, logprobs_bytes());
  if (is_raw(config_.logprobs_mode)) add(processed_, logits_.size_bytes());
  add(count_tables_, count_tables_bytes());
  return static_cast<int64_t>(bytes);
}

void CudaDeviceStep::reserve(const Shape& shape) {
  if (shape.num_logprobs < 0) return;
  const auto fit = [&](Buffer& buffer, size_t size_bytes) {
    if (!buffer.empty()) return;
    buffer = backend_.device().allocate(size_bytes, "logprobs of device steps");
  };
  fit(num_logprobs_, num_logprobs_bytes());
  fit(logprobs_, logprobs_bytes());
  if (shape.any_edits && is_raw(config_.logprobs_mode)) {
    fit(processed_, logits_.size_bytes());
  }
  for (Ring& ring : rings_) {
    if (!ring.logprobs.empty()) continue;
    ring.logprobs = backend_.device().allocate_pinned(logprobs_.size_bytes(), "logprobs");
    ring.num_logprobs = backend_.device().allocate_pinned(num_logprobs_.size_bytes(), "logprobs");
    ring.cu_rows = backend_.device().allocate_pinned(cu_rows_.size_bytes(), "logprobs");
  }
}

// ---- what the host reads

// Behind the graph, which has the same addresses every time: the host may still be reading what the
// step before reported.
void CudaDeviceStep::report(const Shape& shape) {
  Stream& stream = backend_.stream();
  Ring& ring = rings_[num_launched_++ % rings_.size()];
  ring.shape = shape;
  const size_t slots = static_cast<size_t>(shape.num_slots);
  stream.copy_to_host(ring.reports.data(), reports_.data(), slots * sizeof(StepReport));
  stream.copy_to_host(ring.times.data(), times_.as<StepTimes>() + 1, sizeof(StepTimes));
  if (shape.num_logprobs >= 0) {
    const size_t rows = static_cast<size_t>(shape.num_rows);
    stream.copy_to_host(ring.cu_rows.data(), cu_rows_.data(), (slots + 1) * sizeof(int32_t));
    stream.copy_to_host(ring.num_logprobs.data(), num_logprobs_.data(), rows * sizeof(int32_t));
    stream.copy_to_host(ring.logprobs.data(), logprobs_.data(),
                        rows * (shape.num_logprobs + 1) * sizeof(DeviceLogprob));
  }
  stream.record(*ring.done);
}

StepOutcome CudaDeviceStep::wait() {
  SPECDEC_CHECK_GT(num_under_way(), 0);
  const Ring& ring = rings_[num_collected_++ % rings_.size()];
  ring.done->wait();
  StepOutcome outcome;
  const auto* reports = ring.reports.as<StepReport>();
  for (int i = 0; i < ring.shape.num_slots; ++i) {
    const StepReport& report = reports[i];
    SequenceOutcome& slot = outcome.sequences.emplace_back();
    slot.drafts.assign(report.drafts, report.drafts + report.num_drafts);
    for (int d = 0; d < report.num_drafts; ++d) {
      slot.parents.push_back(report.is_tree != 0 ? report.parents[d] : d);
    }
    slot.accepted.assign(report.nodes, report.nodes + report.num_accepted);
    slot.tokens.assign(report.tokens, report.tokens + report.num_tokens);
    if (ring.shape.num_logprobs < 0) continue;
    const int first_row = ring.cu_rows.as<int32_t>()[i];
    for (int t = 0; t < report.num_tokens; ++t) {
      slot.logprobs.push_back(read_logprobs(ring, first_row + (t == 0 ? 0 : report.nodes[t - 1])));
    }
  }
  const auto& times = *ring.times.as<StepTimes>();
  // The clock is read on different multiprocessors, and may tick coarsely.
  const auto seconds = [](uint64_t from, uint64_t to) {
    return to > from ? static_cast<double>(to - from) * kNanosecond : 0.0;
  };
  outcome.target_seconds = seconds(times.verify, times.end);
  if (ring.shape.num_passes > 0) outcome.draft_seconds = seconds(times.draft, times.verify);
  return outcome;
}

PositionLogprobs CudaDeviceStep::read_logprobs(const Ring& ring, int row) {
  const int count = ring.num_logprobs.as<int32_t>()[row];
  const auto* entries =
      ring.logprobs.as<DeviceLogprob>() + int64_t{row} * (ring.shape.num_logprobs + 1);
  PositionLogprobs logprobs;
  for (int i = 0; i < count; ++i) {
    logprobs.push_back({entries[i].token_id, entries[i].logprob, entries[i].rank});
  }
  return logprobs;
}

}  // namespace specdec::cuda
