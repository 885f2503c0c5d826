#include "model/stored_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/str_cat.h"
#include "model/json_file.h"

namespace specdec {
namespace {

constexpr int64_t kTileColumns = 16;  // words of a cache line

// Twice the values of the 4-bit float e2m1, by code.
constexpr std::array<float, 16> kTwiceE2m1 = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};

// Where AWQ keeps output j of eight in a word.
constexpr std::array<int, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

// Code `index` of a stream of codes of less than 32 bits.
uint32_t code_at(const uint32_t* words, int64_t index, int bits) {
  const int64_t at = index * bits;
  const int shift = static_cast<int>(at % 32);
  uint32_t code = words[at / 32] >> shift;
  if (shift + bits > 32) code |= words[at / 32 + 1] << (32 - shift);
  return code & ((1u << bits) - 1);
}

constexpr const char* kBlocks = "_blocks";  // of a stack

class Reader : public MatrixTensors {
 public:
  Reader(StoredTensors& tensors, const StoredScheme& scheme, const MatrixShape& shape,
         ThreadPool* pool)
      : MatrixTensors(tensors, shape, scheme.group_size), scheme_(scheme), pool_(pool) {}

  KeptMatrix read(StoredLayout layout) {
    switch (layout) {
      case StoredLayout::kGptq:
        return read_gptq();
      case StoredLayout::kAwq:
        return read_awq();
      case StoredLayout::kPacked:
        return read_packed();
      case StoredLayout::kInt8:
        return read_int8();
      case StoredLayout::kNvfp4:
        return read_nvfp4();
      case StoredLayout::kMxfp4:
        return read_mxfp4();
      case StoredLayout::kMxfp4Stack:
        return read_mxfp4_stack();
      case StoredLayout::kNibbles:
        return read_nibbles();
      case StoredLayout::kPlain:
        break;
    }
    detail::check_failed(__FILE__, __LINE__, "the layout has several tensors");
  }

 private:
  KeptMatrix kept(auto decoded) const {
    KeptMatrix matrix(own_, num_k_, group_size(), scheme_.keeps_codes);
    matrix.keep(std::move(decoded));
    return matrix;
  }
  size_t num_own_groups() const { return static_cast<size_t>(own_.count * num_groups_); }

  // --- Codes in words ---

  // Makes room for the codes of the own rows.
  void resize_codes(DecodedCodes& decoded) const {
    decoded.codes.resize(static_cast<size_t>(own_.count * row_bytes(decoded.bits)));
  }
  int64_t row_bytes(int bits) const { return bits == 8 ? num_k_ : num_k_ / 2; }
  // Puts the codes of an own row, whose stream is `words`, where DecodedCodes has them.
  void put_codes(const uint32_t* words, int64_t row, DecodedCodes& decoded) const {
    const int bits = decoded.bits;
    uint8_t* out = decoded.codes.data() + row * row_bytes(bits);
    if (bits == 4 || bits == 8) {
      std::memcpy(out, words, static_cast<size_t>(row_bytes(bits)));
      return;
    }
    for (int64_t k = 0; k < num_k_; k += 2) {
      out[k / 2] = static_cast<uint8_t>(code_at(words, k, bits) | code_at(words, k + 1, bits) << 4);
    }
  }
  KeptMatrix read_gptq() {
    const std::string name = stem_ + ".qweight";
    const int64_t num_words = extent_of(name, 0);
    DecodedCodes decoded{.bits = bits_by_words(name, num_words)};
    check(name, {num_words, num_rows_}, {DType::kI32});
    check_even_inputs(name);
    read_column_scales(
        decoded, words_of(num_rows_, decoded.bits), [&](const uint32_t* zeros, int64_t row) {
          return code_at(zeros, row, decoded.bits) + static_cast<uint32_t>(scheme_.zero_offset);
        });
    decoded.group_of = read_group_index(stem_ + ".g_idx");
    const Buffer bytes = read_whole(name);
    const uint32_t* words = bytes.as<uint32_t>();
    resize_codes(decoded);
    // The words of an output stand below each other. A tile of outputs is made into rows.
    for_tiles(num_rows_, [&](int64_t first, int64_t count) {
      std::vector<uint32_t> rows(static_cast<size_t>(count * num_words));
      for (int64_t word = 0; word < num_words; ++word) {
        for (int64_t i = 0; i < count; ++i) {
          rows[static_cast<size_t>(i * num_words + word)] = words[word * num_rows_ + first + i];
        }
      }
      for (int64_t i = 0; i < count; ++i)
        put_codes(rows.data() + i * num_words, first + i, decoded);
    });
    return kept(std::move(decoded));
  }

  KeptMatrix read_awq() {
    const std::string name = stem_ + ".qweight";
    if (num_rows_ % 8 != 0) {
      tensors_.fail(name, str_cat(num_rows_,
                                  " outputs, expected a multiple of 8, which AWQ "
                                  "packs in a word"));
    }
    const int64_t width = num_rows_ / 8;
    DecodedCodes decoded{.bits = 4};
    check(name, {num_k_, width}, {DType::kI32});
    check_even_inputs(name);
    read_column_scales(decoded, width, [](const uint32_t* zeros, int64_t row) {
      return zeros[row / 8] >> (4 * kAwqNibble[static_cast<size_t>(row % 8)]);
    });
    const Buffer bytes = read_whole(name);
    const uint32_t* words = bytes.as<uint32_t>();
    resize_codes(decoded);
    constexpr int64_t kTileInputs = 128;
    for_tiles(width, [&](int64_t first, int64_t count) {
      for (int64_t begin = 0; begin < num_k_; begin += kTileInputs) {
        for (int64_t column = first; column < first + count; ++column) {
          for (int64_t k = begin; k < std::min(num_k_, begin + kTileInputs); k += 2) {
            const uint32_t even = words[k * width + column];
            const uint32_t odd = words[(k + 1) * width + column];
            uint8_t* out = decoded.codes.data() + column * 8 * (num_k_ / 2) + k / 2;
            for (size_t j = 0; j < 8; ++j, out += num_k_ / 2) {
              const int shift = 4 * kAwqNibble[j];
              *out = static_cast<uint8_t>((even >> shift & 15) | (odd >> shift & 15) << 4);
            }
          }
        }
      }
    });
    return kept(std::move(decoded));
  }

  // Calls body(first, count) for the tiles of as many columns.
  void for_tiles(int64_t num_columns, const auto& body) const {
    const int64_t num_tiles = (num_columns + kTileColumns - 1) / kTileColumns;
    for_each_index(pool_, static_cast<size_t>(num_tiles), [&](size_t tile) {
      const int64_t first = static_cast<int64_t>(tile) * kTileColumns;
      body(first, std::min(kTileColumns, num_columns - first));
    });
  }

  // Scales and zeros of layouts that run along outputs. zero_of(words of a group, output) has the
  // zero in its low bits.
  void read_column_scales(DecodedCodes& decoded, int64_t num_words, const auto& zero_of) {
    own_ = {0, num_rows_};
    const std::string zeros_name = stem_ + ".qzeros";
    const std::string scales_name = stem_ + ".scales";
    set_groups(scales_name, extent_of(scales_name, 0));
    check(scales_name, {num_groups_, num_rows_}, kFloatingDTypes);
    check(zeros_name, {num_groups_, num_words}, {DType::kI32});
    const std::vector<float> scales = read_floats(scales_name, {0, num_groups_}, num_rows_);
    const Buffer zeros = read_whole(zeros_name);
    decoded.zeros.resize(scales.size());
    decoded.scales.resize(scales.size());
    const uint32_t mask = (1u << decoded.bits) - 1;
    for (int64_t group = 0; group < num_groups_; ++group) {
      const uint32_t* words = zeros.as<uint32_t>() + group * num_words;
      for (int64_t row = 0; row < num_rows_; ++row) {
        const auto to = static_cast<size_t>(row * num_groups_ + group);
        decoded.zeros[to] = static_cast<int16_t>(zero_of(words, row) & mask);
        decoded.scales[to] = scales[static_cast<size_t>(group * num_rows_ + row)];
      }
    }
  }

  KeptMatrix read_packed() {
    const std::string name = stem_ + ".weight_packed";
    const std::string scales_name = stem_ + ".weight_scale";
    const int64_t num_words = extent_of(name, 1);
    DecodedCodes decoded{.bits = bits_by_words(name, num_words)};
    check(name, {num_rows_, num_words}, {DType::kI32});
    check_even_inputs(name);
    set_groups(scales_name, std::max<int64_t>(1, extent_of(scales_name, 1)));
    decoded.scales = read_scales(scales_name);
    decoded.zeros = read_packed_zeros(decoded.bits);
    decoded.group_of = read_group_index(stem_ + ".weight_g_idx");
    const Buffer bytes = tensors_.read_raw(name, own_);
    resize_codes(decoded);
    for_each_index(pool_, static_cast<size_t>(own_.count), [&](size_t index) {
      const auto row = static_cast<int64_t>(index);
      put_codes(bytes.as<uint32_t>() + row * num_words, row, decoded);
    });
    return kept(std::move(decoded));
  }

  // A group's zeros are a stream that runs down the outputs.
  std::vector<int16_t> read_packed_zeros(int bits) {
    std::vector<int16_t> zeros(num_own_groups(), static_cast<int16_t>(1 << (bits - 1)));
    const std::string name = stem_ + ".weight_zero_point";
    if (!has(name) && !scheme_.needs_zeros) return zeros;
    const int64_t num_words = words_of(num_rows_, bits);
    check(name, {num_words, num_groups_}, {DType::kI32});
    const Buffer bytes = read_whole(name);
    std::vector<uint32_t> stream(static_cast<size_t>(num_words));
    for (int64_t group = 0; group < num_groups_; ++group) {
      for (int64_t word = 0; word < num_words; ++word) {
        stream[static_cast<size_t>(word)] = bytes.as<uint32_t>()[word * num_groups_ + group];
      }
      for (int64_t row = 0; row < own_.count; ++row) {
        zeros[static_cast<size_t>(row * num_groups_ + group)] =
            static_cast<int16_t>(code_at(stream.data(), own_.begin + row, bits));
      }
    }
    return zeros;
  }

  // --- Codes in bytes ---

  KeptMatrix read_int8() {
    const bool is_bitsandbytes = has(stem_ + ".SCB");
    const std::string scales_name = stem_ + (is_bitsandbytes ? ".SCB" : ".weight_scale");
    const std::string zeros_name = stem_ + ".weight_zero_point";
    check(name_, {num_rows_, num_k_}, {DType::kI8});
    set_groups(scales_name, std::max<int64_t>(1, extent_of(scales_name, 1)));
    DecodedCodes decoded{.bits = 8};
    const SafetensorsEntry* scale = tensors_.find(scales_name);
    if (scale != nullptr && scale->shape != std::vector{num_rows_} && scale->num_rows() == 1) {
      decoded.scales.assign(static_cast<size_t>(own_.count), read_scalar(scales_name));
    } else {
      decoded.scales = read_scales(scales_name);
    }
    if (is_bitsandbytes) {
      check_order(stem_ + ".weight_format");
      for (float& value : decoded.scales) value /= 127.0f;
    }
    const Buffer bytes = tensors_.read_raw(name_, own_);
    for (const uint8_t code : std::span(bytes.as<uint8_t>(), bytes.size_bytes())) {
      decoded.codes.push_back(code ^ 0x80);
    }
    decoded.zeros.assign(num_own_groups(), int16_t{128});
    if (has(zeros_name) || scheme_.needs_zeros) {
      check(zeros_name, {num_rows_, num_groups_}, {DType::kI8});
      const Buffer zeros = tensors_.read_raw(zeros_name, own_);
      for (size_t i = 0; i < decoded.zeros.size(); ++i) {
        decoded.zeros[i] = static_cast<int16_t>(decoded.zeros[i] + zeros.as<int8_t>()[i]);
      }
    }
    return kept(std::move(decoded));
  }

  void check_order(const std::string& name) {
    if (!has(name)) return;
    check(name, {}, {DType::kU8});
    if (read_whole(name).as<uint8_t>()[0] != 0) {
      tensors_.fail(name, "expected 0: codes in order of rows, the only order that is read");
    }
  }

  // --- 4-bit floats ---

  KeptMatrix read_nvfp4() {
    constexpr int64_t kGroup = 16;
    const bool is_modelopt = !has(stem_ + ".weight_packed");
    const std::string global_name =
        stem_ + (is_modelopt ? ".weight_scale_2" : ".weight_global_scale");
    const float global = read_scalar(global_name);
    if (global == 0.0f) tensors_.fail(global_name, "is 0");
    const float factor = is_modelopt ? global : 1.0f / global;
    return read_e2m1(is_modelopt ? name_ : stem_ + ".weight_packed", kGroup, DType::kF8E4M3,
                     [&](uint8_t scale) { return e4m3_to_float(scale) * factor; });
  }
  KeptMatrix read_mxfp4() {
    return read_e2m1(stem_ + ".weight_packed", 32, DType::kU8,
                     [](uint8_t scale) { return std::ldexp(1.0f, scale - 127); });
  }
  KeptMatrix read_e2m1(const std::string& name, int64_t group, DType scale_dtype,
                       const auto& scale_of) {
    const std::string scales_name = stem_ + ".weight_scale";
    if (num_k_ % group != 0) {
      tensors_.fail(name, str_cat(num_k_, " inputs, expected groups of ", group));
    }
    set_groups(scales_name, num_k_ / group);
    check(name, {num_rows_, num_k_ / 2}, {DType::kU8});
    check(scales_name, {num_rows_, num_groups_}, {scale_dtype});
    return keep_e2m1(tensors_.read_raw(name, own_), scales_name, scale_of);
  }
  KeptMatrix keep_e2m1(const Buffer& codes, const std::string& scales_name, const auto& scale_of) {
    DecodedTable decoded{.table = kTwiceE2m1};
    decoded.codes.assign(codes.as<uint8_t>(), codes.as<uint8_t>() + codes.size_bytes());
    const Buffer scales = tensors_.read_raw(scales_name, own_);
    for (const uint8_t scale : std::span(scales.as<uint8_t>(), scales.size_bytes())) {
      decoded.scales.push_back(scale_of(scale) / 2.0f);
    }
    check_finite(scales_name, decoded.scales);
    return kept(std::move(decoded));
  }
  KeptMatrix read_mxfp4_stack() {
    constexpr int64_t kGroup = 32;
    const std::string name = name_ + kBlocks, scales_name = name_ + "_scales";
    const std::vector<int64_t>& shape = tensors_.find(name)->shape;
    const int64_t count = shape.empty() ? 0 : shape.front();
    if (num_k_ % kGroup != 0 || count == 0 || num_rows_ % count != 0) {
      tensors_.fail(name, str_cat(count, " matrices, expected ", num_rows_, " outputs in all, of ",
                                  num_k_, " inputs, in groups of ", kGroup));
    }
    num_groups_ = num_k_ / kGroup;
    check(name, {count, num_rows_ / count, num_groups_, kGroup / 2}, {DType::kU8});
    check(scales_name, {count, num_rows_ / count, num_groups_}, {DType::kU8});
    const RowRange blocks = {own_.begin * num_groups_, own_.count * num_groups_};
    return keep_e2m1(tensors_.read_raw(name, blocks), scales_name,
                     [](uint8_t scale) { return std::ldexp(1.0f, scale - 127); });
  }

  // --- bitsandbytes in 4 bits ---

  KeptMatrix read_nibbles() {
    constexpr int64_t kBlock = 64;
    const SafetensorsEntry& stored = *tensors_.find(name_);
    const int64_t num_bytes = num_rows_ * num_k_ / 2;
    if (static_cast<int64_t>(stored.end - stored.begin) != num_bytes || num_k_ % kBlock != 0) {
      tensors_.fail(name_, str_cat(stored.end - stored.begin, " bytes, expected ", num_bytes,
                                   " for ", num_rows_, " outputs of ", num_k_,
                                   " inputs, in blocks of 64 inputs of an output"));
    }
    own_ = {0, num_rows_};
    set_groups(name_ + ".absmax", num_k_ / kBlock);
    DecodedTable decoded;
    decoded.scales = read_absmax(own_.count * num_groups_);
    std::ranges::copy(read_vector(name_ + ".quant_map", 16), decoded.table.begin());
    decoded.dtype = read_value_dtype();
    const Buffer bytes = read_whole(name_);
    for (const uint8_t pair : std::span(bytes.as<uint8_t>(), bytes.size_bytes())) {
      decoded.codes.push_back(static_cast<uint8_t>(pair >> 4 | pair << 4));
    }
    return kept(std::move(decoded));
  }

  // The largest magnitude of each block, perhaps as an 8-bit code.
  std::vector<float> read_absmax(int64_t count) {
    constexpr int64_t kNestedBlock = 256;
    const std::string name = name_ + ".absmax";
    const SafetensorsEntry* found = tensors_.find(name);
    if (found == nullptr || found->dtype != DType::kU8) return read_vector(name, count);
    check(name, {count}, {DType::kU8});
    const std::vector<float> map = read_vector(name_ + ".nested_quant_map", 256);
    const std::vector<float> largest =
        read_vector(name_ + ".nested_absmax", (count + kNestedBlock - 1) / kNestedBlock);
    const float offset = read_nested_offset();
    const Buffer codes = read_whole(name);
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = map[codes.as<uint8_t>()[i]] * largest[i / kNestedBlock] + offset;
    }
    return values;
  }

  // The JSON text that bitsandbytes keeps in a tensor; null: there is none.
  nlohmann::json read_state() {
    for (const char* kind : {"nf4", "fp4"}) {
      const std::string name = str_cat(name_, ".quant_state.bitsandbytes__", kind);
      if (!has(name)) continue;
      const Buffer bytes = read_whole(name);
      return parse_json(name, "quant_state", {bytes.as<char>(), bytes.size_bytes()});
    }
    return nlohmann::json::object();
  }
  float read_nested_offset() {
    const nlohmann::json state = read_state();
    const auto offset = state.find("nested_offset");
    if (offset != state.end() && offset->is_number()) return offset->get<float>();
    tensors_.fail(name_ + ".quant_state.bitsandbytes__nf4",
                  "expected a tensor with the number nested_offset, since absmax is in 8 bits");
  }
  // To which bitsandbytes rounds the values.
  DType read_value_dtype() {
    const nlohmann::json state = read_state();
    const auto dtype = state.find("dtype");
    if (dtype == state.end()) return DType::kF32;
    return *dtype == "bfloat16" ? DType::kBF16 : *dtype == "float16" ? DType::kF16 : DType::kF32;
  }

  const StoredScheme& scheme_;
  ThreadPool* pool_;
};

}  // namespace

StoredLayout find_layout(const StoredTensors& tensors, const std::string& name,
                         const StoredScheme& scheme) {
  const std::string stem = stem_of(name);
  const auto has = [&](const char* suffix) { return tensors.find(stem + suffix) != nullptr; };
  if (has(".qweight")) return scheme.is_awq ? StoredLayout::kAwq : StoredLayout::kGptq;
  if (const SafetensorsEntry* packed = tensors.find(stem + ".weight_packed"); packed != nullptr) {
    if (packed->dtype != DType::kU8) return StoredLayout::kPacked;
    const SafetensorsEntry* scale = tensors.find(stem + ".weight_scale");
    const bool is_mx = scale != nullptr && scale->dtype == DType::kU8;
    return is_mx ? StoredLayout::kMxfp4 : StoredLayout::kNvfp4;
  }
  const SafetensorsEntry* weight = tensors.find(name);
  if (weight == nullptr) {
    return tensors.find(name + kBlocks) != nullptr ? StoredLayout::kMxfp4Stack
                                                   : StoredLayout::kPlain;
  }
  if (has(".weight.absmax") || has(".weight.quant_map")) return StoredLayout::kNibbles;
  if (weight->dtype == DType::kU8 && has(".weight_scale")) return StoredLayout::kNvfp4;
  if (weight->dtype == DType::kI8 && (has(".SCB") || has(".weight_scale"))) {
    return StoredLayout::kInt8;
  }
  return StoredLayout::kPlain;
}

KeptMatrix read_stored_matrix(StoredTensors& tensors, const StoredScheme& scheme,
                              StoredLayout layout, const MatrixShape& shape, ThreadPool* pool) {
  return Reader(tensors, scheme, shape, pool).read(layout);
}

}  // namespace specdec
