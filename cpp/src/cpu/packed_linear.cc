#include "cpu/packed_linear.h"

#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "comm/communicator.h"
#include "core/check.h"
#include "cpu/kernels/linear_int.h"

namespace specdec::cpu {
namespace {

constexpr int64_t kLanes = CpuPackedLinear::kBlockOutputs;
constexpr int64_t kBf16Depth = 32;  // k of an AMX tile product
// Slices end at multiples of this, so no kernel step and no record of integers spans two slices.
constexpr int64_t kSliceUnit = 64;

bool is_small(std::span<const int8_t> table) {
  return std::ranges::all_of(table, [](int value) { return std::abs(value) < kSmallTableOffset; });
}

PackedFormat packed_format_of(const PackArgs& args, DType act_dtype) {
  switch (args.format) {
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
    case WeightFormat::kInt4GroupedZero:
      return kPackedInt4GroupedZero;
    case WeightFormat::kInt4Table:
      SPECDEC_CHECK(args.parts[0].table != nullptr);
      return is_small({args.parts[0].table, kTableSize}) ? kPackedInt4SmallTable : kPackedInt4Table;
    case WeightFormat::kInt8Grouped16:
      return kPackedInt8Grouped16;
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

// Calls body with a null pointer to the element type of `dtype`.
template <class Body>
void with_source_type(DType dtype, Body&& body) {
  if (dtype == DType::kF32) return body(static_cast<const float*>(nullptr));
  if (dtype == DType::kBF16) return body(static_cast<const BFloat16*>(nullptr));
  return body(static_cast<const Half*>(nullptr));
}

bool has_order_of(const WeightView& a, const WeightView& b) {
  if (a.input_order == nullptr || b.input_order == nullptr) return a.input_order == b.input_order;
  return std::equal(a.input_order, a.input_order + a.in_features(), b.input_order);
}

// Maps each lane of a block to a row of a part.
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

// Elements of one output that are adjacent: pairs of k in bfloat16, single elements in float32.
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

// Packs inputs [first, first + num_k) of the parts. `values` is scratch for quantised rows.
template <class To>
void pack_block(const OutputMap& map, int64_t block, int64_t first, int64_t num_k,
                std::vector<float>& values, To* out) {
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const OutputMap::Source source = map.source(block, lane);
    if (source.part == nullptr) continue;
    if (source.part->is_quantized()) {
      values.resize(source.part->in_features());
      dequantize_row(*source.part, source.row, values.data());
      pack_row(values.data() + first, num_k, lane, out);
      continue;
    }
    with_source_type(source.part->values.dtype, [&]<class From>(const From*) {
      const From* values_of_part = static_cast<const From*>(source.part->values.data);
      pack_row(values_of_part + source.row * source.part->in_features() + first, num_k, lane, out);
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

CpuPackedLinear::CpuPackedLinear(const PackArgs& args, DType act_dtype, const KernelTable& kernels,
                                 HostArena& arena, ThreadPool& pool)
    : format_(args.format),
      signed_int8_(kernels.linear.signed_int8),
      is_gated_(args.gated),
      share_(args) {
  SPECDEC_CHECK(act_dtype == DType::kF32 || act_dtype == DType::kBF16);
  check(args);
  packed_format_ = packed_format_of(args, act_dtype);
  in_features_ = all_inputs_ = args.parts[0].in_features();
  if (args.k_slices != nullptr) {
    SPECDEC_CHECK_EQ(args.k_slices->whole_features(), in_features_);
    first_input_ = args.k_slices->begin();
    in_features_ = args.k_slices->in_features();
  }
  if (const int32_t* order = args.parts[0].input_order; order != nullptr) {
    SPECDEC_CHECK(is_integer());
    has_input_order_ = true;
    input_order_.assign(order + first_input_, order + first_input_ + in_features_);
  }
  for (const WeightView& part : args.parts) num_outputs_ += part.rows();
  if (share_.by_outputs()) {
    SPECDEC_CHECK_EQ(num_outputs_, share_.num_outputs(share_.ranks()->rank()));
  }
  num_blocks_ = OutputMap(args).num_blocks();
  if (is_integer()) {
    pack_integers(args, kernels.quantize, arena, pool);
  } else {
    pack_floats(args, arena, pool);
  }
  set_steps(args);
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
    SPECDEC_CHECK(has_order_of(part, args.parts[0]));
  }
}

void CpuPackedLinear::set_steps(const PackArgs& args) {
  if (args.k_slices == nullptr) {
    sum_slices_ = {{.end = padded_k_, .num_folds = 0, .stack_index = 0, .is_left = true}};
    return;
  }
  static_assert(kMaxPartials == kMaxPartialSums);
  const KSlices& slices = *args.k_slices;
  const FoldOrder order = fold_order_of(slices.run);
  num_planes_ = order.num_left;
  for (int i = 0; i < order.num_entries; ++i) {
    const bool is_last = i + 1 == order.num_entries;
    const int64_t end = is_last ? padded_k_ : slices.local_bound(i + 1);
    SPECDEC_CHECK(is_last || end % kSliceUnit == 0);
    const FoldEntry& entry = order.entries[i];
    sum_slices_.push_back({.end = end,
                           .num_folds = entry.num_folds,
                           .stack_index = entry.stack_index,
                           .is_left = entry.is_left});
  }
}

IntLayout CpuPackedLinear::layout_of(int64_t in_features) const {
  const bool has_table = format_ == WeightFormat::kInt4Table;
  return IntLayout(packed_format_, signed_int8_, in_features, has_table ? table_.data() : nullptr);
}

const float* CpuPackedLinear::output_scales(int64_t block) const {
  return packed_format_ == kPackedInt8 ? static_cast<const float*>(this->block(block)) : nullptr;
}

void CpuPackedLinear::pack_floats(const PackArgs& args, HostArena& arena, ThreadPool& pool) {
  const bool is_bf16 = packed_format_ == kPackedBf16;
  // A rank without inputs gets one input of zeros, because kernels need at least one k.
  padded_k_ = std::max<int64_t>(in_features_, 1);
  if (is_bf16) padded_k_ = (padded_k_ + kBf16Depth - 1) / kBf16Depth * kBf16Depth;
  block_bytes_ = padded_k_ * kBlockOutputs * (is_bf16 ? 2 : 4);
  data_ = arena.allocate(static_cast<size_t>(num_blocks_ * block_bytes_), "packed weights");
  const OutputMap map(args);
  pool.parallel_for(num_blocks_, 4, [&](int64_t begin, int64_t end, int) {
    std::vector<float> values;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t offset = block * padded_k_ * kLanes;
      if (is_bf16) {
        pack_block(map, block, first_input_, in_features_, values, data_.as<BFloat16>() + offset);
      } else {
        pack_block(map, block, first_input_, in_features_, values, data_.as<float>() + offset);
      }
    }
  });
}

void CpuPackedLinear::pack_integers(const PackArgs& args, const QuantizeKernels& kernels,
                                    HostArena& arena, ThreadPool& pool) {
  if (format_ == WeightFormat::kInt4Table) {
    std::copy_n(args.parts[0].table, table_.size(), table_.begin());
  }
  const IntLayout layout = layout_of(std::max<int64_t>(in_features_, 1));
  const IntLayout whole = layout_of(args.parts[0].in_features());
  padded_k_ = layout.padded_k();
  block_bytes_ = layout.block_bytes();
  data_ = arena.allocate(static_cast<size_t>(num_blocks_ * block_bytes_), "packed weights");
  const OutputMap map(args);
  pool.parallel_for(num_blocks_, 4, [&](int64_t begin, int64_t end, int) {
    IntRow row(whole);  // scales may cover the whole row
    for (int64_t block = begin; block < end; ++block) {
      uint8_t* out = data_.as<uint8_t>() + block * block_bytes_;
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const OutputMap::Source source = map.source(block, lane);
        if (source.part == nullptr) continue;
        row.read(*source.part, source.row, kernels);
        row.put(first_input_, layout, lane, out);
      }
    }
  });
}

void CpuPackedLinear::unpack_row(int64_t output, float* out) const {
  SPECDEC_CHECK(!is_gated_ && !share_.by_inputs() && !has_input_order_);
  const void* from = block(output / kLanes);
  if (is_integer()) {
    const IntLayout layout = layout_of(in_features_);
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
