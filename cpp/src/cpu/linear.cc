// Weights, embeddings and matrix products of the CPU backend.
#include <algorithm>

#include "core/check.h"
#include "cpu/cpu_backend.h"
#include "cpu/packed_linear.h"

namespace specdec::cpu {
namespace {

// Rows a thread takes at once; fewer when there are threads to spare.
constexpr int64_t kMaxRowChunk = 512;
constexpr int64_t kMinRowChunk = 32;
// Cells of work (row chunks x blocks) each thread should have to choose from.
constexpr int64_t kCellsPerThread = 8;
// Weights times rows below which handing out work costs more than it saves.
constexpr int64_t kMinWorkBytes = 16 << 10;
// Blocks a kernel likes to work on together.
constexpr int64_t kKernelBlocks = 4;

// How a product is cut: cell index = row chunk * num_blocks + block.
struct LinearPlan {
  int64_t row_chunk;
  int64_t num_row_chunks;
  int64_t num_blocks;
  int64_t grain;  // cells
};

LinearPlan plan_linear(const CpuPackedLinear& weight, int64_t num_rows, int num_threads) {
  LinearPlan plan{std::min(num_rows, kMaxRowChunk), 0, weight.num_blocks(), 1};
  const int64_t wanted = kCellsPerThread * num_threads;
  const auto num_chunks = [&] { return (num_rows + plan.row_chunk - 1) / plan.row_chunk; };
  while (num_chunks() * plan.num_blocks < wanted && plan.row_chunk > kMinRowChunk) {
    plan.row_chunk = std::max(kMinRowChunk, plan.row_chunk / 2);
  }
  plan.num_row_chunks = num_chunks();
  const int64_t cell_bytes = weight.block_bytes() * plan.row_chunk;
  plan.grain = std::max<int64_t>(1, kMinWorkBytes / cell_bytes);
  if (plan.num_row_chunks * plan.num_blocks >= wanted * kKernelBlocks) {
    plan.grain = std::max(plan.grain, kKernelBlocks);
  }
  return plan;
}

}  // namespace

std::unique_ptr<PackedLinear> CpuBackend::pack_linear(std::span<const TensorView> parts) {
  return std::make_unique<CpuPackedLinear>(parts, act_dtype_, pool_);
}

std::unique_ptr<EmbeddingTable> CpuBackend::embedding_from(const PackedLinear& weight) {
  const auto* packed = dynamic_cast<const CpuPackedLinear*>(&weight);
  SPECDEC_CHECK(packed != nullptr);
  return std::make_unique<CpuEmbeddingTable>(*packed);
}

std::unique_ptr<EmbeddingTable> CpuBackend::make_embedding(const TensorView& table) {
  return std::make_unique<CpuEmbeddingTable>(table, act_dtype_);
}

Buffer CpuBackend::make_vector(std::span<const TensorView> parts) {
  int64_t count = 0;
  for (const TensorView& part : parts) count += part.num_elements();
  Buffer vector = Buffer::host(static_cast<size_t>(count) * sizeof(float), "a weight vector");
  float* out = vector.as<float>();
  for (const TensorView& part : parts) {
    for (int64_t i = 0; i < part.num_elements(); ++i) *out++ = float_at(part.data, part.dtype, i);
  }
  return vector;
}

void CpuBackend::embed(const EmbedArgs& args) {
  const auto& table = static_cast<const CpuEmbeddingTable&>(*args.table);
  pool_.parallel_for(args.num_rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t id = int64_t{args.token_ids[row]} + args.index_offset;
      SPECDEC_CHECK_GE(id, 0);
      SPECDEC_CHECK_LT(id, table.num_embeddings());
      table.lookup(id, args.out + row * table.dim(), args.accumulate);
    }
  });
}

void CpuBackend::linear(const LinearArgs& args) {
  const auto& weight = static_cast<const CpuPackedLinear&>(*args.weight);
  SPECDEC_CHECK(weight.dtype() == act_dtype_);
  if (args.num_rows == 0) return;
  const auto kernel = act_dtype_ == DType::kBF16 ? kernels_.linear.bf16 : kernels_.linear.f32;
  const LinearPlan plan = plan_linear(weight, args.num_rows, pool_.num_threads());
  const auto run_cells = [&](int64_t begin, int64_t end, int) {
    while (begin < end) {  // one row chunk at a time
      const int64_t chunk = begin / plan.num_blocks;
      const int64_t block = begin % plan.num_blocks;
      const int64_t num_blocks = std::min(end - begin, plan.num_blocks - block);
      kernel({.weights = weight.data(),
              .x = args.x,
              .bias = args.bias,
              .out = args.out,
              .in_features = weight.in_features(),
              .padded_k = weight.padded_k(),
              .out_features = weight.out_features(),
              .row_begin = chunk * plan.row_chunk,
              .row_end = std::min<int64_t>((chunk + 1) * plan.row_chunk, args.num_rows),
              .block_begin = block,
              .block_end = block + num_blocks,
              .accumulate = args.accumulate});
      begin += num_blocks;
    }
  };
  pool_.parallel_for(plan.num_row_chunks * plan.num_blocks, plan.grain, run_cells);
}

}  // namespace specdec::cpu
