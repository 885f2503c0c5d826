#include "cuda/emulation/fibres.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/str_cat.h"
#include "cuda/emulation/grid_run.h"

namespace specdec::cuda::emulation {

void fault(const std::string& what) {
  if (this_grid == nullptr) throw DeviceError(what);
  this_grid->fault_at(this_grid->current(), what);
}

namespace {

// The warp's meeting for this mask: the one in which lanes already wait, or an unused one.
Meeting& meeting_of(Warp& warp, uint32_t mask) {
  Meeting* unused = nullptr;
  for (Meeting& meeting : warp.meetings) {
    if (meeting.arrived == 0) {
      unused = &meeting;
    } else if (meeting.mask == mask) {
      return meeting;
    }
  }
  return unused != nullptr ? *unused : warp.meetings.emplace_back();
}

// Out of line: the operations that call them run millions of times.
[[noreturn, gnu::noinline]] void fault_without_own_lane(const char* operation) {
  fault(str_cat("calls ", operation, " with a mask without its own lane"));
}
[[noreturn, gnu::noinline]] void fault_between(const char* operation, const char* of_others) {
  fault(str_cat("calls ", operation, " while other lanes of the warp are in ", of_others));
}

}  // namespace

void meet_warp(uint32_t mask, const char* operation, Combine combine, void* operands) {
  Fibre& fibre = this_grid->current();
  Block& block = *fibre.block;
  const int warp_number = fibre.index / kWarpSize;
  Warp& warp = block.warps[static_cast<size_t>(warp_number)];
  const uint32_t me = 1u << fibre.lane;
  mask &= warp.existing;
  if ((mask & me) == 0) fault_without_own_lane(operation);
  Meeting* const meeting = &meeting_of(warp, mask);
  if (meeting->arrived == 0) {
    meeting->mask = mask;
    meeting->operation = operation;
    meeting->combine = combine;
  } else if (meeting->combine != combine) {
    fault_between(operation, meeting->operation);
  }
  meeting->operands[static_cast<size_t>(fibre.lane)] = operands;
  meeting->arrived |= me;
  if (meeting->arrived != mask) {
    fibre.wait_mask = mask;
    this_grid->suspend(operation);
    fibre.wait_mask = 0;
    return;
  }
  meeting->arrived = 0;
  combine(meeting->operands.data(), mask);
  block.make_ready(warp_number, mask & ~me);
}

Votes meet_block(int number, int num_threads, bool vote, const char* operation) {
  Fibre& fibre = this_grid->current();
  Block& block = *fibre.block;
  if (number < 0 || number >= kNumBarriers) fault(str_cat("uses barrier ", number, " of 0 to 15"));
  if (num_threads < 0 || num_threads % kWarpSize != 0) {
    fault(str_cat("uses a barrier of ", num_threads, " threads, no multiple of 32"));
  }
  if (num_threads == block.num_threads) num_threads = 0;
  Barrier& barrier = block.barriers[static_cast<size_t>(number)];
  if (barrier.num_waiting == 0) {
    barrier.num_threads = num_threads;
  } else if (barrier.num_threads != num_threads) {
    fault(str_cat("joins barrier ", number, " with ", num_threads, " threads where others said ",
                  barrier.num_threads));
  }
  barrier.num_true += vote;
  const int num_arrived = barrier.num_waiting + 1;
  if (num_arrived < (num_threads == 0 ? block.num_live : num_threads)) {
    barrier.waiting[static_cast<size_t>(fibre.index / kWarpSize)] |= 1u << fibre.lane;
    barrier.num_waiting = num_arrived;
    this_grid->suspend(operation);
  } else {
    block.release(barrier, num_arrived);
  }
  return barrier.result;
}

void yield() {
  Fibre& fibre = this_grid->current();
  fibre.block->yielded.push_back(&fibre);
  this_grid->suspend("a loop that waits for other threads");
}

void wait_for_previous() {
  Fibre& fibre = this_grid->current();
  fibre.waited_for_previous = true;
  if (this_grid->previous_is_done()) return;
  fibre.block->waiting_for_previous.push_back(&fibre);
  this_grid->suspend("wait_for_previous");
}

void let_next_start() {
  const Fibre& fibre = this_grid->current();
  if (fibre.waited_for_previous) return;
  const LaunchConfig& launch = this_grid->kernel().config;
  if (launch.overlaps_previous && !launch.lets_next_start_early) {
    fault(
        "calls let_next_start() before wait_for_previous(), though it was launched without "
        "lets_next_start_early");
  }
  fibre.block->let_next_start_early = true;
}

Executor::Executor(const EmulationConfig& config, const DeviceMemory& memory)
    : config_(config), memory_(memory), stacks_(std::make_unique<StackPool>()) {}

Executor::~Executor() = default;

std::unique_ptr<GridRun> Executor::make_run(const KernelRecord& kernel) {
  return std::make_unique<GridRun>(kernel, config_, memory_, ++num_runs_, *stacks_);
}

// Static __shared__ arrays exist once, so two runs of one function must not overlap.
bool Executor::is_live(const void* function) const {
  return std::ranges::any_of(started_,
                             [&](const auto& run) { return run->kernel().function == function; });
}

void Executor::start_ahead(const KernelRecord& kernel,
                           std::span<const KernelRecord* const> following) {
  const KernelRecord* before = &kernel;
  for (size_t i = 0; i < following.size(); ++i) {
    const KernelRecord& next = *following[i];
    const bool may_start = i == 0 || before->config.lets_next_start_early;
    if (!next.starts_early || !may_start) return;
    before = &next;
    if (i < started_.size()) continue;  // already started
    if (next.function == kernel.function || is_live(next.function)) return;
    started_.push_back(make_run(next));
    started_.back()->start();
  }
}

void Executor::run(const KernelRecord& kernel, std::span<const KernelRecord* const> following) {
  std::unique_ptr<GridRun> run;
  if (started_.empty()) {
    run = make_run(kernel);
  } else {
    run = std::move(started_.front());
    started_.pop_front();
  }
  SPECDEC_CHECK(&run->kernel() == &kernel);
  try {
    start_ahead(kernel, following);
    run->finish();
  } catch (...) {
    started_.clear();
    throw;
  }
}

}  // namespace specdec::cuda::emulation
