// A file in which answers outlive the engine, and which engines share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace specdec {

class LockedFile;

struct StoredAnswer {
  uint64_t prompt = 0;          // hash of the prompt's token ids (fnv1a); 0: not known
  std::vector<int32_t> tokens;  // what was generated
  bool operator==(const StoredAnswer&) const = default;
};

// The file holds, in the byte order of x86 and ARM64:
//
//   char[8] "specdecs"; u32 version; u32 length of the tokenizer's name
//   u64 number of answers that were dropped; u64 end of what counts, in bytes from the beginning
//   u64 FNV-1a hash of the bytes from here + 16 up to the end; u64 that of all bytes before this
//   one char[length]: the tokenizer answers, oldest first, each: u64 prompt; u32 length;
//   i32[length]: its tokens
//
// Answers are written behind the end, and then the end is moved: a crash leaves what was there
// before, and bytes behind the end that mean nothing. Processes write one after the other
// (LockedFile), and each finds what others added since. A file that would outgrow its bound is
// replaced by one that begins with the newest answers.
//
// One thread at a time.
class AnswerStore {
 public:
  static constexpr uint32_t kVersion = 2;
  using Answers = std::vector<StoredAnswer>;

  struct Args {
    std::string option;  // the name of the option that names the file, for errors
    std::string path;
    // Names whose token ids the file holds, such as a hash of the vocabulary.
    std::string tokenizer;
    int vocab_size = 0;
    int64_t max_bytes = int64_t{256} << 20;  // of the file
  };
  explicit AnswerStore(Args args) : args_(std::move(args)) {}

  bool exists() const;

  // The answers that were added since the last call of read() or append(), but not by it; at first
  // all. None where there is no file. Throws InvalidArgument that names the option and the file if
  // it cannot be read, is damaged, of another version or tokenizer or larger than the bound, or has
  // a token outside of the vocabulary.
  Answers read();

  // Adds answers, and returns what read() would have. Creates the file if there is none. Throws
  // also where the file cannot be written.
  Answers append(const Answers& answers);

 private:
  struct Header;

  [[noreturn]] void refuse(const std::string& why) const;
  Header checked_header(const LockedFile& file) const;
  Answers read_new(const LockedFile& file, const Header& header);
  Answers parse(std::string_view bytes) const;
  Header fresh_header() const;
  void write(const LockedFile& file, Header header, const Answers& answers);
  // Replaces the file by one with the newest of its answers and of `added`.
  void drop_oldest(const LockedFile& file, const Header& header, const Answers& added);

  Args args_;
  // Up to where the file has been read.
  struct Place {
    uint64_t device = 0;
    uint64_t inode = 0;
    uint64_t num_dropped = 0;
    uint64_t end = 0;     // bytes; 0: nothing was read
    uint64_t hash = 0;    // of the content up to there
    uint64_t number = 0;  // of answers up to there, dropped ones included
  };
  Place place_;
};

}  // namespace specdec
