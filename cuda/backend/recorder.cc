#include "cuda/backend/recorder.h"

#include <algorithm>
#include <utility>

namespace specdec::cuda {

void Recorder::run(const RecordKey& key, const std::function<void()>& work) {
  // Inside of another recording this is a part of it.
  if (!enabled_ || stream_.is_capturing()) return work();
  Record& record = records_[key];
  if (!std::exchange(record.was_run, true)) return work();
  if (record.graph == nullptr) {
    stream_.begin_capture();
    work();
    record.graph = stream_.end_capture();
  }
  stream_.launch(*record.graph);
}

void Recorder::forget(const void* owner) {
  std::erase_if(records_, [&](const auto& entry) { return entry.first.owner == owner; });
}

int Recorder::num_graphs() const {
  return static_cast<int>(std::ranges::count_if(
      records_, [](const auto& entry) { return entry.second.graph != nullptr; }));
}

}  // namespace specdec::cuda
