#include "cuda/backend/packed_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "comm/communicator.h"
#include "core/check.h"

namespace specdec::cuda {
namespace {

constexpr int64_t kStagingBytes = int64_t{8} << 20;

int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// Zeros and tables are not made, only kept.
void check_codes(WeightFormat format, const WeightView& part, const WeightView& first) {
  const bool has_table = format == WeightFormat::kInt4Table;
  if (!has_table && format != WeightFormat::kInt4GroupedZero) return;
  SPECDEC_CHECK_EQ(part.bits(), 4);
  SPECDEC_CHECK_EQ(part.group_size % kQuantGroup, 0);
  SPECDEC_CHECK(part.mins == nullptr);
  SPECDEC_CHECK((part.table != nullptr) == has_table);
  SPECDEC_CHECK(!has_table || std::memcmp(part.table, first.table, kCodeTableBytes) == 0);
}

// Parts keep their codes in the order that they all have.
void check_input_order(const PackArgs& args, const WeightView& part) {
  const int32_t* first = args.parts[0].input_order;
  SPECDEC_CHECK((part.input_order == nullptr) == (first == nullptr));
  if (first == nullptr) return;
  SPECDEC_CHECK(args.format != WeightFormat::kAct && part.is_integer());
  SPECDEC_CHECK(std::equal(first, first + part.in_features(), part.input_order));
}

void check_parts(const PackArgs& args) {
  SPECDEC_CHECK(!args.parts.empty());
  if (args.gated) {
    SPECDEC_CHECK_EQ(args.parts.size(), 2u);
    SPECDEC_CHECK_EQ(args.parts[0].rows(), args.parts[1].rows());
  }
  for (const WeightView& part : args.parts) {
    SPECDEC_CHECK(part.is_quantized() || is_floating(part.values.dtype));
    SPECDEC_CHECK_EQ(part.values.shape.size(), 2u);
    SPECDEC_CHECK_EQ(part.in_features(), args.parts[0].in_features());
    check_input_order(args, part);
    check_codes(args.format, part, args.parts[0]);
  }
}

bool is_fp8(WeightFormat format) {
  return format == WeightFormat::kFp8 || format == WeightFormat::kFp8Grouped;
}

// Splits a row's block scales of 8-bit floats into one float32 scale, which is returned, and a
// float16 factor per group. The largest factor is 1, unless all scales are 0.
float split_scales(const WeightView& part, int64_t row, std::span<uint16_t> factors) {
  const int64_t num_blocks = (part.in_features() + part.block_cols - 1) / part.block_cols;
  const std::span<const float> scales(part.block_scales + row / part.block_rows * num_blocks,
                                      static_cast<size_t>(num_blocks));
  const float scale =
      *std::ranges::max_element(scales, {}, [](float value) { return std::abs(value); });
  for (size_t i = 0; i < factors.size(); ++i) {
    const float of_group = scales[i * kQuantGroup / static_cast<size_t>(part.block_cols)];
    factors[i] = scale == 0.0f ? uint16_t{0} : float_to_half(of_group / scale);
  }
  return scale;
}

// Copies rows as stored, or (`widen`) their values in float32.
void copy_rows(const WeightView& part, bool widen, int64_t begin, int64_t count, void* out) {
  if (!widen) {
    const int64_t row_bytes =
        part.values.shape[1] * static_cast<int64_t>(size_of(part.values.dtype));
    std::memcpy(out, static_cast<const char*>(part.values.data) + begin * row_bytes,
                static_cast<size_t>(count * row_bytes));
    return;
  }
  for (int64_t row = 0; row < count; ++row) {
    dequantize_row(part, begin + row, static_cast<float*>(out) + row * part.in_features());
  }
}

}  // namespace

int CudaPackedLinear::num_tiles_of(const Shape& shape) {
  const int64_t outputs = shape.is_gated ? 2 * round_up(shape.out_features / 2, kTileOutputs / 2)
                                         : round_up(shape.out_features, kTileOutputs);
  return static_cast<int>(outputs / kTileOutputs);
}

int CudaPackedLinear::num_k_blocks_of(const Shape& shape) {
  return static_cast<int>(round_up(shape.in_features, kBlockInputs) / kBlockInputs);
}

CodeLayout CudaPackedLinear::code_layout_of(const Shape& shape) {
  return make_code_layout(shape.format, num_tiles_of(shape), shape.in_features);
}

int64_t CudaPackedLinear::size_bytes_of(const Shape& shape) {
  if (shape.format != WeightFormat::kAct) return code_layout_of(shape).size_bytes;
  return int64_t{num_tiles_of(shape)} * num_k_blocks_of(shape) * kTileOutputs * kBlockInputs * 2;
}

const float* CudaPackedLinear::scales() const {
  if (shape_.format == WeightFormat::kAct) return nullptr;
  const CodeLayout layout = code_layout();
  if (!layout.has_output_scales) return nullptr;
  return reinterpret_cast<const float*>(data_.as<char>() + layout.scales_offset);
}

CudaPackedLinear::CudaPackedLinear(const Shape& shape, Buffer data, const PackArgs& args,
                                   Buffer input_order)
    : shape_(shape), data_(std::move(data)), input_order_(std::move(input_order)), share_(args) {
  if (share_.by_outputs()) {
    SPECDEC_CHECK_EQ(shape.out_features, share_.num_outputs(share_.ranks()->rank()));
  }
  if (args.k_slices == nullptr) {
    slices_.fold_order = fold_order_of(SliceRun{});
    for (int i = 0; i <= kNumSlices; ++i) slices_.bounds[i] = num_k_blocks() * i / kNumSlices;
    return;
  }
  slices_.fold_order = fold_order_of(args.k_slices->run);
  const int count = slices_.fold_order.num_entries;
  for (int i = 0; i < count; ++i) {
    SPECDEC_CHECK_EQ(args.k_slices->local_bound(i) % kBlockInputs, 0);
    slices_.bounds[i] = static_cast<int>(args.k_slices->local_bound(i) / kBlockInputs);
  }
  slices_.bounds[count] = num_k_blocks();
}

WeightPacker::WeightPacker(Device& device, Stream& stream, const ProjectionKernels& kernels,
                           const QuantizeKernels& quantize_kernels, DType act_dtype)
    : device_(device),
      stream_(stream),
      kernels_(kernels),
      quantize_kernels_(quantize_kernels),
      act_dtype_(act_dtype) {}

std::unique_ptr<CudaPackedLinear> WeightPacker::pack(const PackArgs& args) {
  check_parts(args);
  CudaPackedLinear::Shape shape = {
      .in_features = args.parts[0].in_features(), .format = args.format, .is_gated = args.gated};
  for (const WeightView& part : args.parts) shape.out_features += part.rows();
  Buffer data = pack_parts(args, shape);
  if (args.k_slices != nullptr) {
    SPECDEC_CHECK_EQ(args.k_slices->whole_features(), shape.in_features);
    if (!args.k_slices->run.is_whole()) {
      CudaPackedLinear::Shape own = shape;
      own.in_features = args.k_slices->in_features();
      SPECDEC_CHECK_GT(own.in_features, 0);
      data = cut(data, shape, *args.k_slices, own);
      shape = own;
    }
  }
  return std::make_unique<CudaPackedLinear>(shape, std::move(data), args, copy_input_order(args));
}

Buffer WeightPacker::copy_input_order(const PackArgs& args) {
  const WeightView& part = args.parts[0];
  if (part.input_order == nullptr) return {};
  const int64_t begin = args.k_slices != nullptr ? args.k_slices->begin() : 0;
  const int64_t count =
      args.k_slices != nullptr ? args.k_slices->in_features() : part.in_features();
  SPECDEC_CHECK_EQ(count % kBlockInputs, 0);
  const size_t size_bytes = static_cast<size_t>(count) * sizeof(int32_t);
  StagingBuffer& staging = next_staging_buffer(size_bytes);
  std::memcpy(staging.pinned.data(), part.input_order + begin, size_bytes);
  Buffer order = device_.allocate(size_bytes, "an order of inputs");
  stream_.copy_to_device(order.data(), staging.pinned.data(), size_bytes);
  stream_.record(*staging.packed);
  staging.in_flight = true;
  return order;
}

// Every rank quantises the whole matrix and then cuts, so that codes and scales do not depend on
// the ranks.
Buffer WeightPacker::cut(const Buffer& whole, const CudaPackedLinear::Shape& shape,
                         const KSlices& slices, const CudaPackedLinear::Shape& own) {
  const bool is_act = shape.format == WeightFormat::kAct;
  const int64_t block_bytes = is_act ? kTileOutputs * kBlockInputs * 2
                                     : CudaPackedLinear::code_layout_of(shape).block_bytes;
  const int64_t num_tiles = is_act ? CudaPackedLinear::num_tiles_of(shape)
                                   : CudaPackedLinear::code_layout_of(shape).num_tiles;
  const int64_t whole_tile = CudaPackedLinear::num_k_blocks_of(shape) * block_bytes;
  const int64_t own_tile = CudaPackedLinear::num_k_blocks_of(own) * block_bytes;
  SPECDEC_CHECK_EQ(slices.begin() % kBlockInputs, 0);
  const int64_t first = slices.begin() / kBlockInputs * block_bytes;
  const int64_t size_bytes = CudaPackedLinear::size_bytes_of(own);
  Buffer data = device_.allocate(static_cast<size_t>(size_bytes), "weights");
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    stream_.copy(data.as<char>() + tile * own_tile, whole.as<char>() + tile * whole_tile + first,
                 static_cast<size_t>(own_tile));
  }
  const int64_t scales_bytes = size_bytes - num_tiles * own_tile;
  if (scales_bytes > 0) {
    stream_.copy(data.as<char>() + num_tiles * own_tile, whole.as<char>() + num_tiles * whole_tile,
                 static_cast<size_t>(scales_bytes));
  }
  stream_.synchronize();
  return data;
}

Buffer WeightPacker::pack_parts(const PackArgs& args, const CudaPackedLinear::Shape& shape) {
  const int64_t size_bytes = CudaPackedLinear::size_bytes_of(shape);
  Buffer data = device_.allocate(static_cast<size_t>(size_bytes), "weights");
  int64_t first_output = 0;
  for (const WeightView& part : args.parts) {
    if (args.format == WeightFormat::kAct) {
      pack_part(part, first_output, shape, data.data());
    } else if (is_fp8(args.format)) {
      pack_fp8(part, first_output, shape, data.data());
    } else {
      pack_codes(part, first_output, shape, data.data());
    }
    first_output += part.rows();
  }
  return data;
}

void WeightPacker::pack_part(const WeightView& part, int64_t first_output,
                             const CudaPackedLinear::Shape& shape, void* packed) {
  const DType dtype = part.is_quantized() ? DType::kF32 : part.values.dtype;
  const int64_t num_k = shape.in_features;
  const int64_t row_bytes = num_k * static_cast<int64_t>(size_of(dtype));
  const int64_t most_rows = std::max<int64_t>(1, kStagingBytes / std::max<int64_t>(1, row_bytes));
  for (int64_t begin = 0; begin < part.rows(); begin += most_rows) {
    const int64_t num_rows = std::min(most_rows, part.rows() - begin);
    const size_t size_bytes = static_cast<size_t>(num_rows * row_bytes);
    StagingBuffer& staging = next_staging_buffer(size_bytes);
    if (!make_rows(part, begin, num_rows, staging)) {
      copy_rows(part, part.is_quantized(), begin, num_rows, staging.pinned.data());
      stream_.copy_to_device(staging.device.data(), staging.pinned.data(), size_bytes);
    }
    kernels_.pack(stream_, {.source = staging.device.data(),
                            .source_dtype = dtype,
                            .act_dtype = act_dtype_,
                            .first_row = first_output + begin,
                            .num_rows = num_rows,
                            .out_features = shape.out_features,
                            .in_features = static_cast<int>(num_k),
                            .gated = shape.is_gated,
                            .packed = packed});
    stream_.record(*staging.packed);
    staging.in_flight = true;
  }
}

void WeightPacker::pack_codes(const WeightView& part, int64_t first_output,
                              const CudaPackedLinear::Shape& shape, void* packed) {
  SPECDEC_CHECK(part.values.dtype != DType::kF64);
  const DType dtype = part.is_fp8() ? DType::kF32 : part.values.dtype;
  const int64_t value_bytes = part.values.shape[1] * static_cast<int64_t>(size_of(dtype));
  const int64_t num_groups = part.scales != nullptr ? shape.in_features / part.group_size : 0;
  const float* row_scales = part.has_row_scales() ? part.block_scales : nullptr;
  const int64_t row_bytes = value_bytes + 5 * num_groups + int64_t{sizeof(float)};
  const int64_t most_rows = std::max<int64_t>(1, kStagingBytes / row_bytes);
  for (int64_t begin = 0; begin < part.rows(); begin += most_rows) {
    const int64_t num_rows = std::min(most_rows, part.rows() - begin);
    // Offsets in the staging memory: values, row scales, scales, mins, zeros.
    const int64_t row_scales_at = round_up(num_rows * value_bytes, 16);
    const int64_t scales_at = row_scales_at + num_rows * int64_t{sizeof(float)};
    const int64_t mins_at = scales_at + num_rows * num_groups * 2;
    const int64_t zeros_at = mins_at + num_rows * num_groups * 2;
    const size_t size_bytes = static_cast<size_t>(zeros_at + num_rows * num_groups);
    StagingBuffer& staging = next_staging_buffer(size_bytes);
    // Copies the rows' part of an array, if there is one, and returns where it will be.
    const auto put = [&]<class T>(const T* from, int64_t count_of_row, int64_t at) -> const T* {
      if (from == nullptr) return nullptr;
      std::memcpy(staging.pinned.as<char>() + at, from + begin * count_of_row,
                  static_cast<size_t>(num_rows * count_of_row) * sizeof(T));
      return reinterpret_cast<const T*>(staging.device.as<char>() + at);
    };
    QuantizeSource source = {.values = staging.device.data(),
                             .dtype = dtype,
                             .scales = put(part.scales, num_groups, scales_at),
                             .mins = put(part.mins, num_groups, mins_at),
                             .zeros = put(part.zeros, num_groups, zeros_at),
                             .row_scales = put(row_scales, 1, row_scales_at),
                             .has_table = part.table != nullptr,
                             .table = {},
                             .group_size = part.group_size,
                             .num_rows = static_cast<int>(num_rows)};
    if (source.has_table) std::memcpy(source.table, part.table, sizeof(source.table));
    if (!make_rows(part, begin, num_rows, staging)) {
      copy_rows(part, part.is_fp8(), begin, num_rows, staging.pinned.data());
      stream_.copy_to_device(staging.device.data(), staging.pinned.data(), size_bytes);
    }
    quantize_kernels_.pack(stream_, {.source = source,
                                     .layout = CudaPackedLinear::code_layout_of(shape),
                                     .weights = packed,
                                     .first_row = first_output + begin,
                                     .out_features = shape.out_features,
                                     .is_gated = shape.is_gated});
    stream_.record(*staging.packed);
    staging.in_flight = true;
  }
}

void WeightPacker::pack_fp8(const WeightView& part, int64_t first_output,
                            const CudaPackedLinear::Shape& shape, void* packed) {
  SPECDEC_CHECK(part.values.dtype != DType::kF64);
  const CodeLayout layout = CudaPackedLinear::code_layout_of(shape);
  const bool is_kept = keeps_fp8(shape.format, part);
  const bool widen = part.is_quantized() && !is_kept;
  const DType dtype = widen ? DType::kF32 : part.values.dtype;
  const int64_t num_factors = is_kept && layout.is_grouped ? layout.num_k_blocks : 0;
  const int64_t value_bytes = shape.in_features * static_cast<int64_t>(size_of(dtype));
  const int64_t most_rows =
      std::max<int64_t>(1, kStagingBytes / (value_bytes + 4 + 2 * num_factors));
  for (int64_t begin = 0; begin < part.rows(); begin += most_rows) {
    const int64_t num_rows = std::min(most_rows, part.rows() - begin);
    // Offsets in the staging memory: values, scales, factors.
    const int64_t scales_at = round_up(num_rows * value_bytes, 16);
    const int64_t factors_at = round_up(scales_at + num_rows * 4, 16);
    const size_t size_bytes = static_cast<size_t>(factors_at + num_rows * num_factors * 2);
    StagingBuffer& staging = next_staging_buffer(size_bytes);
    const auto scales_in = [&](Buffer& staging_memory) {
      return reinterpret_cast<float*>(staging_memory.as<char>() + scales_at);
    };
    const auto factors_in = [&](Buffer& staging_memory) {
      return reinterpret_cast<uint16_t*>(staging_memory.as<char>() + factors_at);
    };
    if (!make_rows(part, begin, num_rows, staging)) {
      copy_rows(part, widen, begin, num_rows, staging.pinned.data());
      for (int64_t row = 0; is_kept && row < num_rows; ++row) {
        scales_in(staging.pinned)[row] = split_scales(
            part, begin + row,
            {factors_in(staging.pinned) + row * num_factors, static_cast<size_t>(num_factors)});
      }
      stream_.copy_to_device(staging.device.data(), staging.pinned.data(), size_bytes);
    }
    quantize_kernels_.pack_fp8(stream_, {.values = staging.device.data(),
                                         .dtype = dtype,
                                         .scales = scales_in(staging.device),
                                         .factors = factors_in(staging.device),
                                         .num_rows = static_cast<int>(num_rows),
                                         .layout = layout,
                                         .weights = packed,
                                         .first_row = first_output + begin,
                                         .out_features = shape.out_features,
                                         .is_gated = shape.is_gated});
    stream_.record(*staging.packed);
    staging.in_flight = true;
  }
}

bool WeightPacker::make_rows(const WeightView& part, int64_t begin, int64_t count,
                             StagingBuffer& staging) {
  if (!part.random.is_set()) return false;
  RandomSource rows = part.random;
  rows.first += begin * part.in_features();
  quantize_kernels_.random_weights(stream_, {.source = rows,
                                             .dtype = part.values.dtype,
                                             .count = count * part.in_features(),
                                             .values = staging.device.data()});
  return true;
}

WeightPacker::StagingBuffer& WeightPacker::next_staging_buffer(size_t size_bytes) {
  current_ ^= 1;
  StagingBuffer& staging = staging_buffers_[current_];
  if (staging.in_flight) staging.packed->wait();
  staging.in_flight = false;
  if (staging.packed == nullptr) staging.packed = device_.make_event();
  if (staging.pinned.size_bytes() < size_bytes) {
    staging.pinned = device_.allocate_pinned(size_bytes, "weights on their way");
    staging.device = device_.allocate(size_bytes, "weights on their way");
  }
  return staging;
}

}  // namespace specdec::cuda
