// A stream for tests of libraries that are made up: runs their calls, and nothing else.
#pragma once

#include <functional>
#include <memory>

#include "cuda/gpu/device.h"

namespace specdec::cuda::testing {

class LibraryStream final : public Stream {
 public:
  void submit(const KernelLaunch&) override {}
  void prepare(const KernelLaunch&) override {}
  void copy_to_device(void*, const void*, size_t) override {}
  void copy_to_host(void*, const void*, size_t) override {}
  void copy(void*, const void*, size_t) override {}
  void fill(void*, uint8_t, size_t) override {}
  void call_library(const char*, const std::function<void(void* stream)>& call) override {
    call(this);
  }
  void begin_capture() override {}
  std::unique_ptr<Graph> end_capture() override { return nullptr; }
  bool is_capturing() const override { return false; }
  void launch(Graph&) override {}
  void record(Event&) override {}
  void synchronize() override {}
};

}  // namespace specdec::cuda::testing
