#include "cpu/packed_linear.h"

#include <algorithm>
#include <type_traits>

#include "core/check.h"
#include "cpu/packed_int.h"

namespace specdec::cpu {
namespace {

constexpr int64_t kLanes = CpuPackedLinear::kBlockOutputs;
constexpr int64_t kBf16Depth = 32;  // k of an AMX tile product

PackedFormat packed_format_of(WeightFormat format, DType act_dtype) {
  switch (format) {
    case WeightFormat::kAct:
      return act_dtype == DType::kBF16 ? kPackedBf16 : kPackedF32;
    case WeightFormat::kInt8:
      return kPackedInt8;
    case WeightFormat::kInt8Grouped:
      return kPackedInt8Grouped;
    case WeightFormat::kInt8GroupedMin:
      return kPackedInt8GroupedMin;
    case WeightFormat::kInt4Grouped:
      return kPackedInt4Grouped;
    case WeightFormat::kInt4GroupedMin:
      return kPackedInt4GroupedMin;
    case WeightFormat::kFp8:
    case WeightFormat::kFp8Grouped:
      break;  // see CpuBackend::supports
  }
  detail::check_failed(__FILE__, __LINE__, "weight format is one of the CPU's");
}

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

float widen(float value) { return value; }
float widen(BFloat16 value) { return to_float(value); }
struct Half {
  uint16_t bits;
};
float widen(Half value) { return half_to_float(value.bits); }

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bfloat16(widen(value));
  } else {
    return widen(value);
  }
}

// Calls body with a null pointer of the element type that stands for `dtype`.
template <class Body>
void with_source_type(DType dtype, Body&& body) {
  if (dtype == DType::kF32) return body(static_cast<const float*>(nullptr));
  if (dtype == DType::kBF16) return body(static_cast<const BFloat16*>(nullptr));
  return body(static_cast<const Half*>(nullptr));
}

// Which row of which part each lane of a block holds.
class OutputMap {
 public:
  explicit OutputMap(const PackArgs& args) : parts_(args.parts), gated_(args.gated) {}

  int64_t num_blocks() const {
    if (gated_) return 2 * ((parts_[0].rows() + kLanes - 1) / kLanes);
    int64_t rows = 0;
    for (const WeightView& part : parts_) rows += part.rows();
    return (rows + kLanes - 1) / kLanes;
  }
  struct Source {
    const WeightView* part = nullptr;  // null: padding
    int64_t row = 0;
  };
  Source source(int64_t block, int64_t lane) const {
    if (gated_) {
      const int64_t row = block / 2 * kLanes + lane;
      return row < parts_[0].rows() ? Source{&parts_[block % 2], row} : Source{};
    }
    int64_t row = block * kLanes + lane;
    for (const WeightView& part : parts_) {
      if (row < part.rows()) return {&part, row};
      row -= part.rows();
    }
    return {};
  }

 private:
  std::span<const WeightView> parts_;
  bool gated_;
};

// How many elements of one output lie side by side: pairs of k in bfloat16, single ones in float32.
template <class To>
constexpr int64_t kGroup = std::is_same_v<To, BFloat16> ? 2 : 1;

// Writes one row [num_k] of W as output `lane` of its block.
template <class To, class From>
void pack_row(const From* row, int64_t num_k, int64_t lane, To* block) {
  constexpr int64_t kPair = kGroup<To>;
  To* out = block + lane * kPair;
  int64_t k = 0;
  for (; k + kPair <= num_k; k += kPair, out += kLanes * kPair) {
    for (int64_t i = 0; i < kPair; ++i) out[i] = convert<To>(row[k + i]);
  }
  for (int64_t i = 0; k + i < num_k; ++i) out[i] = convert<To>(row[k + i]);
}

// `values` is scratch for quantised rows.
template <class To>
void pack_block(const OutputMap& map, int64_t block, int64_t num_k, std::vector<float>& values,
                To* out) {
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const OutputMap::Source source = map.source(block, lane);
    if (source.part == nullptr) continue;
    if (source.part->is_quantized()) {
      values.resize(num_k);
      dequantize_row(*source.part, source.row, values.data());
      pack_row(values.data(), num_k, lane, out);
      continue;
    }
    with_source_type(source.part->values.dtype, [&]<class From>(const From*) {
      pack_row(static_cast<const From*>(source.part->values.data) + source.row * num_k, num_k, lane,
               out);
    });
  }
}

template <class T>
void unpack(const T* block, int64_t lane, int64_t num_k, float* out) {
  constexpr int64_t kPair = kGroup<T>;
  const T* in = block + lane * kPair;
  for (int64_t k = 0; k < num_k; ++k) out[k] = widen(in[k / kPair * kPair * kLanes + k % kPair]);
}

}  // namespace

CpuPackedLinear::CpuPackedLinear(const PackArgs& args, DType act_dtype,
                                 const QuantizeKernels& kernels, HostArena& arena, ThreadPool& pool)
    : format_(args.format),
      packed_format_(packed_format_of(args.format, act_dtype)),
      is_gated_(args.gated) {
  SPECDEC_CHECK(act_dtype == DType::kF32 || act_dtype == DType::kBF16);
  check(args);
  in_features_ = args.parts[0].in_features();
  for (const WeightView& part : args.parts) out_features_ += part.rows();
  num_blocks_ = OutputMap(args).num_blocks();
  if (is_integer()) {
    pack_integers(args, kernels, arena, pool);
  } else {
    pack_floats(args, arena, pool);
  }
}

void CpuPackedLinear::check(const PackArgs& args) const {
  SPECDEC_CHECK(!args.parts.empty());
  if (args.gated) {
    SPECDEC_CHECK_EQ(args.parts.size(), 2u);
    SPECDEC_CHECK_EQ(args.parts[0].rows(), args.parts[1].rows());
  }
  for (const WeightView& part : args.parts) {
    SPECDEC_CHECK(part.is_quantized() || is_weight_dtype(part.values.dtype));
    SPECDEC_CHECK_EQ(part.values.shape.size(), 2u);
    SPECDEC_CHECK_EQ(part.in_features(), args.parts[0].in_features());
  }
}

void CpuPackedLinear::pack_floats(const PackArgs& args, HostArena& arena, ThreadPool& pool) {
  const bool is_bf16 = packed_format_ == kPackedBf16;
  padded_k_ = is_bf16 ? (in_features_ + kBf16Depth - 1) / kBf16Depth * kBf16Depth : in_features_;
  block_bytes_ = padded_k_ * kBlockOutputs * (is_bf16 ? 2 : 4);
  data_ = arena.allocate(static_cast<size_t>(num_blocks_ * block_bytes_), "packed weights");
  const OutputMap map(args);
  pool.parallel_for(num_blocks_, 4, [&](int64_t begin, int64_t end, int) {
    std::vector<float> values;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t offset = block * padded_k_ * kLanes;
      if (is_bf16) {
        pack_block(map, block, in_features_, values, data_.as<BFloat16>() + offset);
      } else {
        pack_block(map, block, in_features_, values, data_.as<float>() + offset);
      }
    }
  });
}

void CpuPackedLinear::pack_integers(const PackArgs& args, const QuantizeKernels& kernels,
                                    HostArena& arena, ThreadPool& pool) {
  const IntLayout layout(packed_format_, in_features_);
  padded_k_ = layout.padded_k();
  block_bytes_ = layout.block_bytes();
  data_ = arena.allocate(static_cast<size_t>(num_blocks_ * block_bytes_), "packed weights");
  const OutputMap map(args);
  pool.parallel_for(num_blocks_, 4, [&](int64_t begin, int64_t end, int) {
    IntRow row(layout);
    for (int64_t block = begin; block < end; ++block) {
      uint8_t* out = data_.as<uint8_t>() + block * block_bytes_;
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const OutputMap::Source source = map.source(block, lane);
        if (source.part == nullptr) continue;
        row.read(*source.part, source.row, kernels);
        row.put(lane, out);
      }
    }
  });
}

void CpuPackedLinear::unpack_row(int64_t output, float* out) const {
  SPECDEC_CHECK(!is_gated_);
  const void* from = block(output / kLanes);
  if (is_integer()) {
    const IntLayout layout(packed_format_, in_features_);
    IntRow row(layout);
    row.get(output % kLanes, static_cast<const uint8_t*>(from));
    row.to_float(out);
  } else if (packed_format_ == kPackedBf16) {
    unpack(static_cast<const BFloat16*>(from), output % kLanes, in_features_, out);
  } else {
    unpack(static_cast<const float*>(from), output % kLanes, in_features_, out);
  }
}

float float_at(const void* data, DType dtype, int64_t index) {
  SPECDEC_CHECK(is_weight_dtype(dtype));
  float value = 0;
  with_source_type(dtype, [&]<class From>(const From*) {
    value = widen(static_cast<const From*>(data)[index]);
  });
  return value;
}

}  // namespace specdec::cpu
