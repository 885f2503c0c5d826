// wgmma: each warp computes its 16 of the 64 rows when it waits for them.
#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "core/dtype.h"
#include "core/str_cat.h"
#include "cuda/emulation/grid_run.h"
#include "cuda/emulation/matrices.h"

namespace specdec::cuda::emulation {
namespace {

// A tile in shared memory, read by its descriptor.
class Tile {
 public:
  Tile(uint64_t descriptor, const unsigned char* shared, size_t shared_bytes)
      : begin_((descriptor & 0x3fff) << 4), shared_(shared), shared_bytes_(shared_bytes) {
    const uint64_t swizzle = descriptor >> 62;
    if (swizzle != 1 && swizzle != 2) {
      fault("calls wgmma with a tile that is not swizzled by 128 or 64 bytes");
    }
    row_bytes_ = swizzle == 1 ? 128 : 64;
    if ((descriptor >> 32 & 0x3fff) << 4 != 8 * row_bytes_) {
      fault("calls wgmma with groups of 8 rows that are not side by side");
    }
  }

  uint16_t at(int row, int k) const {
    size_t address = begin_ + static_cast<size_t>(row) * row_bytes_ + static_cast<size_t>(k) * 2;
    address ^= (address >> 7 & (row_bytes_ / 16 - 1)) << 4;
    if (address + 2 > shared_bytes_) fault("calls wgmma with a tile past its shared memory");
    uint16_t value;
    std::copy_n(shared_ + address, sizeof(value), reinterpret_cast<unsigned char*>(&value));
    return value;
  }

 private:
  size_t begin_;
  size_t row_bytes_;
  const unsigned char* shared_;
  size_t shared_bytes_;
};

float widen(uint16_t bits, bool is_bf16) {
  return is_bf16 ? std::bit_cast<float>(static_cast<uint32_t>(bits) << 16) : half_to_float(bits);
}

// The pending instructions of a warp's lanes; the first `count` are run.
struct WaitOperands {
  std::vector<PendingWgmma>* pending;
  size_t count;
  int warp_in_group;  // 0 to 3
  const unsigned char* shared;
  size_t shared_bytes;
};

// The warp's 16 rows of a: [row][k].
using RowsOfA = float[16][kMmaInputs];
void read_rows_of_a(void* const* operands, size_t number, RowsOfA& a) {
  const auto& first = *static_cast<const WaitOperands*>(operands[0]);
  const Wgmma& instruction = (*first.pending)[number].instruction;
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < kMmaInputs; ++k) {
      uint16_t bits = 0;
      if (instruction.a_registers == nullptr) {
        const Tile tile(instruction.a, first.shared, first.shared_bytes);
        bits = tile.at(16 * first.warp_in_group + row, k);
      } else {
        const auto& lane = *static_cast<const WaitOperands*>(operands[4 * (row % 8) + k % 8 / 2]);
        const uint32_t pair = (*lane.pending)[number].instruction.a_registers[row / 8 + k / 8 * 2];
        bits = static_cast<uint16_t>(k % 2 == 0 ? pair : pair >> 16);
      }
      a[row][k] = widen(bits, instruction.is_bf16);
    }
  }
}

void run_one(void* const* operands, size_t number) {
  const auto& first = *static_cast<const WaitOperands*>(operands[0]);
  const Wgmma& instruction = (*first.pending)[number].instruction;
  RowsOfA rows;
  read_rows_of_a(operands, number, rows);
  const Tile tile_b(instruction.b, first.shared, first.shared_bytes);
  // Columns 8j .. 8j + 7 at a time: a row's are in its lanes' registers d[4j] .. d[4j + 3].
  for (int first_column = 0; first_column < instruction.num_columns; first_column += kMmaColumns) {
    MmaInputs b(instruction.is_bf16);
    for (int k = 0; k < kMmaInputs; ++k) {
      for (int column = 0; column < kMmaColumns; ++column) {
        b.set(k, column, widen(tile_b.at(first_column + column, k), instruction.is_bf16));
      }
    }
    for (int row = 0; row < 16; ++row) {
      const auto register_of = [&](int column) {
        const auto& lane = *static_cast<const WaitOperands*>(operands[row % 8 * 4 + column / 2]);
        return (*lane.pending)[number].instruction.d + first_column / 2 + row / 8 * 2 + column % 2;
      };
      float d[kMmaColumns] = {};
      if (instruction.accumulate) {
        for (int column = 0; column < kMmaColumns; ++column) d[column] = *register_of(column);
      }
      b.add_products(rows[row], d);
      for (int column = 0; column < kMmaColumns; ++column) *register_of(column) = d[column];
    }
  }
}

bool is_same(const Wgmma& a, const Wgmma& b) {
  return a.a == b.a && (a.a_registers == nullptr) == (b.a_registers == nullptr) && a.b == b.b &&
         a.num_columns == b.num_columns && a.is_bf16 == b.is_bf16 && a.accumulate == b.accumulate;
}

void run_pending(void* const* operands, uint32_t mask) {
  require_whole_warp(mask);
  const auto& first = *static_cast<const WaitOperands*>(operands[0]);
  for (size_t i = 0; i < first.count; ++i) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const auto& mine = *static_cast<const WaitOperands*>(operands[lane]);
      if (mine.count != first.count ||
          !is_same((*mine.pending)[i].instruction, (*first.pending)[i].instruction)) {
        fault("waits for a wgmma that other lanes of its warp did not call alike");
      }
      const PendingWgmma& pending = (*mine.pending)[i];
      std::ranges::copy(pending.d_before, pending.instruction.d);
    }
    run_one(operands, i);
  }
}

}  // namespace

void wgmma(const Wgmma& instruction) {
  Fibre& fibre = this_grid->current();
  PendingWgmma& pending = fibre.wgmmas.emplace_back();
  pending.instruction = instruction;
  ++fibre.open_wgmmas;
  const bool is_first =
      std::none_of(fibre.wgmmas.begin(), fibre.wgmmas.end() - 1,
                   [&](const PendingWgmma& other) { return other.instruction.d == instruction.d; });
  if (!is_first) return;
  float* const end = instruction.d + instruction.num_columns / 2;
  pending.d_before.assign(instruction.d, end);
  std::fill(instruction.d, end, std::numeric_limits<float>::quiet_NaN());
}

void wgmma_commit() {
  Fibre& fibre = this_grid->current();
  fibre.wgmma_group_sizes.push_back(fibre.open_wgmmas);
  fibre.open_wgmmas = 0;
}

void wgmma_wait(int num_pending_groups) {
  Fibre& fibre = this_grid->current();
  const std::ptrdiff_t num_groups =
      std::max<std::ptrdiff_t>(std::ssize(fibre.wgmma_group_sizes) - num_pending_groups, 0);
  size_t count = 0;
  for (std::ptrdiff_t i = 0; i < num_groups; ++i) {
    count += static_cast<size_t>(fibre.wgmma_group_sizes[static_cast<size_t>(i)]);
  }
  WaitOperands mine{.pending = &fibre.wgmmas,
                    .count = count,
                    .warp_in_group = fibre.index / kWarpSize % 4,
                    .shared = fibre.shared_bytes,
                    .shared_bytes = this_grid->kernel().config.shared_bytes};
  meet_warp(0xffffffffu, "wgmma_wait", run_pending, &mine);
  fibre.wgmmas.erase(fibre.wgmmas.begin(),
                     fibre.wgmmas.begin() + static_cast<std::ptrdiff_t>(count));
  fibre.wgmma_group_sizes.erase(fibre.wgmma_group_sizes.begin(),
                                fibre.wgmma_group_sizes.begin() + num_groups);
}

}  // namespace specdec::cuda::emulation
