#include "speculation/suffix_store.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>
#include <system_error>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr std::string_view kMagic = "specdecs";

uint64_t fnv1a(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  return hash;
}

template <class Value>
void append(std::string& bytes, Value value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Reads values one after the other. Past the end every value is empty, and is_whole() false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  std::string_view take(uint64_t size) {
    if (size > bytes_.size()) {
      is_whole_ = false;
      size = bytes_.size();
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  template <class Value>
  Value value() {
    const std::string_view bytes = take(sizeof(Value));
    Value value{};
    std::memcpy(&value, bytes.data(), bytes.size());
    return is_whole_ ? value : Value{};
  }
  bool is_whole() const { return is_whole_; }
  size_t num_left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool is_whole_ = true;
};

}  // namespace

void SuffixStore::refuse(const std::string& why) const {
  throw InvalidArgument("suffix_store", str_cat("the file ", path_, " ", why));
}

SuffixStore::Outputs SuffixStore::read(int vocab_size) const {
  constexpr const char* kDamaged = "is damaged or no suffix store: delete the file or name another";
  std::error_code error;
  const auto status = std::filesystem::status(path_, error);
  if (!std::filesystem::exists(status)) return {};
  if (!std::filesystem::is_regular_file(status)) refuse("is no file: name a file");
  const uintmax_t size = std::filesystem::file_size(path_, error);
  if (error) refuse(str_cat("cannot be read: ", error.message()));
  if (size > static_cast<uintmax_t>(kMaxBytes)) {
    refuse(str_cat("has ", size, " bytes, and at most ", kMaxBytes, " are read: delete the file"));
  }
  std::ifstream file(path_, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) refuse("cannot be read: check its permissions");

  Reader head(bytes);
  if (head.take(kMagic.size()) != kMagic) refuse(kDamaged);
  const auto version = head.value<uint32_t>();
  if (head.is_whole() && version > kVersion) {
    refuse(str_cat("has version ", version, ", and this engine reads version ", kVersion,
                   ": use a newer engine, or name another file"));
  }
  if (bytes.size() < sizeof(uint64_t) || version != kVersion) refuse(kDamaged);
  const std::string_view content(bytes.data(), bytes.size() - sizeof(uint64_t));
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + content.size(), sizeof(hash));
  if (fnv1a(content) != hash) refuse(kDamaged);

  Reader reader(content);
  reader.take(kMagic.size() + sizeof(uint32_t));
  if (reader.take(reader.value<uint32_t>()) != tokenizer_) {
    refuse("holds token ids of another tokenizer: name another file, one for each tokenizer");
  }
  Outputs outputs;
  const auto num_outputs = reader.value<uint64_t>();
  for (uint64_t i = 0; i < num_outputs && reader.is_whole(); ++i) {
    const auto length = reader.value<uint32_t>();
    const std::string_view tokens = reader.take(uint64_t{length} * sizeof(int32_t));
    if (!reader.is_whole()) break;
    std::vector<int32_t>& output = outputs.emplace_back(length);
    if (length > 0) std::memcpy(output.data(), tokens.data(), tokens.size());
    for (const int32_t token : output) {
      if (token >= 0 && token < vocab_size) continue;
      refuse(str_cat("has the token id ", token, ", and the vocabulary ends at ", vocab_size - 1,
                     ": name another file"));
    }
  }
  if (!reader.is_whole() || reader.num_left() > 0) refuse(kDamaged);
  return outputs;
}

void SuffixStore::write(const Outputs& outputs) const {
  std::string bytes(kMagic);
  append(bytes, kVersion);
  append(bytes, static_cast<uint32_t>(tokenizer_.size()));
  bytes += tokenizer_;
  append(bytes, static_cast<uint64_t>(outputs.size()));
  for (const std::vector<int32_t>& output : outputs) {
    append(bytes, static_cast<uint32_t>(output.size()));
    bytes.append(reinterpret_cast<const char*>(output.data()), output.size() * sizeof(int32_t));
  }
  append(bytes, fnv1a(bytes));

  // Another process may write the same file.
  const std::string temporary = str_cat(path_, ".", ::getpid(), ".tmp");
  const auto fail = [&]() {
    const std::string why = std::strerror(errno);
    std::remove(temporary.c_str());
    refuse(str_cat("cannot be written: ", why));
  };
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) fail();
  bool is_good = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  // The content has to be on the disk before the name is.
  is_good = std::fflush(file) == 0 && is_good && ::fsync(::fileno(file)) == 0;
  is_good = std::fclose(file) == 0 && is_good;
  if (!is_good || std::rename(temporary.c_str(), path_.c_str()) != 0) fail();
}

}  // namespace specdec
