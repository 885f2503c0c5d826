// Runs a projection from rows to results: prepares the rows, cuts the work into cells of rows x
// blocks, and passes each cell's sums to an epilogue while they are in the cache.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "backend/op_args.h"
#include "core/buffer.h"
#include "core/cache_line.h"
#include "core/check.h"
#include "core/thread_pool.h"
#include "cpu/kernel_table.h"
#include "cpu/packed_linear.h"

namespace specdec::cpu {

RowNorm kind_of(const NormParams* norm);  // null: none

// A cell's sums. The sums of further planes follow at multiples of plane_stride floats.
struct PlanesCell {
  SumsCell cell;
  int64_t plane_stride;
};

// How a projection is cut into cells. A unit is the blocks that an epilogue needs together; cell
// index = row chunk * num_units + unit.
struct ProjectionTiling {
  int64_t unit_blocks;
  int64_t num_units;
  int64_t row_chunk;
  int64_t num_row_chunks;
  int64_t grain;       // fewest cells worth giving to a thread
  int64_t cell_units;  // units computed at once
};

class Projector {
 public:
  Projector(const KernelTable& kernels, ThreadPool& pool);

  // Calls epilogue(SumsCell) for cells that cover all rows and outputs. `unit_blocks` consecutive
  // blocks, counted from the first, never end up in different cells.
  template <class Epilogue>
  void run(const CpuPackedLinear& weight, const ProjectionInput& in, int64_t unit_blocks,
           Epilogue&& epilogue) {
    SPECDEC_CHECK(!weight.share().by_inputs());
    run_planes(weight, in, unit_blocks, [&](const PlanesCell& planes) { epilogue(planes.cell); });
  }

  // The same for the blocks whose flag in is_wanted [num_blocks] is set, and no others.
  template <class Epilogue>
  void run_some(const CpuPackedLinear& weight, const ProjectionInput& in,
                const std::vector<uint8_t>& is_wanted, Epilogue&& epilogue) {
    SPECDEC_CHECK(!weight.share().by_inputs());
    const auto units = [&](int64_t unit, int64_t most) {
      const auto begin = is_wanted.begin() + unit;
      const bool is_run = *begin != 0;
      const auto end = std::find(begin, begin + most, is_run ? 0 : 1);
      return UnitRun{.count = end - begin, .is_wanted = is_run};
    };
    run_units(weight, in, 1, units, [&](const PlanesCell& planes) { epilogue(planes.cell); });
  }

  // Like run() for a weight whose inputs are split over ranks: calls epilogue(PlanesCell).
  template <class Epilogue>
  void run_planes(const CpuPackedLinear& weight, const ProjectionInput& in, int64_t unit_blocks,
                  Epilogue&& epilogue) {
    const auto all = [](int64_t, int64_t most) { return UnitRun{.count = most}; };
    run_units(weight, in, unit_blocks, all, epilogue);
  }

 private:
  // Units in a row that are all wanted, or none of which is.
  struct UnitRun {
    int64_t count;
    bool is_wanted = true;
  };

  // `units` says of a unit how many from it on, at most `most`, are alike.
  template <class Units, class Epilogue>
  void run_units(const CpuPackedLinear& weight, const ProjectionInput& in, int64_t unit_blocks,
                 const Units& units, Epilogue&& epilogue) {
    if (in.num_rows == 0) return;
    const ProjectionTiling tiling = make_tiling(weight, in.num_rows, unit_blocks);
    begin(weight, in);
    pool_.parallel_for(
        tiling.num_row_chunks * tiling.num_units, tiling.grain,
        [&](int64_t cell, int64_t end, int thread) {
          while (cell < end) {
            const int64_t unit = cell % tiling.num_units;
            const UnitRun run =
                units(unit, std::min({end - cell, tiling.num_units - unit, tiling.cell_units}));
            if (run.is_wanted) {
              epilogue(compute(weight, tiling, cell / tiling.num_units, unit, run.count, thread));
            }
            cell += run.count;
          }
        });
  }

  ProjectionTiling make_tiling(const CpuPackedLinear& weight, int64_t num_rows,
                               int64_t unit_blocks) const;
  // The rows, normalised, with their inputs in the order of the weight's columns.
  ProjectionInput reordered(const CpuPackedLinear& weight, const ProjectionInput& in);
  // Prepares the rows for all threads, or has each thread prepare its own copy.
  void begin(const CpuPackedLinear& weight, const ProjectionInput& in);
  struct RowsLayout;
  RowsLayout rows_layout() const;  // for the projection being run
  const void* rows_for(int thread);
  void prepare(int64_t row_begin, int64_t row_end, char* storage) const;
  PlanesCell compute(const CpuPackedLinear& weight, const ProjectionTiling& tiling,
                     int64_t row_chunk, int64_t unit, int64_t num_units, int thread);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  Buffer natural_rows_;  // [rows, all inputs] float32, and
  Buffer ordered_rows_;  // [rows, in_features], of weights with an order of inputs
  Buffer row_storage_;   // prepared rows, of all threads together or of each
  Buffer sums_;          // [num_threads, kCellFloats]
  Buffer partials_;      // [num_threads, kPartialFloats]

  // The projection being run.
  const CpuPackedLinear* weight_ = nullptr;
  ProjectionInput in_;
  int64_t storage_bytes_ = 0;          // of one copy of the prepared rows
  const void* shared_rows_ = nullptr;  // null: each thread prepares its own
  uint64_t turn_ = 0;
  struct alignas(kCacheLineBytes) Turn {
    uint64_t prepared = 0;  // turn for which this thread last prepared its rows
  };
  std::vector<Turn> turns_;  // [num_threads]
};

}  // namespace specdec::cpu
