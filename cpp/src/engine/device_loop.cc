#include "engine/device_loop.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/check.h"

namespace specdec {
namespace {

constexpr int kMaxUnderWay = 2;
constexpr int kMaxLogprobs = 20;  // of a request; more are left to the ordinary step
// Of a step: bounds its buffers, of which weighed drafts need a distribution a row.
constexpr int kMaxRows = 2048;
constexpr int kMaxWeighedRows = 512;
constexpr int kUsualLag = 2;  // tokens a draft model has not seen after it drafted
constexpr int kStepsUntilCatchUp = 32;

std::vector<int32_t> stop_tokens_of(const SamplingParams& params) {
  std::vector<int32_t> tokens = params.stop_token_ids;
  if (!params.ignore_eos) {
    tokens.insert(tokens.end(), params.eos_token_ids.begin(), params.eos_token_ids.end());
  }
  return tokens;
}

// The completion of a seat; null when it has ended.
CompletionState* running(const DeviceLoop::CompletionSource& completions, uint64_t ordinal) {
  CompletionState* completion = completions(ordinal);
  return completion == nullptr || completion->sequence.is_finished() ? nullptr : completion;
}

}  // namespace

int DeviceLoopConfig::step_rows() const {
  return std::min(max_rows, is_weighed() ? kMaxWeighedRows : kMaxRows);
}

int DeviceLoopConfig::step_seqs() const {
  return std::min(max_num_seqs, step_rows() / (is_weighed() ? 1 + max_drafts : 1));
}

std::unique_ptr<DeviceStep> DeviceLoop::make_step(Backend& backend, ModelRunner& target,
                                                  const SpeculativeConfig& speculative,
                                                  const DraftModels& draft_models,
                                                  const DeviceLoopConfig& config) {
  if (config.step_seqs() == 0) return nullptr;
  const auto& draft = draft_models.device_draft();
  const DraftSampling sampling = draft.has_value() ? draft->sampling : DraftSampling::kCoupled;
  // Branches of a tree take slots past the longest sequence.
  const int max_slots = config.max_model_len + speculative.max_nodes();
  return backend.make_device_step(
      {.num_seats = config.step_seqs(),
       .max_rows = config.step_rows(),
       .block_size = config.block_size,
       .max_blocks_per_request = num_blocks_for(max_slots, config.block_size),
       .max_logprobs = kMaxLogprobs,
       .tree = {.width = draft.has_value() ? speculative.tree_width : 1,
                .max_nodes = config.max_drafts},
       .sampling = sampling,
       .verification = config.verification,
       .accepts_trees = speculative.enabled() && !draft.has_value(),
       .synthetic_rates = config.synthetic_rates,
       .logprobs_mode = config.logprobs_mode,
       .target = &target,
       .draft = draft.has_value() ? draft->runner : nullptr});
}

DeviceLoop::DeviceLoop(std::unique_ptr<DeviceStep> device, Scheduler& scheduler, Drafting* drafting,
                       const DeviceLoopConfig& config)
    : device_(std::move(device)),
      scheduler_(scheduler),
      drafting_(drafting),
      drafter_(drafting == nullptr ? nullptr : drafting->device_drafter()),
      drafts_on_host_(drafting != nullptr && drafter_ == nullptr),
      config_(config),
      shape_(drafter_ == nullptr ? TreeShape{} : drafting->tree_shape()) {
  config_.max_rows = config.step_rows();
  config_.max_num_seqs = config.step_seqs();
}

bool DeviceLoop::run(const CompletionSource& completions, Step& step) {
  if (drafts_on_host_) return false;
  while (device_->num_under_way() < kMaxUnderWay && can_launch(completions)) {
    if (!launch(completions)) break;
  }
  if (device_->num_under_way() == 0) {
    is_current_ = false;
    return false;
  }
  const Launch oldest = launches_.front();
  launches_.pop_front();
  collect(completions, device_->wait(), oldest.num_passes, step);
  return true;
}

// What a device step does not do: bad words (they look back over the text), processors that are the
// host's, long lists of logprobs, and logprobs of tokens that weighing picks instead of the
// sampler.
bool DeviceLoop::serves(const Sequence& sequence) const {
  const SamplingParams& params = sequence.params;
  if (!params.bad_words.empty() || !params.logits_processors.empty()) return false;
  if (!params.logprobs.has_value()) return true;
  return !config_.is_weighed() && *params.logprobs >= 0 && *params.logprobs <= kMaxLogprobs;
}

bool DeviceLoop::can_launch(const CompletionSource& completions) {
  if (scheduler_.has_other_work() || scheduler_.num_running() == 0) return false;
  if (scheduler_.num_running() > config_.max_num_seqs) return false;
  const auto num_taken = static_cast<unsigned>(std::ranges::count_if(seats_, &Seat::is_taken));
  // Half of the seats have emptied: a smaller step would do.
  if (is_current_ && std::bit_ceil(num_taken) < std::bit_ceil(seats_.size())) is_current_ = false;
  if (is_current_) return num_taken > 0;
  return device_->num_under_way() == 0 && fill_seats(completions);
}

DeviceSeat DeviceLoop::seat_of(CompletionState& completion) {
  const Sequence& sequence = completion.sequence;
  const int num_tokens = sequence.num_tokens();
  DeviceSeat seat{.is_active = true,
                  .num_tokens = num_tokens,
                  .num_prompt_tokens = sequence.num_prompt_tokens(),
                  .max_num_tokens = sequence.max_num_tokens(),
                  .num_seen = num_tokens - 1,
                  .max_depth = 0,
                  .tokens = sequence.tokens().last(std::min(num_tokens, kMaxUnseen)),
                  .stop_token_ids = stop_tokens_of(sequence.params),
                  .min_tokens = sequence.params.min_tokens,
                  .sampling = completion.make_row({}),
                  .blocks = sequence.blocks.ids()};
  seat.sampling.banned_token_ids = {};  // stop tokens, as long as the output is short
  if (drafter_ != nullptr) {
    seat.num_seen = drafter_->ledger().num_seen(sequence.blocks, num_tokens - 1);
    seat.max_depth = drafting_->longest_draft(sequence);
  }
  return seat;
}

// None where that fails: the ordinary step meets the same error, and says whose it is.
std::optional<DeviceSeat> DeviceLoop::try_seat_of(CompletionState& completion) {
  try {
    return seat_of(completion);
  } catch (...) {
    return std::nullopt;
  }
}

bool DeviceLoop::fill_seats(const CompletionSource& completions) {
  seats_.clear();
  want_logprobs_ = false;
  lag_ = 1;
  std::vector<DeviceSeat> seats;
  for (Sequence* sequence : scheduler_.running()) {
    if (!serves(*sequence)) return false;
    CompletionState* completion = completions(sequence->ordinal);
    SPECDEC_CHECK(completion != nullptr);
    completion->begin_step();
    const std::optional<DeviceSeat> seat = try_seat_of(*completion);
    if (!seat.has_value()) return false;
    if (seat->max_depth > 0) lag_ = std::max(lag_, seat->num_tokens - seat->num_seen);
    want_logprobs_ |= sequence->params.logprobs.has_value();
    seats.push_back(*seat);
    seats_.push_back({.ordinal = sequence->ordinal,
                      .is_taken = true,
                      .sequence = sequence,
                      .num_tokens_ahead = sequence->num_tokens(),
                      .num_seen = seat->num_seen,
                      .blocks = {sequence->blocks.ids().begin(), sequence->blocks.ids().end()}});
  }
  if (lag_ <= kMaxUnseen) num_steps_until_catch_up_ = 0;
  device_->set_seats(seats);
  is_current_ = true;
  return true;
}

int DeviceLoop::padded_lag() const {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(lag_, kUsualLag))));
}

// Passes whose drafts there are rows for.
int DeviceLoop::most_passes() const {
  const int rows_per_seat = config_.max_rows / static_cast<int>(std::bit_ceil(seats_.size()));
  if (rows_per_seat < shape_.width) return 0;
  int num_passes = 0;
  while (num_passes < shape_.max_nodes && shape_.num_nodes(num_passes + 1) < rows_per_seat) {
    ++num_passes;
  }
  return num_passes;
}

// How much the step may draft; none when the draft model is too far behind to and the ordinary step
// has to let it catch up.
std::optional<int> DeviceLoop::choose_passes() {
  if (drafter_ == nullptr) return 0;
  std::vector<const Sequence*> sequences;
  for (const Seat& seat : seats_) {
    if (seat.is_taken) sequences.push_back(seat.sequence);
  }
  const int num_seats = static_cast<int>(std::bit_ceil(seats_.size()));
  const int num_passes = drafting_->plan_passes(sequences, most_passes(), std::max(lag_, 1));
  const bool is_near = lag_ <= kMaxUnseen && padded_lag() * num_seats <= config_.max_rows;
  if (num_passes == 0 || is_near) return num_passes;
  // It may not be let: then it is a while until the next attempt.
  if (num_steps_until_catch_up_-- > 0) return 0;
  num_steps_until_catch_up_ = kStepsUntilCatchUp;
  return std::nullopt;
}

// Blocks change at the end of a table only: past what is committed.
void DeviceLoop::add_new_blocks(size_t index, std::vector<NewBlock>& added) {
  Seat& seat = seats_[index];
  const std::span<const BlockId> ids = seat.sequence->blocks.ids();
  const int first = std::min(seat.sequence->num_computed_tokens / config_.block_size,
                             static_cast<int>(seat.blocks.size()));
  for (int i = first; i < static_cast<int>(ids.size()); ++i) {
    if (i < static_cast<int>(seat.blocks.size()) && seat.blocks[i] == ids[i]) continue;
    added.push_back({.seat = static_cast<int>(index), .index = i, .block = ids[i]});
  }
  seat.blocks.resize(first);
  seat.blocks.insert(seat.blocks.end(), ids.begin() + first, ids.end());
}

// Tokens that a step may write KV of, whatever those under way bring. Branches may lie past the
// longest the sequence can get.
int DeviceLoop::Seat::most_tokens(const TreeShape& shape, int num_passes) const {
  const int longest = sequence->max_num_tokens() - 1;  // that goes on
  int most = std::min(num_tokens_ahead, longest);
  for (int num_tokens = sequence->num_tokens(); num_tokens <= std::min(num_tokens_ahead, longest);
       ++num_tokens) {
    const int depth = std::min(num_passes, longest - num_tokens);
    most = std::max(most, num_tokens + shape.num_nodes(depth));
  }
  return most;
}

bool DeviceLoop::reserve(int num_passes) {
  std::vector<NewBlock> added;
  bool is_enough = true;
  for (size_t i = 0; i < seats_.size(); ++i) {
    Seat& seat = seats_[i];
    if (!seat.is_taken) continue;
    const int num_tokens = seat.most_tokens(shape_, num_passes);
    is_enough = is_enough && scheduler_.reserve(*seat.sequence, num_tokens);
    add_new_blocks(i, added);
  }
  device_->add_blocks(added);
  return is_enough;
}

void DeviceLoop::vacate(const CompletionSource& completions) {
  std::vector<int> gone;
  for (size_t i = 0; i < seats_.size(); ++i) {
    Seat& seat = seats_[i];
    if (!seat.is_taken || running(completions, seat.ordinal) != nullptr) continue;
    seat.is_taken = false;
    gone.push_back(static_cast<int>(i));
  }
  device_->deactivate(gone);
}

bool DeviceLoop::launch(const CompletionSource& completions) {
  vacate(completions);
  const std::optional<int> chosen = choose_passes();
  if (!chosen.has_value()) {
    is_current_ = false;
    return false;
  }
  const int num_passes = *chosen;
  if (!reserve(num_passes)) return false;
  device_->launch({.num_seats = static_cast<int>(seats_.size()),
                   .num_passes = num_passes,
                   .max_unseen = padded_lag(),
                   .want_logprobs = want_logprobs_});
  launches_.push_back({.num_passes = num_passes});
  lag_ = num_passes > 0 ? kUsualLag : lag_ + 1;
  for (Seat& seat : seats_) seat.num_tokens_ahead += num_passes + 1;
  return true;
}

bool DeviceLoop::can_verify(const ExecutionPlan& plan, const TreeSource& trees) const {
  if (!drafts_on_host_ || plan.sequences.size() != scheduler_.running().size()) return false;
  if (plan.num_rows > config_.max_rows || scheduler_.num_running() > config_.max_num_seqs) {
    return false;
  }
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const ScheduledSequence& scheduled = plan.sequences[i];
    const bool decodes = std::holds_alternative<Decoding>(scheduled.sequence->state);
    if (!decodes || !scheduled.samples || !serves(*scheduled.sequence)) return false;
    const DraftTree* tree = trees(i);
    for (int node = 0; tree != nullptr && node < tree->num_nodes(); ++node) {
      // Draws of a draft model from distributions the host holds.
      for (const DraftTree::Attempt& attempt : tree->attempts(node)) {
        if (attempt.distribution >= 0) return false;
      }
    }
  }
  return true;
}

std::optional<StepOutcome> DeviceLoop::verify(const ExecutionPlan& plan, const TreeSource& trees,
                                              const CompletionSource& completions) {
  if (!can_verify(plan, trees)) return std::nullopt;
  if (is_current_) vacate(completions);
  const auto num_taken = static_cast<size_t>(std::ranges::count_if(seats_, &Seat::is_taken));
  const bool fits = is_current_ && num_taken == plan.sequences.size() &&
                    std::bit_ceil(num_taken) == std::bit_ceil(seats_.size());
  if (!fits && !fill_seats(completions)) return std::nullopt;

  // Both are in order of arrival.
  std::vector<size_t> seat_of;
  for (size_t i = 0; i < seats_.size(); ++i) {
    if (seats_[i].is_taken) seat_of.push_back(i);
  }
  std::vector<NewBlock> added;
  std::vector<HostDraft> drafts;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    SPECDEC_CHECK_EQ(seats_[seat_of[i]].sequence, plan.sequences[i].sequence);
    add_new_blocks(seat_of[i], added);
    const DraftTree* tree = trees(i);
    if (tree == nullptr || tree->num_drafts() == 0) continue;
    drafts.push_back({.seat = static_cast<int>(seat_of[i]),
                      .tokens = tree->tokens().subspan(1),
                      .parents = tree->parents().subspan(1)});
  }
  device_->add_blocks(added);
  device_->launch({.num_seats = static_cast<int>(seats_.size()),
                   .num_passes = 0,
                   .host_drafts = drafts,
                   .want_logprobs = want_logprobs_});
  StepOutcome all = device_->wait();
  StepOutcome outcome = {.sequences = {}, .target_seconds = all.target_seconds};
  for (size_t seat : seat_of) outcome.sequences.push_back(std::move(all.sequences[seat]));
  return outcome;
}

void DeviceLoop::collect(const CompletionSource& completions, StepOutcome outcome, int num_passes,
                         Step& step) {
  step.draft_seconds = outcome.draft_seconds;
  step.target_seconds = outcome.target_seconds;
  const auto num_rows = static_cast<int>(std::ranges::count_if(seats_, &Seat::is_taken));
  if (num_passes > 0) {
    drafting_->record_passes(num_passes, num_rows * shape_.width, outcome.draft_seconds);
  }
  for (size_t i = 0; i < seats_.size(); ++i) {
    Seat& seat = seats_[i];
    SequenceOutcome& slot = outcome.sequences[i];
    if (!seat.is_taken) continue;
    CompletionState* completion = running(completions, seat.ordinal);
    if (completion == nullptr) {
      seat.is_taken = false;
      continue;
    }
    SPECDEC_CHECK(!slot.tokens.empty());
    Sequence& sequence = completion->sequence;
    const int num_drafts = static_cast<int>(slot.drafts.size());
    const int num_accepted = static_cast<int>(slot.accepted.size());
    // This step took less than it might have.
    seat.num_tokens_ahead -= num_passes + 1 - static_cast<int>(slot.tokens.size());
    if (drafter_ != nullptr) {
      if (num_drafts > 0) {
        const int num_seen =
            num_seen_after(sequence.num_tokens(), num_drafts, num_accepted, shape_.width > 1);
        drafter_->ledger().set_seen(sequence.blocks, seat.num_seen, num_seen);
        seat.num_seen = num_seen;
      }
    }
    DraftTree tree;
    tree.reset(sequence.tokens().back());
    for (int i = 0; i < num_drafts; ++i) tree.add(slot.parents[i], slot.drafts[i], 1.0f, 0);
    step.sequences.push_back(
        {.completion = completion,
         .scheduled = {.sequence = &sequence,
                       .num_rows = 1 + num_drafts,
                       .samples = true,
                       .num_draft_slots = num_drafts,
                       .max_draft_depth = num_drafts,
                       .num_tokens_to_keep = sequence.blocks.capacity_tokens()},
         .tree = std::move(tree),
         .num_passes = drafter_ == nullptr ? std::nullopt : std::optional(num_passes),
         .outcome = std::move(slot)});
  }
}

}  // namespace specdec
