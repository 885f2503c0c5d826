#include "cuda/emulation/grid_run.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/str_cat.h"

namespace specdec::cuda::emulation {

constinit thread_local const ThreadView* this_thread = nullptr;
constinit thread_local GridRun* this_grid = nullptr;

namespace {

constexpr size_t kSharedAlignment = 1024;
constexpr size_t kGuardBytes = 64;  // after shared memory
constexpr unsigned char kGuard = 0xa5;
constexpr unsigned char kPoison = 0xff;  // NaN in every float format
// After so many rounds in which threads only yield, they count as waiting in vain.
constexpr int kMaxIdleRounds = 10000;

size_t volume(const Dim3& dim) { return size_t{dim.x} * dim.y * dim.z; }

Index3 index_in(const Dim3& dim, size_t number) {
  return {static_cast<unsigned>(number % dim.x), static_cast<unsigned>(number / dim.x % dim.y),
          static_cast<unsigned>(number / dim.x / dim.y)};
}

std::string name_of(const Index3& index) {
  return str_cat("(", index.x, ", ", index.y, ", ", index.z, ")");
}

// Picks a set bit of a mask that is not 0.
int pick_bit(uint32_t mask, Schedule schedule, uint32_t random) {
  if (schedule == Schedule::kForward) return std::countr_zero(mask);
  if (schedule == Schedule::kReverse) return 31 - std::countl_zero(mask);
  const int shift = static_cast<int>(random & 31);
  return (std::countr_zero(std::rotr(mask, shift)) + shift) & 31;
}

}  // namespace

void Block::release(Barrier& barrier, int num_arrived) {
  barrier.result = {barrier.num_true, num_arrived};
  barrier.num_true = 0;
  barrier.num_waiting = 0;
  for (size_t warp = 0; warp < warps.size(); ++warp) {
    make_ready(static_cast<int>(warp), std::exchange(barrier.waiting[warp], 0u));
  }
}

GridRun::GridRun(const KernelRecord& kernel, const EmulationConfig& config,
                 const DeviceMemory& memory, uint64_t seed, StackPool& stacks)
    : kernel_(kernel),
      config_(config),
      memory_(memory),
      random_state_((config.seed + seed) * 0x9e3779b97f4a7c15u | 1u),
      stack_pool_(stacks) {
  const size_t num_blocks = volume(kernel.config.grid);
  const size_t num_threads = volume(kernel.config.block);
  block_order_.resize(num_blocks);
  std::iota(block_order_.begin(), block_order_.end(), 0u);
  if (config.schedule == Schedule::kReverse) std::ranges::reverse(block_order_);
  if (config.schedule == Schedule::kRandom) {
    for (size_t i = num_blocks - 1; i > 0; --i) {
      std::swap(block_order_[i], block_order_[random() % (i + 1)]);
    }
  }
  const bool all_at_once = kernel.config.cooperative || kernel.config.blocks_meet;
  blocks_ = std::vector<Block>(all_at_once ? num_blocks : 1);
  stacks_ = stacks.take(blocks_.size() * num_threads);
  for (Block& block : blocks_) {
    block.num_threads = static_cast<int>(num_threads);
    block.fibres = std::vector<Fibre>(num_threads);
    block.warps = std::vector<Warp>((num_threads + kWarpSize - 1) / kWarpSize);
    size_t shared_bytes = kernel.config.shared_bytes;
#if !defined(__SANITIZE_ADDRESS__)
    shared_bytes += kGuardBytes;
#endif
    void* shared = nullptr;
    const int result = posix_memalign(&shared, kSharedAlignment, shared_bytes);
    SPECDEC_CHECK_EQ(result, 0);
    block.shared = {static_cast<unsigned char*>(shared), std::free};
  }
  describe_own_stack(main_);
}

GridRun::~GridRun() { stack_pool_.give_back(std::move(stacks_)); }

uint32_t GridRun::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return static_cast<uint32_t>(random_state_ >> 16);
}

void GridRun::prepare_block(Block& block, size_t block_number) {
  const LaunchConfig& launch = kernel_.config;
  const size_t resident = static_cast<size_t>(&block - blocks_.data());
  block.index = index_in(launch.grid, block_number);
  block.num_live = block.num_threads;
  block.let_next_start_early = false;
  std::memset(block.shared.get(), kPoison, launch.shared_bytes);
#if !defined(__SANITIZE_ADDRESS__)
  std::memset(block.shared.get() + launch.shared_bytes, kGuard, kGuardBytes);
#endif
  block.bulk_copies.clear();
  for (int i = 0; i < block.num_threads; ++i) {
    Fibre& fibre = block.fibres[static_cast<size_t>(i)];
    fibre.thread_index = index_in(launch.block, static_cast<size_t>(i));
    fibre.block_index = block.index;
    fibre.block_dim = launch.block;
    fibre.grid_dim = launch.grid;
    fibre.shared_bytes = block.shared.get();
    fibre.lane = i % kWarpSize;
    fibre.block = &block;
    fibre.index = i;
    fibre.finished = fibre.waited_for_previous = false;
    fibre.waits_for = nullptr;
    fibre.copies.clear();
    fibre.group_sizes.clear();
    fibre.open_copies = 0;
    fibre.wgmmas.clear();
    fibre.wgmma_group_sizes.clear();
    fibre.open_wgmmas = 0;
    prepare(fibre.context, stacks_[resident * block.fibres.size() + static_cast<size_t>(i)],
            run_thread);
    block.warps[static_cast<size_t>(i / kWarpSize)].existing |= 1u << fibre.lane;
    block.make_ready(fibre);
  }
}

void GridRun::run_thread() {
  GridRun& grid = *this_grid;
  enter_context(grid.current().context);
  Context* next = &grid.main_;
  try {
    grid.kernel_.body();
    grid.thread_finished();
    if (grid.pick_next()) next = &grid.current_->context;
  } catch (...) {
    grid.error_ = std::current_exception();
  }
  Context discarded;  // this fibre is never continued
  switch_context(discarded, *next, true);
  std::abort();  // not reached
}

void GridRun::thread_finished() {
  Fibre& fibre = current();
  Block& block = *fibre.block;
  if (kernel_.config.overlaps_previous && !fibre.waited_for_previous) {
    fault_at(fibre,
             "finished without wait_for_previous(), though it was launched with overlaps_previous");
  }
  fibre.finished = true;
  if (--block.num_live == 0) {
    if (kernel_.config.lets_next_start_early && !block.let_next_start_early) {
      fault_at(fibre,
               "ends a block without let_next_start() before wait_for_previous(), though it was "
               "launched with lets_next_start_early");
    }
    check_shared(block);
    ++num_blocks_done_;
  }
  // A barrier for all threads waits only for threads that have not finished.
  for (Barrier& barrier : block.barriers) {
    if (barrier.num_threads == 0 && barrier.num_waiting > 0 &&
        barrier.num_waiting == block.num_live) {
      block.release(barrier, block.num_live);
    }
  }
}

void GridRun::check_shared([[maybe_unused]] const Block& block) const {
#if !defined(__SANITIZE_ADDRESS__)
  const unsigned char* guard = block.shared.get() + kernel_.config.shared_bytes;
  if (std::any_of(guard, guard + kGuardBytes, [](unsigned char byte) { return byte != kGuard; })) {
    throw DeviceError(str_cat("kernel ", kernel_.name, ", block ", name_of(block.index),
                              ": wrote past its ", kernel_.config.shared_bytes,
                              " bytes of shared memory"));
  }
#endif
}

// Chooses current_ among the running block's ready fibres.
bool GridRun::pick_next() {
  Block& block = *block_;
  if (block.ready_warps == 0) return false;
  const uint32_t chance = config_.schedule == Schedule::kRandom ? random() : 0;
  if (config_.schedule == Schedule::kRandom && (chance & 0xf0000u) == 0) {
    if (blocks_.size() > 1) return false;  // another block may be ready
    if (!block.bulk_copies.empty()) {
      const size_t which = (chance >> 20) % block.bulk_copies.size();
      const AsyncCopy copy = block.bulk_copies[which];
      block.bulk_copies.erase(block.bulk_copies.begin() + static_cast<std::ptrdiff_t>(which));
      copy.land();
    }
  }
  const int warp = pick_bit(block.ready_warps, config_.schedule, chance);
  uint32_t& lanes = block.ready[static_cast<size_t>(warp)];
  const int lane = pick_bit(lanes, config_.schedule, chance >> 5);
  lanes &= ~(1u << lane);
  if (lanes == 0) block.ready_warps &= ~(1u << warp);
  current_ = &block.fibres[static_cast<size_t>(warp * kWarpSize + lane)];
  this_thread = current_;
  return true;
}

void GridRun::suspend(const char* waits_for) {
  Fibre& fibre = *current_;
  fibre.waits_for = waits_for;
  if (pick_next()) {
    if (current_ != &fibre) switch_context(fibre.context, current_->context);
  } else {
    switch_context(fibre.context, main_);
  }
  fibre.waits_for = nullptr;
}

// Runs until no thread is ready in any block.
void GridRun::run_ready() {
  GridRun* const outer = std::exchange(this_grid, this);
  for (;;) {
    Block* chosen = nullptr;
    const size_t offset = config_.schedule == Schedule::kRandom ? random() % blocks_.size() : 0;
    for (size_t i = 0; i < blocks_.size() && chosen == nullptr; ++i) {
      Block& block = blocks_[(i + offset) % blocks_.size()];
      if (block.ready_warps != 0) chosen = &block;
    }
    if (chosen == nullptr) break;
    block_ = chosen;
    if (!pick_next()) continue;
    switch_context(main_, current_->context);
    if (error_ != nullptr) break;
  }
  this_thread = nullptr;
  this_grid = outer;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

// Called when no thread is ready: lands a bulk copy, or resumes threads that yielded. Returns false
// if there is neither.
bool GridRun::go_on_when_stuck() {
  for (Block& block : blocks_) {
    if (block.bulk_copies.empty()) continue;
    const bool last = config_.schedule == Schedule::kReverse;
    const auto which = last ? block.bulk_copies.end() - 1 : block.bulk_copies.begin();
    const AsyncCopy copy = *which;
    block.bulk_copies.erase(which);
    GridRun* const outer = std::exchange(this_grid, this);
    copy.land();
    this_grid = outer;
    idle_rounds_ = 0;
    return true;
  }
  bool any = false;
  for (Block& block : blocks_) {
    for (Fibre* fibre : block.yielded) block.make_ready(*fibre);
    any = any || !block.yielded.empty();
    block.yielded.clear();
  }
  if (!kernel_.config.waits_for_peers) return any && ++idle_rounds_ < kMaxIdleRounds;
  // Another rank's thread may need this CPU. The kernel itself notices when it has waited too long.
  std::this_thread::yield();
  return any;
}

void GridRun::start() {
  while (num_blocks_begun_ < blocks_.size()) {
    Block& block = blocks_[num_blocks_begun_];
    prepare_block(block, block_order_[num_blocks_begun_]);
    ++num_blocks_begun_;
  }
  run_ready();
}

void GridRun::finish() {
  previous_is_done_ = true;
  if (num_blocks_begun_ == 0) start();
  for (Block& block : blocks_) {
    for (Fibre* fibre : block.waiting_for_previous) block.make_ready(*fibre);
    block.waiting_for_previous.clear();
  }
  for (;;) {
    finish_blocks();
    if (num_blocks_begun_ == block_order_.size()) break;
    prepare_block(blocks_[0], block_order_[num_blocks_begun_++]);
  }
}

void GridRun::finish_blocks() {
  while (num_blocks_done_ < num_blocks_begun_) {
    run_ready();
    if (num_blocks_done_ < num_blocks_begun_ && !go_on_when_stuck()) report_deadlock();
  }
  idle_rounds_ = 0;
}

std::string GridRun::describe(const Fibre& fibre) const {
  return str_cat("kernel ", kernel_.name, ", block ", name_of(fibre.block_index), ", thread ",
                 fibre.index);
}

void GridRun::fault_at(const Fibre& fibre, const std::string& what) const {
  throw DeviceError(str_cat(describe(fibre), ": ", what));
}

void GridRun::report_deadlock() const {
  std::string report = str_cat("kernel ", kernel_.name, ": threads wait for what never comes");
  int num_blocks = 0;
  for (const Block& block : blocks_) {
    if (block.num_live == 0) continue;
    if (++num_blocks > 2) break;
    report += str_cat("; block ", name_of(block.index), ":");
    const auto state = [](const Fibre& fibre) -> std::string {
      if (fibre.finished) return "finished";
      std::string text = str_cat("in ", fibre.waits_for != nullptr ? fibre.waits_for : "?");
      if (fibre.wait_mask != 0) {
        constexpr char kDigits[] = "0123456789abcdef";
        text += " mask 0x";
        for (int i = 28; i >= 0; i -= 4) text += kDigits[fibre.wait_mask >> i & 15];
      }
      return text;
    };
    for (size_t i = 0; i < block.fibres.size();) {
      size_t end = i + 1;
      const std::string text = state(block.fibres[i]);
      while (end < block.fibres.size() && state(block.fibres[end]) == text) ++end;
      report += str_cat(i == 0 ? " " : ", ", "threads ", i, "-", end - 1, " ", text);
      i = end;
    }
  }
  throw DeviceError(report);
}

}  // namespace specdec::cuda::emulation
