#include "speculation/answer_recorder.h"

#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

#include "core/log.h"

namespace specdec {

AnswerRecorder::AnswerRecorder(AnswerStore store) : store_(std::move(store)) {
  others_ = store_.append({});  // so that an unwritable file shows at once
}

AnswerRecorder::~AnswerRecorder() {
  if (writing_.valid()) writing_.wait();
  written_ = std::move(pending_);
  if (!written_.empty()) write_or_log();
}

bool AnswerRecorder::is_writing() const {
  return writing_.valid() &&
         writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void AnswerRecorder::write_or_log() {
  try {
    AnswerStore::Answers others = store_.append(written_);
    others_.insert(others_.end(), std::make_move_iterator(others.begin()),
                   std::make_move_iterator(others.end()));
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

AnswerStore::Answers AnswerRecorder::take_others() {
  return is_writing() ? AnswerStore::Answers{} : std::exchange(others_, {});
}

void AnswerRecorder::add(StoredAnswer answer) {
  pending_.push_back(std::move(answer));
  if (static_cast<int>(pending_.size()) < kAnswersPerWrite || is_writing()) return;
  written_ = std::exchange(pending_, {});
  writing_ = std::async(std::launch::async, [this] { write_or_log(); });
}

}  // namespace specdec
