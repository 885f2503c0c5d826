// Records work that is launched repeatedly as graphs.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "backend/backend.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

class Recorder {
 public:
  // `stream` is borrowed. Unless enabled, all work is launched kernel by kernel.
  Recorder(Stream& stream, bool enabled) : stream_(stream), enabled_(enabled) {}

  // The first time, the work runs unrecorded and grows its workspaces, which a capture must not;
  // the second time it is recorded.
  void run(const RecordKey& key, const std::function<void()>& work);
  // Drops an owner's graphs, because memory that they name has moved or will be freed.
  void forget(const void* owner);
  void forget_all() { records_.clear(); }
  // Nodes of an owner's graphs together.
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
