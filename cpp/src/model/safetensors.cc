#include "model/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "core/check.h"
#include "core/str_cat.h"
#include "model/json_file.h"
#include "specdec/error.h"

namespace specdec {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kPartBytes = size_t{1} << 17;     // read at once, within a level-2 cache
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's limit
constexpr std::string_view kMetadataKey = "__metadata__";

struct FormatDType {
  std::string_view name;
  uint64_t bits;
  std::optional<DType> dtype;
};

constexpr std::array kFormatDTypes = {
    FormatDType{"F32", 32, DType::kF32},       FormatDType{"BF16", 16, DType::kBF16},
    FormatDType{"F16", 16, DType::kF16},       FormatDType{"F64", 64, DType::kF64},
    FormatDType{"I64", 64, DType::kI64},       FormatDType{"I32", 32, DType::kI32},
    FormatDType{"I16", 16, DType::kI16},       FormatDType{"I8", 8, DType::kI8},
    FormatDType{"U8", 8, DType::kU8},          FormatDType{"BOOL", 8, DType::kBool},
    FormatDType{"U16", 16, std::nullopt},      FormatDType{"U32", 32, std::nullopt},
    FormatDType{"U64", 64, std::nullopt},      FormatDType{"C64", 64, std::nullopt},
    FormatDType{"F8_E4M3", 8, DType::kF8E4M3}, FormatDType{"F8_E5M2", 8, std::nullopt},
    FormatDType{"F8_E8M0", 8, std::nullopt},   FormatDType{"F6_E2M3", 6, std::nullopt},
    FormatDType{"F6_E3M2", 6, std::nullopt},   FormatDType{"F4", 4, std::nullopt},
};

uint64_t read_header_length(const std::string& path, const InputFile& file) {
  if (file.size() == 0) throw CheckpointError(path, "", "the file is empty");
  if (file.size() < kLengthBytes) {
    throw CheckpointError(path, "",
                          str_cat("not a safetensors file: expected at least ", kLengthBytes,
                                  " bytes, found ", file.size()));
  }
  std::array<unsigned char, kLengthBytes> bytes{};
  file.read(0, bytes.size(), bytes.data());
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{bytes[i]} << (8 * i);
  if (length > kMaxHeaderBytes) {
    throw CheckpointError(path, "",
                          str_cat("not a safetensors file: a header of ", length,
                                  " bytes, expected at most ", kMaxHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    throw CheckpointError(
        path, "",
        str_cat("truncated: a header of ", length, " bytes in a file of ", file.size(), " bytes"));
  }
  return length;
}

// Parses the header and refuses a key that occurs twice in one object; a JSON parser would accept
// it and keep either value.
Json parse_header(const std::string& path, const std::string& text) {
  if (text.empty() || text.front() != '{') {
    throw CheckpointError(path, "", "not a safetensors file: the header is not a JSON object");
  }
  std::vector<std::set<std::string>> keys_of_open_objects;
  return parse_json(path, "the header", text, [&](JsonEvent event, const Json& parsed) {
    if (event == JsonEvent::object_start) {
      keys_of_open_objects.emplace_back();
    } else if (event == JsonEvent::object_end) {
      keys_of_open_objects.pop_back();
    } else if (event == JsonEvent::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_of_open_objects.back().insert(key).second) {
        throw CheckpointError(path, keys_of_open_objects.size() == 1 ? key : "",
                              str_cat("key '", key, "' stands twice in the header"));
      }
    }
  });
}

void check_metadata(const std::string& path, const Json& metadata) {
  const bool strings_only =
      metadata.is_object() &&
      std::all_of(metadata.begin(), metadata.end(), [](const Json& v) { return v.is_string(); });
  if (!strings_only) {
    throw CheckpointError(path, "", "__metadata__: expected an object of strings");
  }
}

// Turns one value of the header into an entry with offsets in the file.
class EntryParser {
 public:
  EntryParser(const std::string& path, size_t data_begin, size_t file_size)
      : path_(path), data_begin_(data_begin), data_bytes_(file_size - data_begin) {}

  SafetensorsEntry parse(const std::string& name, const Json& value) const {
    if (!value.is_object()) fail(name, "expected an object with dtype, shape and data_offsets");
    SafetensorsEntry entry;
    const FormatDType& dtype = parse_dtype(name, value);
    entry.dtype_name = dtype.name;
    entry.dtype = dtype.dtype;
    entry.shape = parse_shape(name, value);
    const auto [begin, end] = parse_offsets(name, value);
    const uint64_t expected_bytes = bytes_of(name, dtype, entry.shape);
    if (end - begin != expected_bytes) {
      fail(name,
           str_cat("data_offsets [", begin, ", ", end, "] hold ", end - begin, " bytes, expected ",
                   expected_bytes, " for ", dtype.name, " of shape ", excerpt(entry.shape)));
    }
    entry.begin = data_begin_ + begin;
    entry.end = data_begin_ + end;
    return entry;
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& message) const {
    throw CheckpointError(path_, name, message);
  }

  const Json& field(const std::string& name, const Json& value, const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) fail(name, str_cat("missing ", key));
    return *found;
  }

  const FormatDType& parse_dtype(const std::string& name, const Json& value) const {
    const Json& dtype = field(name, value, "dtype");
    if (!dtype.is_string()) fail(name, "dtype: expected a string");
    const auto& text = dtype.get_ref<const std::string&>();
    for (const FormatDType& known : kFormatDTypes) {
      if (known.name == text) return known;
    }
    fail(name, str_cat("dtype: '", text, "' is not a safetensors dtype"));
  }

  std::vector<int64_t> parse_shape(const std::string& name, const Json& value) const {
    const Json& shape = field(name, value, "shape");
    if (!shape.is_array()) fail(name, "shape: expected an array");
    std::vector<int64_t> extents;
    for (const Json& extent : shape) {
      if (!extent.is_number_unsigned() ||
          extent.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
        fail(name, str_cat("shape: expected non-negative integers, got ", excerpt(extent)));
      }
      extents.push_back(extent.get<int64_t>());
    }
    return extents;
  }

  std::pair<uint64_t, uint64_t> parse_offsets(const std::string& name, const Json& value) const {
    const Json& offsets = field(name, value, "data_offsets");
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      fail(name, "data_offsets: expected two non-negative integers");
    }
    const auto begin = offsets[0].get<uint64_t>();
    const auto end = offsets[1].get<uint64_t>();
    if (begin > end) fail(name, str_cat("data_offsets: ", begin, " lies after ", end));
    if (end > data_bytes_) {
      fail(name, str_cat("truncated: data_offsets end at byte ", end, ", the file holds ",
                         data_bytes_, " bytes of data"));
    }
    return {begin, end};
  }

  uint64_t bytes_of(const std::string& name, const FormatDType& dtype,
                    const std::vector<int64_t>& shape) const {
    uint64_t bits = dtype.bits;
    bool overflow = false;
    for (int64_t extent : shape) {
      overflow |= __builtin_mul_overflow(bits, static_cast<uint64_t>(extent), &bits);
    }
    if (overflow) fail(name, "shape: the number of elements overflows");
    if (bits % 8 != 0) fail(name, "shape: the elements do not fill whole bytes");
    return bits / 8;
  }

  const std::string& path_;
  size_t data_begin_;
  uint64_t data_bytes_;
};

void check_coverage(const std::string& path, const std::map<std::string, SafetensorsEntry>& entries,
                    size_t data_begin, size_t file_size) {
  std::vector<const std::pair<const std::string, SafetensorsEntry>*> by_offset;
  for (const auto& named : entries) by_offset.push_back(&named);
  std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  size_t covered = data_begin;
  const std::string* previous = nullptr;
  for (const auto* named : by_offset) {
    const auto& [name, entry] = *named;
    if (entry.begin < covered) {
      throw CheckpointError(path, name, str_cat("overlaps tensor '", *previous, "'"));
    }
    if (entry.begin > covered) {
      throw CheckpointError(
          path, name,
          str_cat("expected to start at data offset ", covered - data_begin, ", starts at ",
                  entry.begin - data_begin, ": the bytes between belong to no tensor"));
    }
    covered = entry.end;
    previous = &name;
  }
  if (covered != file_size) {
    throw CheckpointError(
        path, "",
        str_cat("the last ", file_size - covered, " bytes of the file belong to no tensor"));
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)), file_(path_) {
  std::string text(read_header_length(path_, file_), '\0');
  file_.read(kLengthBytes, text.size(), text.data());
  const Json header = parse_header(path_, text);
  const size_t data_begin = kLengthBytes + text.size();
  const EntryParser parser(path_, data_begin, file_.size());
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) {
      check_metadata(path_, value);
    } else {
      entries_.emplace(name, parser.parse(name, value));
    }
  }
  check_coverage(path_, entries_, data_begin, file_.size());
}

int64_t SafetensorsEntry::num_rows() const {
  int64_t count = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) count *= shape[i];
  return count;
}

Buffer SafetensorsFile::read(const std::string& name) const {
  const auto found = entries_.find(name);
  return read(name, {0, found == entries_.end() ? 0 : found->second.num_rows()});
}

Buffer SafetensorsFile::read(const std::string& name, RowRange rows, const Seen& seen) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw CheckpointError(path_, name, "the file has no such tensor");
  const SafetensorsEntry& entry = found->second;
  const int64_t num_rows = entry.num_rows();
  SPECDEC_CHECK(rows.begin >= 0 && rows.count >= 0 && rows.end() <= num_rows);
  const size_t row_bytes = num_rows == 0 ? 0 : (entry.end - entry.begin) / num_rows;
  Buffer bytes = Buffer::host(rows.count * row_bytes, "a tensor of the checkpoint");
  const size_t begin = entry.begin + rows.begin * row_bytes;
  for (size_t done = 0; done < bytes.size_bytes();) {
    const size_t count = std::min(kPartBytes, bytes.size_bytes() - done);
    std::byte* part = bytes.as<std::byte>() + done;
    file_.read(begin + done, count, part);
    if (seen) seen({part, count});
    done += count;
  }
  return bytes;
}

}  // namespace specdec
