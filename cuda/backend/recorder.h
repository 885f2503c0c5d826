// Work that is launched again and again, recorded as graphs.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "backend/backend.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

class Recorder {
 public:
  // Both are borrowed. Not enabled: everything is launched kernel by kernel.
  Recorder(Stream& stream, bool enabled) : stream_(stream), enabled_(enabled) {}

  // The first time the work runs as it is, and grows what workspaces it needs, which a recording
  // may not; the second time it is recorded.
  void run(const RecordKey& key, const std::function<void()>& work);
  // What was recorded for an owner names memory that has moved, or is going.
  void forget(const void* owner);
  void forget_all() { records_.clear(); }
  // Of the graphs recorded for an owner, all together.
  int num_nodes(const void* owner) const;

 private:
  struct Record {
    bool was_run = false;
    std::unique_ptr<Graph> graph;
  };

  Stream& stream_;
  bool enabled_;
  std::map<RecordKey, Record> records_;
};

}  // namespace specdec::cuda
