// Projections with weights that the ranks of a group share, and norms of heads that they share:
// each rank computes its share, the communicator brings every share to every rank, and every rank
// finishes the whole result, or its share of a norm.
#include <algorithm>
#include <cstddef>

#include "backend/shared_heads.h"
#include "comm/communicator.h"
#include "core/check.h"
#include "cpu/cpu_backend.h"
#include "cpu/packed_linear.h"

namespace specdec::cpu {
namespace {

constexpr int64_t kOutputs = CpuPackedLinear::kBlockOutputs;
constexpr int64_t kFoldOutputs = 16 * kOutputs;  // folded at once
constexpr int64_t kFoldGrain = 4;

float* float_part(Communicator& ranks, int64_t num_floats) {
  return reinterpret_cast<float*>(ranks.part(num_floats * sizeof(float)));
}

}  // namespace

float* CpuBackend::part_for_planes(const CpuPackedLinear& weight, int64_t num_rows) {
  const RankShare& share = weight.share();
  SPECDEC_CHECK_EQ(share.num_planes(share.ranks()->rank()), weight.num_planes());
  return float_part(*share.ranks(), weight.num_planes() * num_rows * weight.padded_outputs());
}

std::array<const float*, kNumSlices> CpuBackend::exchange_planes(const CpuPackedLinear& weight,
                                                                 int64_t num_rows) {
  const RankShare& share = weight.share();
  const int64_t plane_floats = num_rows * weight.padded_outputs();
  return share.planes_of(
      share.ranks()->exchange(weight.num_planes() * plane_floats * sizeof(float)), plane_floats);
}

void CpuBackend::compute_planes(const CpuPackedLinear& weight, const ProjectionInput& in,
                                float* planes, int64_t plane_rows) {
  const int64_t width = weight.padded_outputs();
  projector_.run_planes(weight, in, 1, [&](const PlanesCell& from) {
    const SumsCell& cell = from.cell;
    for (int plane = 0; plane < weight.num_planes(); ++plane) {
      float* to = planes + (plane * plane_rows + cell.row_begin) * width + cell.begin;
      const float* sums = cell.sums + plane * from.plane_stride;
      for (int64_t row = cell.row_begin; row < cell.row_end; ++row, to += width) {
        std::copy_n(sums + (row - cell.row_begin) * cell.stride, cell.end - cell.begin, to);
      }
    }
  });
}

void CpuBackend::finish_planes(const LinearArgs& args,
                               const std::array<const float*, kNumSlices>& planes,
                               int64_t first_row) {
  const auto& weight = static_cast<const CpuPackedLinear&>(*args.weight);
  const FoldOrder& order = weight.share().fold_order();
  const int64_t width = weight.padded_outputs();
  const int64_t num_chunks = (width + kFoldOutputs - 1) / kFoldOutputs;
  pool_.parallel_for(args.in.num_rows * num_chunks, kFoldGrain,
                     [&](int64_t begin, int64_t end, int) {
                       float stack[kMaxPartialSums][kFoldOutputs];
                       for (int64_t index = begin; index < end; ++index) {
                         const int64_t row = index / num_chunks;
                         const int64_t output = index % num_chunks * kFoldOutputs;
                         const int64_t count = std::min(kFoldOutputs, width - output);
                         for (int i = 0; i < order.num_entries; ++i) {
                           const FoldEntry& entry = order.entries[i];
                           float* top = stack[entry.stack_index + entry.num_folds];
                           std::copy_n(planes[i] + (first_row + row) * width + output, count, top);
                           for (int f = 0; f < entry.num_folds; ++f, top -= kFoldOutputs) {
                             float* left = top - kFoldOutputs;
                             for (int64_t n = 0; n < count; ++n) left[n] = left[n] + top[n];
                           }
                         }
                         for (int64_t n = 0; n < count; n += kOutputs) {
                           const float* scales = weight.output_scales((output + n) / kOutputs);
                           for (int64_t lane = 0; scales != nullptr && lane < kOutputs; ++lane) {
                             stack[0][n + lane] *= scales[lane];
                           }
                         }
                         store(args, {.sums = stack[0],
                                      .stride = kFoldOutputs,
                                      .row_begin = row,
                                      .row_end = row + 1,
                                      .begin = output,
                                      .end = output + count});
                       }
                     });
}

ProjectionInput CpuBackend::gather_inputs(const CpuPackedLinear& weight,
                                          const ProjectionInput& in) {
  SPECDEC_CHECK(in.row_ids == nullptr && in.norm == nullptr);
  const RankShare& share = weight.share();
  Communicator& ranks = *share.ranks();
  const int64_t element = static_cast<int64_t>(size_of(in.dtype));
  const int64_t own_bytes = in.num_rows * share.num_inputs(ranks.rank()) * element;
  std::copy_n(static_cast<const std::byte*>(in.x), own_bytes,
              ranks.part(static_cast<size_t>(own_bytes)));
  const auto parts = ranks.exchange(static_cast<size_t>(own_bytes));
  const int64_t row_bytes = share.inputs().back() * element;
  auto* rows = reinterpret_cast<std::byte*>(
      grow_scratch(gather_scratch_, (in.num_rows * row_bytes + 3) / int64_t{sizeof(float)}));
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const int64_t width = share.num_inputs(rank) * element;
    const std::byte* from = parts[static_cast<size_t>(rank)].data();
    std::byte* to = rows + share.inputs()[static_cast<size_t>(rank)] * element;
    for (int row = 0; row < in.num_rows; ++row, from += width, to += row_bytes) {
      std::copy_n(from, width, to);
    }
  }
  return {.x = rows, .dtype = in.dtype, .num_rows = in.num_rows};
}

void CpuBackend::linear_by_inputs(const LinearArgs& args) {
  const auto& weight = static_cast<const CpuPackedLinear&>(*args.weight);
  const int64_t num_rows = args.in.num_rows;
  const ProjectionInput in = weight.has_input_order() ? gather_inputs(weight, args.in) : args.in;
  compute_planes(weight, in, part_for_planes(weight, num_rows), num_rows);
  finish_planes(args, exchange_planes(weight, num_rows), 0);
}

void CpuBackend::linear_by_outputs(const LinearArgs& args) {
  const auto& weight = static_cast<const CpuPackedLinear&>(*args.weight);
  const RankShare& share = weight.share();
  Communicator& ranks = *share.ranks();
  const int64_t num_rows = args.in.num_rows;
  const int64_t part_floats = num_rows * weight.num_outputs();
  float* part = float_part(ranks, part_floats);
  projector_.run(weight, args.in, 1, [&](const SumsCell& cell) {
    kernels_.epilogue.store(
        {.cell = cell,
         .bias = args.bias != nullptr ? args.bias + share.first_output(ranks.rank()) : nullptr,
         .out = part,
         .out_features = weight.num_outputs(),
         .scale = args.scale,
         .soft_cap = args.soft_cap,
         .accumulate = false});
  });
  const auto parts = ranks.exchange(part_floats * sizeof(float));
  pool_.parallel_for(num_rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      for (int rank = 0; rank < ranks.size(); ++rank) {
        const int64_t count = share.num_outputs(rank);
        const float* from = reinterpret_cast<const float*>(parts[rank].data()) + row * count;
        float* to = args.out + row * weight.out_features() + share.first_output(rank);
        for (int64_t n = 0; n < count; ++n) to[n] = args.accumulate ? to[n] + from[n] : from[n];
      }
    }
  });
}

// Squares are added in the same order however heads are split: every rank has the sums of all
// heads.
std::span<const RowScales> CpuBackend::row_scales(const QkvArgs& args, const float* sums) {
  const int dim = args.kv.head_dim;
  const int64_t num_rows = args.in.num_rows;
  const int64_t num_outputs = args.weight->out_features();
  const SharedHeads* shared = args.shared_heads;
  const int64_t q_dim = int64_t{shared ? shared->num_heads() : args.num_heads} * dim;
  const int64_t k_dim = int64_t{shared ? shared->num_kv_heads() : args.kv.num_kv_heads} * dim;
  std::span<const std::span<const std::byte>> parts;
  if (shared != nullptr && num_rows > 0) {
    const int64_t width = shared->part_width(shared->ranks->rank(), dim);
    float* part = float_part(*shared->ranks, num_rows * width);
    for (int64_t row = 0; row < num_rows; ++row) {
      std::copy_n(sums + row * num_outputs, width, part + row * width);
    }
    parts = shared->ranks->exchange(num_rows * width * sizeof(float));
  }
  row_scales_.resize(static_cast<size_t>(num_rows));
  float* all = grow_scratch(gather_scratch_, shared ? (q_dim + k_dim) * num_threads() : 0);
  pool_.parallel_for(num_rows, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t row = begin; row < end; ++row) {
      const float* q_and_k = sums + row * num_outputs;
      if (shared != nullptr) {
        float* gathered = all + thread * (q_dim + k_dim);
        shared->gather_row(parts, row, dim, gathered);
        q_and_k = gathered;
      }
      row_scales_[row] = kernels_.epilogue.row_scales(
          {.q_and_k = q_and_k, .q_dim = q_dim, .k_dim = k_dim, .norm_eps = args.norm_eps});
    }
  });
  return row_scales_;
}

void CpuBackend::gated_norm_of_ranks(const GatedNormArgs& args) {
  SPECDEC_CHECK(args.gates_first);
  if (args.num_rows == 0) return;
  const SharedHeads& shared = *args.shared_heads;
  Communicator& ranks = *shared.ranks;
  const int64_t dim = args.dim;
  const int64_t num_values = args.num_groups * dim;
  SPECDEC_CHECK_EQ(num_values % shared.num_heads(), 0);
  const std::vector<int64_t> bounds =
      shared.bounds(static_cast<int>(num_values / shared.num_heads()));
  const auto rank = static_cast<size_t>(ranks.rank());
  const int64_t first = bounds[rank], width = bounds[rank + 1] - first;
  float* const part = float_part(ranks, args.num_rows * width);
  pool_.parallel_for(args.num_rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      kernels_.recurrence.gate({.x = args.x + row * width,
                                .gates = args.gates + row * args.gate_stride,
                                .count = width,
                                .out = part + row * width});
    }
  });
  const auto parts = ranks.exchange(args.num_rows * width * sizeof(float));

  const auto kernel = act_dtype_ == DType::kBF16 ? kernels_.recurrence.group_norm_to_bf16
                                                 : kernels_.recurrence.group_norm_to_f32;
  float* const scratch = grow_scratch(gather_scratch_, dim * num_threads());
  const int64_t first_group = first / dim, end_group = (first + width + dim - 1) / dim;
  const int64_t num_groups = end_group - first_group;  // with values of this rank
  pool_.parallel_for(args.num_rows * num_groups, 1, [&](int64_t begin, int64_t end, int thread) {
    float* const group = scratch + thread * dim;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / num_groups;
      const int64_t from = (first_group + i % num_groups) * dim;  // values of the group
      const auto in_group = [&](int64_t value) {
        return std::clamp(value - from, int64_t{0}, dim);
      };
      for (size_t other = 0; other < parts.size(); ++other) {
        const int64_t to = in_group(bounds[other]), count = in_group(bounds[other + 1]) - to;
        if (count == 0) continue;
        const int64_t at = row * (bounds[other + 1] - bounds[other]) + from + to - bounds[other];
        std::copy_n(reinterpret_cast<const float*>(parts[other].data()) + at, count, group + to);
      }
      const int64_t own = in_group(first), at = from + own - first;  // among this rank's values
      kernel({.x = group,
              .weight = args.weight + at,
              .eps = args.eps,
              .dim = dim,
              .begin = own,
              .end = in_group(first + width),
              .out = static_cast<std::byte*>(args.out) +
                     (row * width + at) * static_cast<int64_t>(size_of(act_dtype_))});
    }
  });
}

// Each rank sends the rows that it holds, in the order in which the batch names them.
void CpuBackend::gather_embeddings(const EmbedArgs& args, float* out) {
  const CpuPackedLinear& table = static_cast<const CpuEmbeddingTable&>(*args.table).rows();
  const RankShare& share = table.share();
  Communicator& ranks = *share.ranks();
  const int64_t dim = table.in_features();
  const auto output_of = [&](int row) { return int64_t{args.token_ids[row]} + args.index_offset; };
  int64_t num_own = 0;
  for (int row = 0; row < args.num_rows; ++row) {
    SPECDEC_CHECK(output_of(row) >= 0 && output_of(row) < table.out_features());
    num_own += share.rank_of_output(output_of(row)) == ranks.rank();
  }
  float* part = float_part(ranks, num_own * dim);
  for (int row = 0; row < args.num_rows; ++row) {
    if (share.rank_of_output(output_of(row)) != ranks.rank()) continue;
    table.unpack_row(output_of(row) - share.first_output(ranks.rank()), part);
    part += dim;
  }
  const auto parts = ranks.exchange(num_own * dim * sizeof(float));
  std::vector<int64_t> next(ranks.size());
  for (int row = 0; row < args.num_rows; ++row) {
    const int rank = share.rank_of_output(output_of(row));
    const float* from = reinterpret_cast<const float*>(parts[rank].data());
    std::copy_n(from + next[rank], dim, out + row * dim);
    next[rank] += dim;
  }
}

}  // namespace specdec::cpu
