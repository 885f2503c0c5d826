// A stream that can skip its work: the host code above it runs and allocates as usual, and the
// device computes nothing. It can also show its launches to an observer.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "core/check.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

class RehearsalStream final : public Stream {
 public:
  explicit RehearsalStream(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}

  // While rehearsing, the stream loads kernels without launching them and drops copies and fills.
  // Must not change in a capture.
  void set_rehearsing(bool rehearsing) {
    SPECDEC_CHECK(!is_capturing());
    rehearsing_ = rehearsing;
  }
  bool is_rehearsing() const override { return rehearsing_; }

  // `observer` gets every later launch, rehearsed or not, before it is made. Null: none.
  void set_observer(std::function<void(const KernelLaunch&)> observer) {
    observer_ = std::move(observer);
  }

  void submit(const KernelLaunch& launch) override {
    if (observer_) observer_(launch);
    if (rehearsing_) return stream_->prepare(launch);
    stream_->submit(launch);
  }
  void prepare(const KernelLaunch& launch) override { stream_->prepare(launch); }
  void copy_to_device(void* to, const void* from, size_t size_bytes) override {
    if (!rehearsing_) stream_->copy_to_device(to, from, size_bytes);
  }
  void copy_to_host(void* to, const void* from, size_t size_bytes) override {
    if (!rehearsing_) stream_->copy_to_host(to, from, size_bytes);
  }
  void copy(void* to, const void* from, size_t size_bytes) override {
    if (!rehearsing_) stream_->copy(to, from, size_bytes);
  }
  void fill(void* to, uint8_t value, size_t size_bytes) override {
    if (!rehearsing_) stream_->fill(to, value, size_bytes);
  }
  void call_library(const char* name, const std::function<void(void*)>& call) override {
    if (!rehearsing_) stream_->call_library(name, call);
  }

  void begin_capture() override {
    SPECDEC_CHECK(!rehearsing_);
    stream_->begin_capture();
  }
  std::unique_ptr<Graph> end_capture() override { return stream_->end_capture(); }
  bool is_capturing() const override { return stream_->is_capturing(); }
  void launch(Graph& graph) override {
    SPECDEC_CHECK(!rehearsing_);
    stream_->launch(graph);
  }

  void record(Event& event) override { stream_->record(event); }
  void synchronize() override {
    if (watch_ == nullptr) return stream_->synchronize();
    stream_->record(*watched_);
    wait(*watched_);
  }
  // Event::wait(), during which the watch is called repeatedly, if there is one.
  void wait(Event& event) {
    if (watch_ == nullptr) return event.wait();
    const auto begin = std::chrono::steady_clock::now();
    while (!event.is_done()) watch_(std::chrono::steady_clock::now() - begin);
  }
  // Gets the time that the host has waited so far. An exception that it throws ends the wait.
  using Watch = std::function<void(std::chrono::nanoseconds waited)>;
  // The stream takes `event` for its own use.
  void set_watch(Watch watch, std::unique_ptr<Event> event) {
    watch_ = std::move(watch);
    watched_ = std::move(event);
  }
  void flush() override { stream_->flush(); }

 private:
  std::unique_ptr<Stream> stream_;
  bool rehearsing_ = false;
  std::function<void(const KernelLaunch&)> observer_;
  Watch watch_;
  std::unique_ptr<Event> watched_;
};

}  // namespace specdec::cuda
