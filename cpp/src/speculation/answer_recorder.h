// Writes the answers of an engine to a store without making the engine wait.
#pragma once

#include <future>

#include "speculation/answer_store.h"

namespace specdec {

// Answers are written by a thread of its own once kAnswersPerWrite of them are there and the last
// write is over, and when the recorder ends. What cannot be written is logged and lost.
class AnswerRecorder {
 public:
  static constexpr int kAnswersPerWrite = 16;

  // Throws like AnswerStore::append() where the file cannot be read or written.
  explicit AnswerRecorder(AnswerStore store);
  ~AnswerRecorder();
  AnswerRecorder(const AnswerRecorder&) = delete;
  AnswerRecorder& operator=(const AnswerRecorder&) = delete;

  // Answers of the file at the start, and later those of others, each once: as far as they are
  // known when this is called.
  AnswerStore::Answers take_others();
  void add(StoredAnswer answer);

 private:
  bool is_writing() const;
  void write_or_log();

  AnswerStore store_;  // the writing thread's while it runs, with the next two
  AnswerStore::Answers written_;
  AnswerStore::Answers others_;
  AnswerStore::Answers pending_;
  std::future<void> writing_;  // the last write
};

}  // namespace specdec
