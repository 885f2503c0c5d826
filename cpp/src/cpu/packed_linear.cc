#include "cpu/packed_linear.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace specdec::cpu {
namespace {

constexpr int64_t kLanes = CpuPackedLinear::kBlockOutputs;
constexpr int64_t kBf16Depth = 32;  // k of an AMX tile product

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

// Elements that lie side by side for one output: pairs of k in bfloat16, single ones in float32.
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

template <class To>
void pack_blocks(std::span<const TensorView> parts, int64_t num_k, int64_t padded_k,
                 int64_t block_begin, int64_t block_end, To* packed) {
  int64_t first = 0;  // row of the concatenation where the part begins
  for (const TensorView& part : parts) {
    const int64_t rows = part.shape[0];
    const int64_t begin = std::max(block_begin * kLanes, first);
    const int64_t end = std::min(block_end * kLanes, first + rows);
    with_source_type(part.dtype, [&]<class From>(const From*) {
      const From* source = static_cast<const From*>(part.data);
      for (int64_t row = begin; row < end; ++row) {
        To* block = packed + row / kLanes * kLanes * padded_k;
        pack_row(source + (row - first) * num_k, num_k, row % kLanes, block);
      }
    });
    first += rows;
  }
}

template <class T>
void add_or_set(float* out, int64_t index, T value, bool accumulate) {
  out[index] = accumulate ? out[index] + widen(value) : widen(value);
}

template <class T>
void lookup_packed(const CpuPackedLinear& weight, int64_t id, float* out, bool accumulate) {
  constexpr int64_t kPair = kGroup<T>;
  const T* block = static_cast<const T*>(weight.data()) + id / kLanes * kLanes * weight.padded_k();
  const T* in = block + id % kLanes * kPair;
  for (int64_t k = 0; k < weight.in_features(); ++k) {
    add_or_set(out, k, in[k / kPair * kPair * kLanes + k % kPair], accumulate);
  }
}

}  // namespace

CpuPackedLinear::CpuPackedLinear(std::span<const TensorView> parts, DType dtype, ThreadPool& pool)
    : dtype_(dtype) {
  SPECDEC_CHECK(!parts.empty());
  SPECDEC_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  for (const TensorView& part : parts) {
    SPECDEC_CHECK(is_weight_dtype(part.dtype));
    SPECDEC_CHECK_EQ(part.shape.size(), 2u);
    SPECDEC_CHECK_EQ(part.shape[1], parts[0].shape[1]);
    out_features_ += part.shape[0];
  }
  in_features_ = parts[0].shape[1];
  padded_k_ = dtype == DType::kBF16 ? (in_features_ + kBf16Depth - 1) / kBf16Depth * kBf16Depth
                                    : in_features_;
  data_ = Buffer::host(static_cast<size_t>(num_blocks() * block_bytes()), "packed weights");
  pool.parallel_for(num_blocks(), 4, [&](int64_t begin, int64_t end, int) {
    if (dtype_ == DType::kBF16) {
      pack_blocks(parts, in_features_, padded_k_, begin, end, data_.as<BFloat16>());
    } else {
      pack_blocks(parts, in_features_, padded_k_, begin, end, data_.as<float>());
    }
  });
}

CpuEmbeddingTable::CpuEmbeddingTable(const TensorView& table, DType dtype) : dtype_(dtype) {
  SPECDEC_CHECK(is_weight_dtype(table.dtype));
  SPECDEC_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  SPECDEC_CHECK_EQ(table.shape.size(), 2u);
  num_embeddings_ = table.shape[0];
  dim_ = table.shape[1];
  const int64_t count = num_embeddings_ * dim_;
  rows_ = Buffer::host(static_cast<size_t>(count) * size_of(dtype), "an embedding table");
  with_source_type(table.dtype, [&]<class From>(const From*) {
    const From* source = static_cast<const From*>(table.data);
    for (int64_t i = 0; i < count; ++i) {
      if (dtype == DType::kBF16) {
        rows_.as<BFloat16>()[i] = convert<BFloat16>(source[i]);
      } else {
        rows_.as<float>()[i] = convert<float>(source[i]);
      }
    }
  });
}

int64_t CpuEmbeddingTable::num_embeddings() const {
  return packed_ != nullptr ? packed_->out_features() : num_embeddings_;
}

int64_t CpuEmbeddingTable::dim() const {
  return packed_ != nullptr ? packed_->in_features() : dim_;
}

void CpuEmbeddingTable::lookup(int64_t id, float* out, bool accumulate) const {
  if (packed_ != nullptr) {
    packed_->dtype() == DType::kBF16 ? lookup_packed<BFloat16>(*packed_, id, out, accumulate)
                                     : lookup_packed<float>(*packed_, id, out, accumulate);
    return;
  }
  for (int64_t k = 0; k < dim_; ++k) {
    if (dtype_ == DType::kBF16) {
      add_or_set(out, k, rows_.as<BFloat16>()[id * dim_ + k], accumulate);
    } else {
      add_or_set(out, k, rows_.as<float>()[id * dim_ + k], accumulate);
    }
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
