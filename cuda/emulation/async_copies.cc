// Asynchronous copies, which land as late as they may, and the mbarriers that report their arrival.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/str_cat.h"
#include "cuda/emulation/device_memory.h"
#include "cuda/emulation/grid_run.h"

namespace specdec::cuda::emulation {
namespace {

constexpr unsigned char kPoison = 0xff;

// The state in an mbarrier's 64 bits.
struct MbarrierState {
  uint32_t phase = 0;         // parity of the phase under way
  uint32_t num_arrivals = 0;  // that a phase needs
  uint32_t pending_arrivals = 0;
  int32_t pending_bytes = 0;  // negative if bytes land before they are expected
};

constexpr uint64_t kMark = 0x2a;  // top byte of every initialised barrier

uint64_t pack(const MbarrierState& state) {
  return kMark << 56 | uint64_t{state.phase} << 55 | uint64_t{state.num_arrivals} << 41 |
         uint64_t{state.pending_arrivals} << 28 |
         (static_cast<uint32_t>(state.pending_bytes) & 0xfffffffu);
}

bool is_aligned(const void* address, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

void check_barrier(const uint64_t* barrier) {
  if (!is_aligned(barrier, 8)) fault("uses an mbarrier at an address that is no multiple of 8");
}

MbarrierState unpack(const uint64_t* barrier) {
  check_barrier(barrier);
  const uint64_t word = *barrier;
  if (word >> 56 != kMark) fault("uses an mbarrier that was not initialised");
  const uint32_t bytes = static_cast<uint32_t>(word & 0xfffffffu);
  return {.phase = static_cast<uint32_t>(word >> 55 & 1),
          .num_arrivals = static_cast<uint32_t>(word >> 41 & 0x3fff),
          .pending_arrivals = static_cast<uint32_t>(word >> 28 & 0x1fff),
          .pending_bytes = static_cast<int32_t>(bytes << 4) >> 4};
}

// Stores the state. Ends the phase if no arrival and no bytes are missing.
void update(Block& block, uint64_t* barrier, MbarrierState state) {
  if (state.pending_arrivals == 0 && state.pending_bytes == 0) {
    state.phase ^= 1;
    state.pending_arrivals = state.num_arrivals;
    std::erase_if(block.waiting_for_mbarrier, [&](Fibre* fibre) {
      if (fibre->wait_barrier != barrier) return false;
      block.make_ready(*fibre);
      return true;
    });
  }
  *barrier = pack(state);
}

void arrive(Block& block, uint64_t* barrier, int expected_bytes) {
  MbarrierState state = unpack(barrier);
  if (state.pending_arrivals == 0) fault("arrives at an mbarrier more often than it expects");
  state.pending_bytes += expected_bytes;
  --state.pending_arrivals;
  update(block, barrier, state);
}

Block& block_of_shared(const void* shared) {
  for (Block& block : this_grid->blocks()) {
    const auto* begin = block.shared.get();
    const auto* address = static_cast<const unsigned char*>(shared);
    if (address >= begin && address < begin + this_grid->kernel().config.shared_bytes) return block;
  }
  fault("copies to what is not dynamic shared memory");
}

}  // namespace

void AsyncCopy::land() const {
  if (!parts.empty()) {
    for (const AsyncCopy& part : parts) part.land();
    return arrive(block_of_shared(barrier), barrier, 0);
  }
  if (valid) {
    std::memcpy(shared, global, size_bytes);
  } else {
    std::memset(shared, 0, size_bytes);
  }
  if (barrier == nullptr) return;
  MbarrierState state = unpack(barrier);
  state.pending_bytes -= static_cast<int32_t>(size_bytes);
  update(block_of_shared(barrier), barrier, state);
}

void check_prefetch(const void* global, size_t size_bytes) {
  if (!is_aligned(global, 16) || size_bytes % 16 != 0) {
    fault(str_cat("prefetches ", size_bytes, " bytes, or at an address, no multiple of 16"));
  }
  if (!this_grid->memory().contains(global, size_bytes)) {
    fault(str_cat("prefetches ", size_bytes, " bytes that are not in one piece of device memory"));
  }
}

void copy_async_16(void* shared, const void* global, bool valid) {
  if (!is_aligned(shared, 16) || (valid && !is_aligned(global, 16))) {
    fault("calls copy_async_16 with an address that is no multiple of 16");
  }
  Fibre& fibre = this_grid->current();
  std::memset(shared, kPoison, 16);
  fibre.copies.push_back({.shared = shared, .global = global, .size_bytes = 16, .valid = valid});
  ++fibre.open_copies;
}

void copy_async_commit() {
  Fibre& fibre = this_grid->current();
  fibre.group_sizes.push_back(fibre.open_copies);
  fibre.open_copies = 0;
}

void copy_async_wait(int num_pending_groups) {
  Fibre& fibre = this_grid->current();
  const int num_groups = static_cast<int>(fibre.group_sizes.size()) - num_pending_groups;
  if (num_groups <= 0) return;
  std::ptrdiff_t num_copies = 0;
  for (int i = 0; i < num_groups; ++i) num_copies += fibre.group_sizes[static_cast<size_t>(i)];
  for (std::ptrdiff_t i = 0; i < num_copies; ++i) fibre.copies[static_cast<size_t>(i)].land();
  fibre.copies.erase(fibre.copies.begin(), fibre.copies.begin() + num_copies);
  fibre.group_sizes.erase(fibre.group_sizes.begin(), fibre.group_sizes.begin() + num_groups);
}

void mbarrier_init(uint64_t* barrier, int num_arrivals) {
  if (num_arrivals < 1 || num_arrivals > 1024) {
    fault(str_cat("initialises an mbarrier for ", num_arrivals, " arrivals"));
  }
  check_barrier(barrier);
  const auto count = static_cast<uint32_t>(num_arrivals);
  *barrier = pack({.phase = 0, .num_arrivals = count, .pending_arrivals = count});
}

void mbarrier_arrive(uint64_t* barrier, int expected_bytes) {
  arrive(*this_grid->current().block, barrier, expected_bytes);
}

void copy_async_arrive(uint64_t* barrier) {
  Fibre& fibre = this_grid->current();
  if (!fibre.group_sizes.empty()) fault("calls copy_async_arrive with copies in groups");
  if (fibre.copies.empty()) return mbarrier_arrive(barrier, 0);
  unpack(barrier);
  fibre.block->bulk_copies.push_back({.barrier = barrier, .parts = std::move(fibre.copies)});
  fibre.copies.clear();
  fibre.open_copies = 0;
}

void mbarrier_wait(uint64_t* barrier, int parity) {
  Fibre& fibre = this_grid->current();
  while (unpack(barrier).phase == static_cast<uint32_t>(parity)) {
    fibre.wait_barrier = barrier;
    fibre.block->waiting_for_mbarrier.push_back(&fibre);
    this_grid->suspend("mbarrier_wait");
  }
}

void bulk_copy(void* shared, const void* global, int size_bytes, uint64_t* barrier) {
  if (!is_aligned(shared, 16) || !is_aligned(global, 16) || size_bytes % 16 != 0 ||
      size_bytes <= 0) {
    fault(str_cat("calls bulk_copy with ", size_bytes,
                  " bytes or an address that is no multiple of 16"));
  }
  unpack(barrier);
  const auto size = static_cast<size_t>(size_bytes);
  std::memset(shared, kPoison, size);
  this_grid->current().block->bulk_copies.push_back(
      {.shared = shared, .global = global, .size_bytes = size, .barrier = barrier});
}

}  // namespace specdec::cuda::emulation
