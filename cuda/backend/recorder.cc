#include "cuda/backend/recorder.h"

#include <utility>

namespace specdec::cuda {
namespace {

// Bounds the device memory of graphs. So many shapes are rarely in use, so starting over is rare.
constexpr size_t kMaxRecords = 512;

std::unique_ptr<Graph> record_work(Stream& stream, const std::function<void()>& work) {
  stream.begin_capture();
  try {
    work();
  } catch (...) {
    // A stream that kept capturing would never run anything again.
    try {
      stream.end_capture();
    } catch (const DeviceError&) {
    }
    throw;
  }
  return stream.end_capture();
}

}  // namespace

void Recorder::run(const RecordKey& key, const std::function<void()>& work) {
  // Inside another capture the work becomes a part of that one.
  if (!enabled_ || stream_.is_capturing()) return work();
  if (records_.size() >= kMaxRecords && !records_.contains(key)) forget_all();
  Record& record = records_[key];
  if (!std::exchange(record.was_run, true)) return work();
  if (record.graph == nullptr) {
    record.graph = record_work(stream_, work);
  }
  stream_.launch(*record.graph);
}

void Recorder::forget(const void* owner) {
  std::erase_if(records_, [&](const auto& entry) { return entry.first.owner == owner; });
}

int Recorder::num_nodes(const void* owner) const {
  int count = 0;
  for (const auto& [key, record] : records_) {
    if (key.owner == owner && record.graph != nullptr) count += record.graph->num_nodes();
  }
  return count;
}

}  // namespace specdec::cuda
