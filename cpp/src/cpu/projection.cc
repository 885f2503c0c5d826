#include "cpu/projection.h"

#include "core/check.h"
#include "cpu/kernels/linear_int.h"
#include "cpu/packed_int.h"

namespace specdec::cpu {
namespace {

// Floats in a cell's sums: few enough that the sums stay in the cache until the epilogue.
constexpr int64_t kCellFloats = 16 << 10;
constexpr int64_t kMaxRowChunk = 128;
constexpr int64_t kPartialFloats =
    kMaxRowChunk * kMaxPartials * kMaxCellBlocks * CpuPackedLinear::kBlockOutputs;
constexpr int64_t kMinRowChunk = 32;
// Cells per thread that the tiling aims for.
constexpr int64_t kCellsPerThread = 8;
// Below this many weights times rows, giving work to other threads costs more than it saves.
constexpr int64_t kMinWorkBytes = 16 << 10;
// Blocks that a kernel works on together when the rows need several passes.
constexpr int64_t kKernelBlocks = 3;
constexpr int64_t kKernelRows = 16;
// Up to this many elements, each thread prepares all rows for itself and waits for nobody. Making
// codes takes several times as long as converting values (two threads of Zen 4, 8 rows of 576: 6%
// of a product), so codes use another limit.
constexpr int64_t kPrivateElements = 16 << 10;
constexpr int64_t kPrivateCodes = 4 << 10;
constexpr int64_t kAlignment = 64;
// Rows at multiples of this distance compete for the same few sets of the level-1 cache.
constexpr int64_t kAliasBytes = 2 << 10;
constexpr int64_t kFewRows = 8;  // this few rows do not evict each other even when they alias

// Bytes of a row's group of codes.
template <class Code>
int64_t bytes_of_group(int group) {
  return group == kIntGroup ? sizeof(IntRowGroup<Code, kIntGroup>)
                            : sizeof(IntRowGroup<Code, kSmallIntGroup>);
}

int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

DType dtype_of_rows(PackedFormat format, const LinearKernels& kernels) {
  switch (format) {
    case kPackedF32:
      return DType::kF32;
    case kPackedBf16:
      return kernels.widens_bf16 ? DType::kF32 : DType::kBF16;
    case kPackedInt8:
    case kPackedInt8Grouped:
    case kPackedInt8GroupedMin:
    case kPackedInt8Grouped16:
    case kPackedInt4Table:
      return kernels.widens_int8 ? DType::kI16 : DType::kI8;
    default:
      return DType::kI8;
  }
}

// Makes room; what the buffer held is lost.
void grow(Buffer& buffer, int64_t size_bytes, const char* what) {
  if (static_cast<int64_t>(buffer.size_bytes()) >= size_bytes) return;
  buffer = {};
  buffer = Buffer::host(size_bytes, what);
}

// A task without its rows and where they go.
RowsTask rows_task(const ProjectionInput& in, int64_t dim) {
  RowsTask task{};
  task.x = in.x;
  task.x_bf16 = in.dtype == DType::kBF16;
  task.row_ids = in.row_ids;
  task.dim = dim;
  task.norm = kind_of(in.norm);
  if (in.norm != nullptr) {
    task.weight = in.norm->weight;
    task.bias = in.norm->bias;
    task.eps = in.norm->eps;
  }
  return task;
}

}  // namespace

RowNorm kind_of(const NormParams* norm) {
  if (norm == nullptr) return kNoNorm;
  return norm->kind == NormKind::kRms ? kRmsNorm : kLayerNorm;
}

// How prepared rows are stored. In rows of codes, one element is a group of codes.
struct Projector::RowsLayout {
  DType dtype;
  int64_t element_bytes;
  int64_t stride;  // elements
};

Projector::RowsLayout Projector::rows_layout() const {
  const CpuPackedLinear& weight = *weight_;
  RowsLayout layout{};
  layout.dtype = dtype_of_rows(weight.packed_format(), kernels_.linear);
  layout.element_bytes = static_cast<int64_t>(size_of(layout.dtype));
  layout.stride = weight.padded_k();
  int64_t padding = kAlignment / layout.element_bytes;
  if (weight.is_integer()) {
    const int group = group_size(weight.packed_format());
    layout.element_bytes =
        layout.dtype == DType::kI8 ? bytes_of_group<int8_t>(group) : bytes_of_group<int16_t>(group);
    layout.stride /= group;
    padding = 1;
  }
  const bool is_crowded =
      in_.num_rows > kFewRows && layout.stride * layout.element_bytes % kAliasBytes == 0;
  if (is_crowded) layout.stride += padding;
  return layout;
}

Projector::Projector(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), turns_(pool.num_threads()) {
  const int64_t num_threads = pool.num_threads();
  sums_ = Buffer::host(num_threads * kCellFloats * sizeof(float), "sums of products");
  partials_ = Buffer::host(num_threads * kPartialFloats * sizeof(float), "partial sums");
}

ProjectionTiling Projector::make_tiling(const CpuPackedLinear& weight, int64_t num_rows,
                                        int64_t unit_blocks) const {
  constexpr int64_t kOutputs = CpuPackedLinear::kBlockOutputs;
  const int64_t unit_floats = unit_blocks * kOutputs * weight.num_planes();
  SPECDEC_CHECK_LE(unit_floats, kCellFloats);
  ProjectionTiling tiling{};
  tiling.unit_blocks = unit_blocks;
  tiling.num_units = (weight.num_blocks() + unit_blocks - 1) / unit_blocks;
  tiling.row_chunk = std::min({num_rows, kMaxRowChunk, kCellFloats / unit_floats});
  const int64_t wanted = kCellsPerThread * pool_.num_threads();
  const auto num_chunks = [&] { return (num_rows + tiling.row_chunk - 1) / tiling.row_chunk; };
  while (num_chunks() * tiling.num_units < wanted && tiling.row_chunk > kMinRowChunk) {
    tiling.row_chunk = std::max(kMinRowChunk, tiling.row_chunk / 2);
  }
  tiling.num_row_chunks = num_chunks();
  tiling.cell_units = std::max<int64_t>(1, kCellFloats / (tiling.row_chunk * unit_floats));
  const int64_t cell_bytes = weight.block_bytes() * unit_blocks * tiling.row_chunk;
  tiling.grain = std::max<int64_t>(1, kMinWorkBytes / cell_bytes);
  if (tiling.row_chunk > kKernelRows) {
    tiling.grain = std::max(tiling.grain, kKernelBlocks / unit_blocks);
  }
  return tiling;
}

ProjectionInput Projector::reordered(const CpuPackedLinear& weight, const ProjectionInput& in) {
  const int64_t all = weight.all_inputs();
  const std::span<const int32_t> order = weight.input_order();
  const auto width = static_cast<int64_t>(order.size());
  const auto row_bytes = static_cast<int64_t>(in.num_rows * sizeof(float));
  grow(natural_rows_, row_bytes * all, "rows to reorder");
  grow(ordered_rows_, row_bytes * width, "reordered rows");
  pool_.parallel_for(in.num_rows, 1, [&](int64_t begin, int64_t end, int) {
    RowsTask task = rows_task(in, all);
    task.row_begin = begin;
    task.row_end = end;
    task.out = natural_rows_.data();
    task.out_stride = all;
    kernels_.rows.to_f32(task);
    for (int64_t row = begin; row < end; ++row) {
      const float* from = natural_rows_.as<float>() + row * all;
      float* to = ordered_rows_.as<float>() + row * width;
      for (int64_t k = 0; k < width; ++k) to[k] = from[order[k]];
    }
  });
  return {.x = ordered_rows_.data(), .num_rows = in.num_rows};
}

void Projector::begin(const CpuPackedLinear& weight, const ProjectionInput& in) {
  SPECDEC_CHECK(in.norm == nullptr || in.dtype == DType::kF32);
  weight_ = &weight;
  in_ = weight.has_input_order() ? reordered(weight, in) : in;
  shared_rows_ = nullptr;
  const RowsLayout layout = rows_layout();
  const bool keeps_values = weight.packed_format() == kPackedF32 || layout.dtype == DType::kBF16;
  if (keeps_values && in_.dtype == layout.dtype && in_.norm == nullptr && in_.row_ids == nullptr &&
      layout.stride == weight.in_features()) {
    shared_rows_ = in_.x;
    return;
  }
  storage_bytes_ = round_up(in_.num_rows * layout.stride * layout.element_bytes, kAlignment);
  const int64_t most_private = weight.is_integer() ? kPrivateCodes : kPrivateElements;
  const bool is_private =
      pool_.num_threads() == 1 || in_.num_rows * weight.padded_k() <= most_private;
  const int64_t wanted = storage_bytes_ * (is_private ? pool_.num_threads() : 1);
  grow(row_storage_, wanted, "prepared rows");
  if (is_private) {
    ++turn_;
    return;
  }
  char* storage = row_storage_.as<char>();
  pool_.parallel_for(in_.num_rows, 1, [&](int64_t row_begin, int64_t row_end, int) {
    prepare(row_begin, row_end, storage);
  });
  shared_rows_ = storage;
}

void Projector::prepare(int64_t row_begin, int64_t row_end, char* storage) const {
  const RowsLayout layout = rows_layout();
  RowsTask task = rows_task(in_, weight_->in_features());
  task.row_begin = row_begin;
  task.row_end = row_end;
  task.out = storage;
  task.out_stride = layout.stride;
  task.group_size = group_size(weight_->packed_format());
  task.code_offset = code_offset(weight_->packed_format());
  task.halves_start =
      weight_->packed_format() == kPackedInt4SmallTable && kernels_.linear.widens_int8;
  if (task.halves_start) task.code_offset = kSmallTableOffset;
  task.has_zeros = weight_->packed_format() == kPackedInt4GroupedZero;
  const RowsKernels& to = kernels_.rows;
  const bool is_bf16 = weight_->packed_format() == kPackedBf16;
  switch (layout.dtype) {
    case DType::kBF16:
      return to.to_bf16(task);
    case DType::kI8:
      return to.to_int8(task);
    case DType::kI16:
      return to.to_widened_int8(task);
    default:
      return (is_bf16 ? to.to_widened_bf16 : to.to_f32)(task);
  }
}

const void* Projector::rows_for(int thread) {
  if (shared_rows_ != nullptr) return shared_rows_;
  char* storage = row_storage_.as<char>() + thread * storage_bytes_;
  if (turns_[thread].prepared != turn_) {
    prepare(0, in_.num_rows, storage);
    turns_[thread].prepared = turn_;
  }
  return storage;
}

PlanesCell Projector::compute(const CpuPackedLinear& weight, const ProjectionTiling& tiling,
                              int64_t row_chunk, int64_t unit, int64_t num_units, int thread) {
  constexpr int64_t kOutputs = CpuPackedLinear::kBlockOutputs;
  const char* rows = static_cast<const char*>(rows_for(thread));
  const int64_t row_begin = row_chunk * tiling.row_chunk;
  const int64_t row_end = std::min<int64_t>(row_begin + tiling.row_chunk, in_.num_rows);
  const int64_t block_begin = unit * tiling.unit_blocks;
  const int64_t block_end =
      std::min(block_begin + num_units * tiling.unit_blocks, weight.num_blocks());
  const RowsLayout layout = rows_layout();
  float* sums = sums_.as<float>() + thread * kCellFloats;
  const int64_t stride = (block_end - block_begin) * kOutputs;
  const int64_t plane_stride = (row_end - row_begin) * stride;
  kernels_.linear.run[weight.packed_format()](
      {.weights = weight.block(block_begin),
       .block_bytes = weight.block_bytes(),
       .padded_k = weight.padded_k(),
       .x = rows + row_begin * layout.stride * layout.element_bytes,
       .x_stride = layout.stride,
       .num_rows = row_end - row_begin,
       .num_blocks = block_end - block_begin,
       .slices = weight.sum_slices().data(),
       .num_slices = static_cast<int>(weight.sum_slices().size()),
       .sums = sums,
       .sums_stride = stride,
       .plane_stride = plane_stride,
       .partials = partials_.as<float>() + thread * kPartialFloats,
       .scales_outputs = !weight.share().by_inputs(),
       .table = weight.table()});
  return {.cell = {.sums = sums,
                   .stride = stride,
                   .row_begin = row_begin,
                   .row_end = row_end,
                   .begin = block_begin * kOutputs,
                   .end = block_end * kOutputs},
          .plane_stride = plane_stride};
}

}  // namespace specdec::cpu
