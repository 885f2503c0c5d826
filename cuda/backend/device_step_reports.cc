#include "cuda/backend/device_step_reports.h"

#include <exception>

#include "core/check.h"
#include "core/log.h"

namespace specdec::cuda {
namespace {

constexpr double kNanosecond = 1e-9;

// The clock is read on different multiprocessors and may tick coarsely.
double seconds_between(uint64_t from, uint64_t to) {
  return to > from ? static_cast<double>(to - from) * kNanosecond : 0.0;
}

}  // namespace

StepReports::StepReports(CudaBackend& backend, const DeviceStepConfig& config)
    : backend_(backend), layout_(backend.device()) {
  num_logprobs_.size = static_cast<size_t>(config.max_rows);
  logprobs_.size = num_logprobs_.size * (config.max_logprobs + 1);
  for (Copy& copy : copies_) {
    copy.seats = layout_.pinned<StepReport>(config.num_seats);
    copy.times = layout_.pinned<StepTimes>(1);
    copy.done = backend.device().make_event();
  }
}

SampleOutputs StepReports::outputs(const StepShape& shape, int32_t* sampled, int first_row) const {
  SampleOutputs outputs{};
  outputs.token_ids = sampled + first_row;
  if (shape.num_logprobs < 0) return outputs;
  outputs.max_logprobs = shape.num_logprobs;
  outputs.num_logprobs = num_logprobs_ + first_row;
  outputs.logprobs = logprobs_ + int64_t{first_row} * (shape.num_logprobs + 1);
  return outputs;
}

void StepReports::reserve(const StepShape& shape) {
  if (shape.num_logprobs < 0) return;
  layout_.reserve(num_logprobs_, "logprobs of device steps");
  layout_.reserve(logprobs_, "logprobs of device steps");
  for (Copy& copy : copies_) {
    if (copy.cu_rows != nullptr) continue;
    copy.logprobs = layout_.pinned<DeviceLogprob>(logprobs_.size, "logprobs");
    copy.num_logprobs = layout_.pinned<int32_t>(num_logprobs_.size, "logprobs");
    copy.cu_rows = layout_.pinned<int32_t>(copy.seats.size + 1, "logprobs");
  }
}

void StepReports::set_addresses(StepMemory& memory) const {
  for (size_t i = 0; i < copies_.size(); ++i) {
    memory.reports[i] = copies_[i].seats;
    memory.ended_times[i] = copies_[i].times;
  }
}

void StepReports::launched(const StepShape& shape, const StepMemory& memory) {
  Stream& stream = backend_.stream();
  Copy& copy = copies_[num_launched_++ % copies_.size()];
  copy.shape = shape;
  if (shape.num_logprobs >= 0) {
    const auto seats = static_cast<size_t>(shape.num_seats);
    const auto rows = static_cast<size_t>(shape.num_rows);
    stream.copy_to_host(copy.cu_rows, memory.batch.cu_rows, (seats + 1) * sizeof(int32_t));
    stream.copy_to_host(copy.num_logprobs, num_logprobs_, rows * sizeof(int32_t));
    stream.copy_to_host(copy.logprobs, logprobs_,
                        rows * (shape.num_logprobs + 1) * sizeof(DeviceLogprob));
  }
  stream.record(*copy.done);
}

void StepReports::wait_for_all() noexcept {
  for (; num_under_way() > 0; ++num_collected_) {
    Event& done = *copies_[num_collected_ % copies_.size()].done;
    try {
      backend_.stream().wait(done);
    } catch (const std::exception& error) {  // a rank failed; nothing waits for its part any more
      log_info("a step ended without its outcome: ", error.what());
    }
  }
}

StepOutcome StepReports::wait() {
  SPECDEC_CHECK_GT(num_under_way(), 0);
  const int step = num_collected_++;
  const Copy& copy = copies_[step % copies_.size()];
  backend_.stream().wait(*copy.done);
  backend_.rank_exchange().check();
  SPECDEC_CHECK_EQ(copy.times.data->step, static_cast<uint64_t>(step));
  StepOutcome outcome;
  for (int i = 0; i < copy.shape.num_seats; ++i) {
    const StepReport& report = copy.seats[i];
    SequenceOutcome& sequence = outcome.sequences.emplace_back();
    sequence.drafts.assign(report.drafts, report.drafts + report.num_drafts);
    for (int d = 0; d < report.num_drafts; ++d) {
      sequence.parents.push_back(report.is_tree != 0 ? report.parents[d] : d);
    }
    sequence.accepted.assign(report.accepted, report.accepted + report.num_accepted);
    sequence.tokens.assign(report.tokens, report.tokens + report.num_tokens);
    if (copy.shape.num_logprobs < 0) continue;
    for (int t = 0; t < report.num_tokens; ++t) {
      const int node = t == 0 ? 0 : report.accepted[t - 1];
      sequence.logprobs.push_back(read_logprobs(copy, copy.cu_rows[i] + node));
    }
  }
  const StepTimes& times = *copy.times;
  outcome.target_seconds = seconds_between(times.verify, times.end);
  if (copy.shape.num_passes > 0) outcome.draft_seconds = seconds_between(times.draft, times.verify);
  return outcome;
}

PositionLogprobs StepReports::read_logprobs(const Copy& copy, int row) {
  const DeviceLogprob* entries = copy.logprobs + int64_t{row} * (copy.shape.num_logprobs + 1);
  PositionLogprobs logprobs;
  for (int i = 0; i < copy.num_logprobs[row]; ++i) {
    logprobs.push_back({entries[i].token_id, entries[i].logprob, entries[i].rank});
  }
  return logprobs;
}

}  // namespace specdec::cuda
