#include "speculation/answer_store.h"

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "core/fnv1a.h"
#include "core/locked_file.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr std::string_view kMagic = "specdecs";
constexpr const char* kDamaged =
    "is damaged or no store of answers: delete the file or name another";

template <class Value>
void append_bytes(std::string& bytes, Value value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Bytes of an answer in the file.
uint64_t stored_bytes(const StoredAnswer& answer) {
  return sizeof(uint64_t) + sizeof(uint32_t) + answer.tokens.size() * sizeof(int32_t);
}

void append_answer(std::string& bytes, const StoredAnswer& answer) {
  append_bytes(bytes, answer.prompt);
  append_bytes(bytes, static_cast<uint32_t>(answer.tokens.size()));
  bytes.append(reinterpret_cast<const char*>(answer.tokens.data()),
               answer.tokens.size() * sizeof(int32_t));
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

struct AnswerStore::Header {
  char magic[8];
  uint32_t version;
  uint32_t tokenizer_bytes;
  uint64_t num_dropped;
  uint64_t end;
  uint64_t content_hash;
  uint64_t header_hash;

  uint64_t expected_hash() const {
    return fnv1a({reinterpret_cast<const char*>(this), offsetof(Header, header_hash)});
  }
  std::string bytes() const {
    Header checked = *this;
    checked.header_hash = expected_hash();
    return {reinterpret_cast<const char*>(&checked), sizeof(checked)};
  }
};

void AnswerStore::refuse(const std::string& why) const {
  throw InvalidArgument(args_.option, str_cat("the file ", args_.path, " ", why));
}

bool AnswerStore::exists() const {
  std::error_code ignored;
  return std::filesystem::exists(args_.path, ignored);
}

AnswerStore::Answers AnswerStore::read() {
  try {
    const LockedFile file(args_.path, LockedFile::For::kReading);
    if (!file.exists()) return {};
    return read_new(file, checked_header(file));
  } catch (const std::system_error& error) {
    refuse(str_cat("cannot be read: ", error.code().message()));
  }
}

AnswerStore::Answers AnswerStore::append(const Answers& answers) {
  try {
    const LockedFile file(args_.path, LockedFile::For::kWriting);
    Answers others;
    Header header = fresh_header();
    if (file.is_regular() && file.size() == 0) {
      file.write(0, header.bytes() + args_.tokenizer);
      file.sync();
      place_ = {};
    } else {
      header = checked_header(file);
      others = read_new(file, header);
    }
    if (!answers.empty()) write(file, header, answers);
    return others;
  } catch (const std::system_error& error) {
    refuse(str_cat("cannot be written: ", error.code().message()));
  }
}

AnswerStore::Header AnswerStore::fresh_header() const {
  Header header = {.magic = {},
                   .version = kVersion,
                   .tokenizer_bytes = static_cast<uint32_t>(args_.tokenizer.size()),
                   .num_dropped = 0,
                   .end = sizeof(Header) + args_.tokenizer.size(),
                   .content_hash = fnv1a(args_.tokenizer),
                   .header_hash = 0};
  kMagic.copy(header.magic, sizeof(header.magic));
  return header;
}

AnswerStore::Header AnswerStore::checked_header(const LockedFile& file) const {
  static_assert(sizeof(Header) == 48);
  if (!file.is_regular()) refuse("is no file: name a file");
  const std::string bytes = file.read(0, sizeof(Header));
  if (bytes.size() < sizeof(Header)) refuse(kDamaged);
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::string_view(header.magic, sizeof(header.magic)) != kMagic) refuse(kDamaged);
  if (header.version != kVersion) {
    refuse(str_cat("has version ", header.version, ", and this engine reads version ", kVersion,
                   ": name another file"));
  }
  const bool is_good = header.header_hash == header.expected_hash() &&
                       header.end >= sizeof(Header) + header.tokenizer_bytes &&
                       header.end <= static_cast<uint64_t>(file.size());
  if (!is_good) refuse(kDamaged);
  if (header.end > static_cast<uint64_t>(args_.max_bytes)) {
    refuse(str_cat("has ", header.end, " bytes, and at most ", args_.max_bytes,
                   " are read: delete the file"));
  }
  return header;
}

AnswerStore::Answers AnswerStore::read_new(const LockedFile& file, const Header& header) {
  const bool goes_on = place_.end > 0 && place_.device == file.device() &&
                       place_.inode == file.inode() && place_.num_dropped == header.num_dropped &&
                       place_.end <= header.end;
  const uint64_t begin = goes_on ? place_.end : sizeof(Header);
  const std::string bytes =
      file.read(static_cast<int64_t>(begin), static_cast<int64_t>(header.end));
  const uint64_t hash = fnv1a(bytes, goes_on ? place_.hash : kFnv1aOfNothing);
  if (bytes.size() != header.end - begin || hash != header.content_hash) refuse(kDamaged);
  std::string_view stored = bytes;
  if (!goes_on) {
    if (stored.substr(0, header.tokenizer_bytes) != args_.tokenizer) {
      refuse("holds token ids of another tokenizer: name another file, one for each tokenizer");
    }
    stored.remove_prefix(header.tokenizer_bytes);
  }
  Answers answers = parse(stored);
  uint64_t number = place_.number + answers.size();
  if (!goes_on) {
    // The file was replaced, and what is known of it may be left out. One that has fewer answers
    // than were known is another file.
    number = header.num_dropped + answers.size();
    const bool has_known = place_.number > header.num_dropped && place_.number <= number;
    const uint64_t num_known = has_known ? place_.number - header.num_dropped : 0;
    answers.erase(answers.begin(), answers.begin() + static_cast<int64_t>(num_known));
  }
  place_ = {.device = file.device(),
            .inode = file.inode(),
            .num_dropped = header.num_dropped,
            .end = header.end,
            .hash = hash,
            .number = number};
  return answers;
}

AnswerStore::Answers AnswerStore::parse(std::string_view bytes) const {
  Answers answers;
  Reader reader(bytes);
  while (reader.num_left() > 0) {
    const auto prompt = reader.value<uint64_t>();
    const auto length = reader.value<uint32_t>();
    const std::string_view tokens = reader.take(uint64_t{length} * sizeof(int32_t));
    if (!reader.is_whole()) refuse(kDamaged);
    StoredAnswer& answer = answers.emplace_back(prompt, std::vector<int32_t>(length));
    if (length > 0) std::memcpy(answer.tokens.data(), tokens.data(), tokens.size());
    for (const int32_t token : answer.tokens) {
      if (token >= 0 && token < args_.vocab_size) continue;
      refuse(str_cat("has the token id ", token, ", and the vocabulary ends at ",
                     args_.vocab_size - 1, ": name another file"));
    }
  }
  return answers;
}

void AnswerStore::write(const LockedFile& file, Header header, const Answers& answers) {
  std::string bytes;
  for (const StoredAnswer& answer : answers) append_answer(bytes, answer);
  if (header.end + bytes.size() > static_cast<uint64_t>(args_.max_bytes)) {
    return drop_oldest(file, header, answers);
  }
  file.write(static_cast<int64_t>(header.end), bytes);
  file.sync();
  header.end += bytes.size();
  header.content_hash = fnv1a(bytes, header.content_hash);
  file.write(0, header.bytes());
  file.sync();
  place_ = {.device = file.device(),
            .inode = file.inode(),
            .num_dropped = header.num_dropped,
            .end = header.end,
            .hash = header.content_hash,
            .number = place_.number + answers.size()};
}

void AnswerStore::drop_oldest(const LockedFile& file, const Header& header, const Answers& added) {
  Answers all = parse(file.read(static_cast<int64_t>(sizeof(Header) + header.tokenizer_bytes),
                                static_cast<int64_t>(header.end)));
  all.insert(all.end(), added.begin(), added.end());
  // Half of the bound, so that many answers are written before the next replacement.
  Header kept = fresh_header();
  auto first = all.end();
  while (first != all.begin()) {
    const uint64_t more = stored_bytes(*std::prev(first));
    if (kept.end + more > static_cast<uint64_t>(args_.max_bytes) / 2) break;
    kept.end += more;
    --first;
  }
  std::string content = args_.tokenizer;
  for (auto answer = first; answer != all.end(); ++answer) append_answer(content, *answer);
  kept.num_dropped = header.num_dropped + static_cast<uint64_t>(first - all.begin());
  kept.content_hash = fnv1a(content);
  file.replace(kept.bytes() + content);
  // The new file's inode is not known; its answers are.
  place_ = {.num_dropped = kept.num_dropped, .number = header.num_dropped + all.size()};
}

}  // namespace specdec
