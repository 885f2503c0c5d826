#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "cpu/cpu_backend.h"

namespace specdec::cpu {
namespace {

// Elements worth handing to another thread.
constexpr int64_t kGrainElements = 16 * 1024;
constexpr int64_t kActivationColumns = 1024;

int64_t grain_rows(int64_t row_elements) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, row_elements));
}

bool is_bf16(DType dtype) {
  SPECDEC_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kBF16;
}

}  // namespace

void CpuBackend::norm(const NormArgs& args) {
  SPECDEC_CHECK_GT(args.dim, 0);
  NormTask task = {.x = args.x,
                   .weight = args.weight,
                   .bias = args.bias,
                   .out = args.out,
                   .dim = args.dim,
                   .row_begin = 0,
                   .row_end = 0,
                   .eps = args.eps,
                   .out_bf16 = is_bf16(args.out_dtype)};
  const auto kernel =
      args.kind == NormKind::kRms ? kernels_.pointwise.rms_norm : kernels_.pointwise.layer_norm;
  pool_.parallel_for(args.num_rows, grain_rows(args.dim), [&](int64_t begin, int64_t end, int) {
    NormTask part = task;
    part.row_begin = begin;
    part.row_end = end;
    kernel(part);
  });
}

void CpuBackend::split_qkv(const QkvArgs& args) {
  const PagedKvView& kv = args.kv;
  SPECDEC_CHECK_LE(kv.head_dim, static_cast<int>(kMaxHeadDim));
  SPECDEC_CHECK_LE(args.rotary_dim, kv.head_dim);
  SPECDEC_CHECK_EQ(args.rotary_dim % 2, 0);
  const QkvTask task = {.qkv = args.qkv,
                        .q_norm = args.q_norm,
                        .k_norm = args.k_norm,
                        .rope_cos = args.rope_cos,
                        .rope_sin = args.rope_sin,
                        .positions = args.batch->positions,
                        .slot_mapping = args.batch->slot_mapping,
                        .q = args.q,
                        .keys = kv.keys,
                        .values = kv.values,
                        .row_begin = 0,
                        .row_end = 0,
                        .num_heads = args.num_heads,
                        .num_kv_heads = kv.num_kv_heads,
                        .head_dim = kv.head_dim,
                        .rotary_dim = args.rotary_dim,
                        .block_size = kv.block_size,
                        .norm_eps = args.norm_eps};
  const auto kernel =
      is_bf16(kv.dtype) ? kernels_.pointwise.split_qkv_bf16 : kernels_.pointwise.split_qkv_f32;
  const int64_t row_elements = int64_t{args.num_heads + 2 * kv.num_kv_heads} * kv.head_dim;
  pool_.parallel_for(args.batch->num_rows, grain_rows(row_elements),
                     [&](int64_t begin, int64_t end, int) {
                       QkvTask part = task;
                       part.row_begin = begin;
                       part.row_end = end;
                       kernel(part);
                     });
}

void CpuBackend::activation(const ActivationArgs& args) {
  const auto kernel = kernels_.pointwise.activation[static_cast<int>(args.activation)];
  const ActivationTask task = {.x = args.x,
                               .out = args.out,
                               .dim = args.dim,
                               .row_begin = 0,
                               .row_end = 0,
                               .column_begin = 0,
                               .column_end = 0,
                               .gated = args.gated,
                               .out_bf16 = is_bf16(args.out_dtype)};
  // Split by columns too: a single row is wide, and its exponentials are worth sharing.
  const int64_t chunks = (args.dim + kActivationColumns - 1) / kActivationColumns;
  pool_.parallel_for(args.num_rows * chunks, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      ActivationTask part = task;
      part.row_begin = i / chunks;
      part.row_end = part.row_begin + 1;
      part.column_begin = i % chunks * kActivationColumns;
      part.column_end = std::min<int64_t>(args.dim, part.column_begin + kActivationColumns);
      kernel(part);
    }
  });
}

void CpuBackend::gather_rows(const GatherRowsArgs& args) {
  const size_t row_bytes = args.dim * sizeof(float);
  pool_.parallel_for(args.num_rows, grain_rows(args.dim), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(args.out + row * args.dim, args.x + int64_t{args.row_ids[row]} * args.dim,
                  row_bytes);
    }
  });
}

}  // namespace specdec::cpu
