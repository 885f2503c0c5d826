#include "engine/device_executor.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "core/check.h"

namespace specdec {
namespace {

constexpr int kMaxLogprobs = 20;  // per request; the host runs requests that want more
// Per step. Bounds the buffers: rejection verification needs a distribution per row.
constexpr int kMaxRows = 2048;
constexpr int kMaxWeighedRows = 512;
// Steps until the policy is asked again whether the draft model may catch up, once it said no.
constexpr int kStepsUntilCatchUp = 32;

bool has_grammar(const CompletionState* completion) {
  return completion->request.params.grammar != nullptr;
}

// Whether the host has to draft for it.
bool drafts_from_host(const CompletionState* completion) {
  return has_grammar(completion) || !completion->request.params.prediction.empty();
}

std::vector<int32_t> stop_tokens_of(const SamplingParams& params) {
  std::vector<int32_t> tokens = params.stop_token_ids;
  if (!params.ignore_eos) {
    tokens.insert(tokens.end(), params.eos_token_ids.begin(), params.eos_token_ids.end());
  }
  return tokens;
}

// Rows per request of a draft model's catch-up pass: a power of two, at least the number of unseen
// tokens after a step that drafted one token.
int padded(DraftModelKind kind, int num_unseen) {
  const int usual = max_unseen_after(kind, /*depth=*/1);
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(num_unseen, usual))));
}

}  // namespace

int DeviceExecutorConfig::step_rows() const {
  return std::min(max_rows, weighs_drafts(speculative.verification) ? kMaxWeighedRows : kMaxRows);
}

int DeviceExecutorConfig::step_seqs() const {
  const int rows_per_seat =
      weighs_drafts(speculative.verification) ? 1 + speculative.max_nodes() : 1;
  return std::min(max_num_seqs, step_rows() / rows_per_seat);
}

DeviceExecutorConfig DeviceExecutorConfig::of(const EngineModels& models) {
  const EngineConfig& config = models.config();
  return {.max_num_seqs = config.max_num_seqs,
          .max_rows = config.max_num_batched_tokens,
          .max_model_len = models.max_model_len(),
          .block_size = config.block_size,
          .logprobs_mode = config.logprobs_mode,
          .speculative = config.speculative};
}

std::unique_ptr<DeviceStep> DeviceExecutor::make_step(const EngineModels& models,
                                                      const DeviceExecutorConfig& config) {
  Backend& backend = models.backend();
  const RankCoordinates& coordinates = models.coordinates();
  // Rows come from earlier stages by the host; so do other ranks' parts where work that exchanges
  // them cannot be recorded.
  if (coordinates.num_stages > 1) return nullptr;
  if (coordinates.ranks != nullptr && !backend.can_record_ranks()) return nullptr;
  if (config.step_seqs() == 0) return nullptr;
  const SpeculativeConfig& speculative = config.speculative;
  const auto& draft = models.draft_models().device_draft();
  const int max_nodes = speculative.enabled() ? speculative.max_nodes() : 0;
  // Branches of a tree and rows of a span take slots past the longest sequence.
  const SpanConfig span = draft.has_value() ? draft->span : SpanConfig{};
  const int max_slots = config.max_model_len + std::max(max_nodes, span.num_rows);
  return backend.make_device_step(
      {.num_seats = config.step_seqs(),
       .max_rows = config.step_rows(),
       .block_size = config.block_size,
       .max_blocks_per_request = num_blocks_for(max_slots, config.block_size),
       .max_logprobs = kMaxLogprobs,
       .tree = {.width = draft.has_value() ? speculative.tree_width : 1, .max_nodes = max_nodes},
       .sampling = draft.has_value() ? draft->sampling : DraftSampling::kCoupled,
       .verification = speculative.verification,
       .accepts_trees = speculative.enabled() && !draft.has_value(),
       .has_states = models.model().has_states(),
       .synthetic_rates = speculative.verification == Verification::kSynthetic
                              ? speculative.conditional_acceptance_rates()
                              : std::vector<double>{},
       .logprobs_mode = config.logprobs_mode,
       .target = &models.target(),
       .draft = draft.has_value() ? draft->runner : nullptr,
       .draft_kind = draft.has_value() ? draft->kind : DraftModelKind::kModel,
       .span = span});
}

DeviceExecutor::DeviceExecutor(std::unique_ptr<DeviceStep> device, Drafting* drafting,
                               ThreadPool& threads, const DeviceExecutorConfig& config)
    : device_(std::move(device)),
      config_(config),
      drafting_(drafting),
      drafter_(drafting == nullptr ? nullptr : drafting->device_drafter()),
      threads_(threads),
      drafts_on_host_(drafting != nullptr && drafter_ == nullptr),
      shape_(drafter_ == nullptr ? TreeShape{} : drafting->tree_shape()),
      span_rows_(drafter_ == nullptr ? 0 : drafter_->span_rows()) {}

// A device step does no processors (they are the host's), no long lists of logprobs, and no
// logprobs of tokens that weighing picks instead of the sampler. Grammars have masks of the host's,
// which cannot tell what the device drafts; the host also decides what holds where a grammar and
// another list leave no token.
bool DeviceExecutor::serves(const CompletionState& completion) const {
  const SamplingParams& params = completion.request.params;
  if (!params.logits_processors.empty()) return false;
  if (params.grammar != nullptr && (drafter_ != nullptr || !params.allowed_token_ids.empty() ||
                                    completion.sequence.num_output_tokens() < params.min_tokens)) {
    return false;
  }
  if (!params.logprobs.has_value()) return true;
  return !weighs_drafts(config_.speculative.verification) && *params.logprobs >= 0 &&
         *params.logprobs <= kMaxLogprobs;
}

// ---- seats

unsigned DeviceExecutor::Seating::num_taken() const {
  return static_cast<unsigned>(std::ranges::count_if(seats, &Seat::is_taken));
}

bool DeviceExecutor::seat(std::span<CompletionState* const> completions) {
  if (completions.empty() || static_cast<int>(completions.size()) > config_.step_seqs())
    return false;
  if (seating_.has_value()) {
    vacate_others(completions);
    const unsigned num_taken = seating_->num_taken();
    // A step is as large as the next power of two of its seats: with half of them empty, a smaller
    // one would do.
    if (num_taken != completions.size() ||
        std::bit_ceil(num_taken) < std::bit_ceil(seating_->seats.size())) {
      seating_.reset();
    }
  }
  if (!seating_.has_value() && num_under_way() == 0) seating_ = take_seats(completions);
  return seating_.has_value();
}

std::optional<DeviceExecutor::Seating> DeviceExecutor::take_seats(
    std::span<CompletionState* const> completions) {
  Seating seating;
  std::vector<DeviceSeat> seats;
  for (CompletionState* completion : completions) {
    if (!serves(*completion)) return std::nullopt;
    const Sequence& sequence = completion->sequence;
    completion->begin_step();
    try {
      seats.push_back(seat_of(*completion));
    } catch (...) {
      return std::nullopt;  // the host meets the same error, and says whose it is
    }
    const DeviceSeat& seat = seats.back();
    if (seat.max_depth > 0) {
      const int first = first_unseen(kind(), seat.num_tokens, seat.num_seen);
      seating.num_unseen = std::max(seating.num_unseen, seat.num_tokens - first);
    }
    seating.want_logprobs |= sequence.params.logprobs.has_value();
    const std::span<const BlockId> blocks = sequence.blocks.ids();
    seating.seats.push_back({.precedence = sequence.precedence(),
                             .is_taken = true,
                             .blocks = {blocks.begin(), blocks.end()}});
  }
  if (seating.num_unseen <= kMaxUnseen) num_steps_until_catch_up_ = 0;
  device_->set_seats(seats);
  return seating;
}

DeviceSeat DeviceExecutor::seat_of(CompletionState& completion) const {
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
                  .blocks = sequence.blocks.ids(),
                  .state = {.slot = sequence.states.slot,
                            .first_records = sequence.states.first_records,
                            .pending = sequence.states.pending}};
  seat.sampling.banned_token_ids = {};  // stop tokens, as long as the output is short
  seat.sampling.allowed_mask = {};      // comes with each step
  if (drafter_ != nullptr) {
    seat.num_seen = drafter_->ledger().num_seen(sequence.blocks, num_tokens - 1);
    seat.max_depth = drafting_->longest_draft(sequence);
  }
  return seat;
}

void DeviceExecutor::vacate_others(std::span<CompletionState* const> completions) {
  std::vector<int> gone;
  size_t next = 0;
  for (size_t i = 0; i < seating_->seats.size(); ++i) {
    Seat& seat = seating_->seats[i];
    if (!seat.is_taken) continue;
    while (next < completions.size() && completions[next]->sequence.precedence() < seat.precedence)
      ++next;
    if (next < completions.size() && completions[next]->sequence.precedence() == seat.precedence)
      continue;
    seat.is_taken = false;
    gone.push_back(static_cast<int>(i));
  }
  if (!gone.empty()) device_->deactivate(gone);
}

// ---- what can be run

// Passes whose drafts there are rows for.
int DeviceExecutor::most_passes() const {
  const int rows_per_seat =
      config_.step_rows() / static_cast<int>(std::bit_ceil(seating_->seats.size()));
  if (rows_per_seat < std::max(shape_.width, span_rows_)) return 0;
  if (span_rows_ * static_cast<int>(std::bit_ceil(seating_->seats.size())) > kMaxSpanRows) return 0;
  // There must also be room for the first pass of the next step.
  const auto fits = [&](int num_passes) {
    return shape_.num_nodes(num_passes) < rows_per_seat &&
           padded(kind(), max_unseen_after(kind(), num_passes)) <= rows_per_seat;
  };
  int num_passes = 0;
  while (num_passes < shape_.max_nodes && fits(num_passes + 1)) ++num_passes;
  return num_passes;
}

std::optional<PassesAhead> DeviceExecutor::passes_ahead(std::span<CompletionState* const> running) {
  if (drafts_on_host_ || host_is_next_) return std::nullopt;
  if (std::ranges::any_of(running, drafter_ == nullptr ? has_grammar : drafts_from_host) ||
      !seat(running)) {
    return std::nullopt;
  }
  if (drafter_ == nullptr) return PassesAhead{};
  std::vector<const Sequence*> sequences;
  for (const CompletionState* completion : running) sequences.push_back(&completion->sequence);
  PassesAhead ahead =
      drafting_->plan_passes(sequences, most_passes(), std::max(seating_->num_unseen, 1));
  const int num_seats = static_cast<int>(std::bit_ceil(seating_->seats.size()));
  const bool is_near = seating_->num_unseen <= kMaxUnseen &&
                       padded(kind(), seating_->num_unseen) * num_seats <= config_.step_rows();
  if (ahead.num_passes == 0 || is_near) return ahead;
  if (num_steps_until_catch_up_-- > 0) {
    ahead.num_passes = 0;
    return ahead;
  }
  // In the host's step the policy may still refuse to pay for catching up.
  num_steps_until_catch_up_ = kStepsUntilCatchUp;
  host_is_next_ = true;
  return std::nullopt;
}

bool DeviceExecutor::can_run(const Step& step, int num_running) {
  if (drafter_ != nullptr || static_cast<int>(step.completions.size()) != num_running) return false;
  if (!drafts_on_host_ && std::ranges::none_of(step.completions, has_grammar)) return false;
  if (step.plan.num_rows > config_.step_rows()) return false;
  for (size_t i = 0; i < step.completions.size(); ++i) {
    const bool decodes = std::holds_alternative<Decoding>(step.completions[i]->sequence.state);
    if (!decodes || !step.plan.sequences[i].samples || !serves(*step.completions[i])) return false;
    const DraftTree* tree = step.trees[i];
    for (int node = 0; tree != nullptr && node < tree->num_nodes(); ++node) {
      // Draws of a draft model from distributions the host holds.
      for (const DraftTree::Attempt& attempt : tree->attempts(node)) {
        if (attempt.distribution >= 0) return false;
      }
    }
  }
  return make_masks(step) && seat(step.completions);
}

bool DeviceExecutor::make_masks(const Step& step) {
  std::vector<size_t> constrained;
  for (size_t i = 0; i < step.completions.size(); ++i) {
    if (has_grammar(step.completions[i])) constrained.push_back(i);
  }
  std::atomic<bool> all_made = true;
  for_each_index(&threads_, constrained.size(), [&](size_t k) {
    const size_t i = constrained[k];
    if (!step.completions[i]->grammar()->make_masks(step.trees[i])) all_made = false;
  });
  return all_made;
}

// ---- steps

// Blocks change only at the end of a table, past the committed tokens.
void DeviceExecutor::add_new_blocks(const Sequence& sequence, int index,
                                    std::vector<NewBlock>& added) {
  std::vector<int32_t>& known = seating_->seats[index].blocks;
  const std::span<const BlockId> ids = sequence.blocks.ids();
  const size_t first = std::min(
      static_cast<size_t>(sequence.num_computed_tokens / config_.block_size), known.size());
  for (size_t i = first; i < ids.size(); ++i) {
    if (i < known.size() && known[i] == ids[i]) continue;
    added.push_back({.seat = index, .index = static_cast<int>(i), .block = ids[i]});
  }
  known.resize(first);
  known.insert(known.end(), ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end());
}

void DeviceExecutor::launch(const Step& step) {
  SPECDEC_CHECK(seating_.has_value());
  SPECDEC_CHECK_EQ(seating_->num_taken(), step.completions.size());
  Launch launch;
  std::vector<NewBlock> added;
  std::vector<HostDraft> drafts;
  std::vector<HostMasks> masks;
  std::vector<KeptSlot> kept_slots;
  int seat = 0;  // both are in order of precedence
  for (size_t i = 0; i < step.completions.size(); ++i, ++seat) {
    while (!seating_->seats[seat].is_taken) ++seat;
    SPECDEC_CHECK(seating_->seats[seat].precedence == step.completions[i]->sequence.precedence());
    launch.seat_of.push_back(seat);
    add_new_blocks(step.completions[i]->sequence, seat, added);
    for (const KeptState& kept : step.plan.sequences[i].kept_states) {
      kept_slots.push_back({.seat = seat, .slot = kept.slot});
    }
    const DraftTree* tree = step.trees[i];
    if (GrammarPath* grammar = step.completions[i]->grammar()) {
      HostMasks& of_seat = masks.emplace_back();
      of_seat.seat = seat;
      of_seat.nodes.push_back(grammar->mask_after({}));
      for (int node = 1; tree != nullptr && node < tree->num_nodes(); ++node) {
        of_seat.nodes.push_back(grammar->mask_after(tree->path(node)));
      }
    }
    if (tree == nullptr) continue;
    drafts.push_back(
        {.seat = seat, .tokens = tree->tokens().subspan(1), .parents = tree->parents().subspan(1)});
  }
  device_->add_blocks(added);
  device_->launch({.num_seats = static_cast<int>(seating_->seats.size()),
                   .num_passes = step.num_passes.value_or(0),
                   .host_drafts = drafts,
                   .masks = masks,
                   .kept_slots = kept_slots,
                   .max_unseen = padded(kind(), seating_->num_unseen),
                   .want_logprobs = seating_->want_logprobs});
  launches_.push_back(std::move(launch));
  const int num_passes = step.num_passes.value_or(0);
  if (keeps_no_kv(kind())) return;
  seating_->num_unseen =
      num_passes > 0 ? max_unseen_after(kind(), num_passes) : seating_->num_unseen + 1;
}

StepOutcome DeviceExecutor::wait() {
  const Launch launch = std::move(launches_.front());
  launches_.pop_front();
  StepOutcome by_seat = device_->wait();
  StepOutcome outcome = {.sequences = {},
                         .draft_seconds = by_seat.draft_seconds,
                         .target_seconds = by_seat.target_seconds};
  for (const int seat : launch.seat_of) {
    outcome.sequences.push_back(std::move(by_seat.sequences[seat]));
  }
  return outcome;
}

}  // namespace specdec
