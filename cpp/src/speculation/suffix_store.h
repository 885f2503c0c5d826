// A file in which finished outputs outlive the engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec {

// The file holds, in the byte order of x86 and ARM64:
//
//   char[8] "specdecs"; u32 version; u32 length, char[length]: the tokenizer
//   u64 number of outputs; for each u32 length, i32[length]: its tokens, oldest output first
//   u64 FNV-1a hash of all bytes before
class SuffixStore {
 public:
  static constexpr uint32_t kVersion = 1;
  static constexpr int64_t kMaxBytes = int64_t{256} << 20;
  using Outputs = std::vector<std::vector<int32_t>>;

  // `tokenizer` names whose token ids the file holds, such as a hash of the vocabulary.
  SuffixStore(std::string path, std::string tokenizer)
      : path_(std::move(path)), tokenizer_(std::move(tokenizer)) {}

  // The outputs of the file; none where there is no file. Throws InvalidArgument that names
  // "suffix_store" and the file if it is damaged, newer than this version, of another tokenizer or
  // larger than kMaxBytes, or has a token outside of the vocabulary.
  Outputs read(int vocab_size) const;

  // Replaces the file at once: whoever reads sees the old one or the new one. Throws
  // InvalidArgument that names "suffix_store" and the file if it cannot be written.
  void write(const Outputs& outputs) const;

 private:
  [[noreturn]] void refuse(const std::string& why) const;

  std::string path_;
  std::string tokenizer_;
};

}  // namespace specdec
