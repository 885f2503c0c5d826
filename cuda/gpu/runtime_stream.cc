#include "cuda/gpu/runtime_stream.h"

#include <string>
#include <utility>

#include "cuda/gpu/runtime_calls.h"
#include "cuda/gpu/start_rule.h"

namespace specdec::cuda {
namespace {

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int device) : device_(device) {
    check(cudaSetDevice(device_), "cudaSetDevice");
    check(cudaEventCreate(event_.out()), "cudaEventCreate");
  }
  void wait() override { check(cudaEventSynchronize(event_.get()), "waiting for the GPU"); }
  bool is_done() override {
    const cudaError_t status = cudaEventQuery(event_.get());
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check(status, "asking the GPU whether it is done");
    return true;
  }
  cudaEvent_t get() const { return event_.get(); }

 private:
  int device_;
  Owned<cudaEvent_t, cudaEventDestroy> event_;
};

class CudaGraph final : public Graph {
 public:
  // Takes over the captured graph.
  explicit CudaGraph(cudaGraph_t captured) {
    *graph_.out() = captured;
    size_t num_nodes = 0;
    check(cudaGraphGetNodes(graph_.get(), nullptr, &num_nodes), "cudaGraphGetNodes");
    num_nodes_ = static_cast<int>(num_nodes);
    check(cudaGraphInstantiate(executable_.out(), graph_.get(), 0), "cudaGraphInstantiate");
  }
  int num_nodes() const override { return num_nodes_; }
  cudaGraphExec_t executable() const { return executable_.get(); }

 private:
  Owned<cudaGraph_t, cudaGraphDestroy> graph_;
  Owned<cudaGraphExec_t, cudaGraphExecDestroy> executable_;
  int num_nodes_ = 0;
};

class CudaStream final : public Stream {
 public:
  CudaStream(int device, std::shared_ptr<Functions> functions)
      : device_(device), functions_(std::move(functions)) {
    select();
    check(cudaStreamCreateWithFlags(stream_.out(), cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~CudaStream() override {
    if (!capturing_) return;
    cudaGraph_t unfinished = nullptr;
    cudaStreamEndCapture(stream_.get(), &unfinished);
    if (unfinished != nullptr) cudaGraphDestroy(unfinished);
  }

  void submit(const KernelLaunch& launch) override {
    select();
    const LaunchConfig& config = launch.config;
    const bool overlaps = functions_->prepare(launch);
    cudaLaunchAttribute attributes[2] = {};
    unsigned num_attributes = 0;
    if (start_rule_.starts_early(config) && overlaps) {
      cudaLaunchAttribute& attribute = attributes[num_attributes++];
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    if (config.cooperative) {
      cudaLaunchAttribute& attribute = attributes[num_attributes++];
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
    }
    cudaLaunchConfig_t native{};
    native.gridDim = {config.grid.x, config.grid.y, config.grid.z};
    native.blockDim = {config.block.x, config.block.y, config.block.z};
    native.dynamicSmemBytes = config.shared_bytes;
    native.stream = stream_.get();
    native.attrs = attributes;
    native.numAttrs = num_attributes;
    check(cudaLaunchKernelExC(&native, launch.function, launch.arguments),
          str_cat("kernel ", launch.name));
    if (!capturing_) last_work_ = launch.name;
  }
  void prepare(const KernelLaunch& launch) override {
    select();
    functions_->prepare(launch);
  }

  void copy_to_device(void* to, const void* from, size_t size_bytes) override {
    copy(to, from, size_bytes, cudaMemcpyHostToDevice, "copying to the GPU");
  }
  void copy_to_host(void* to, const void* from, size_t size_bytes) override {
    copy(to, from, size_bytes, cudaMemcpyDeviceToHost, "copying from the GPU");
  }
  void copy(void* to, const void* from, size_t size_bytes) override {
    copy(to, from, size_bytes, cudaMemcpyDeviceToDevice, "copying on the GPU");
  }
  void fill(void* to, uint8_t value, size_t size_bytes) override {
    if (size_bytes == 0) return;
    select();
    start_rule_.note_other_work();
    check_with_work(cudaMemsetAsync(to, value, size_bytes, stream_.get()), "cudaMemsetAsync");
  }

  void call_library(const char* name, const std::function<void(void*)>& call) override {
    select();
    start_rule_.note_other_work();
    call(stream_.get());
    if (!capturing_) last_work_ = name;
  }

  void begin_capture() override {
    select();
    start_rule_.note_other_work();
    check_with_work(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
                    "beginning a capture");
    capturing_ = true;
  }
  std::unique_ptr<Graph> end_capture() override {
    select();
    capturing_ = false;
    cudaGraph_t captured = nullptr;
    check_with_work(cudaStreamEndCapture(stream_.get(), &captured), "ending a capture");
    return std::make_unique<CudaGraph>(captured);
  }
  bool is_capturing() const override { return capturing_; }
  void launch(Graph& graph) override {
    if (capturing_) throw DeviceError("launch of a graph on a stream that captures");
    select();
    start_rule_.note_other_work();
    check_with_work(cudaGraphLaunch(static_cast<CudaGraph&>(graph).executable(), stream_.get()),
                    "launching a graph");
    last_work_ = "a graph";
  }

  void record(Event& event) override {
    if (capturing_) throw DeviceError("record of an event on a stream that captures");
    select();
    check_with_work(cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream_.get()),
                    "cudaEventRecord");
  }
  void synchronize() override {
    select();
    check_with_work(cudaStreamSynchronize(stream_.get()), "waiting for the GPU");
  }

 private:
  void select() { check(cudaSetDevice(device_), "cudaSetDevice"); }
  void copy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind, const char* what) {
    if (size_bytes == 0) return;
    select();
    start_rule_.note_other_work();
    check_with_work(cudaMemcpyAsync(to, from, size_bytes, kind, stream_.get()), what);
  }
  // Kernels fail some time after their launch: the last launch is the best guess at the culprit.
  void check_with_work(cudaError_t status, const char* what) const {
    if (status == cudaSuccess) return;
    check(status, str_cat(what, " (launched last: ", last_work_, ")"));
  }

  int device_;
  std::shared_ptr<Functions> functions_;
  Owned<cudaStream_t, cudaStreamDestroy> stream_;
  bool capturing_ = false;
  StartRule start_rule_;
  const char* last_work_ = "nothing";  // not updated in captures
};

}  // namespace

std::unique_ptr<Stream> make_cuda_stream(int device, std::shared_ptr<Functions> functions) {
  return std::make_unique<CudaStream>(device, std::move(functions));
}

std::unique_ptr<Event> make_cuda_event(int device) { return std::make_unique<CudaEvent>(device); }

double seconds_between_cuda_events(Event& begin, Event& end) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, static_cast<CudaEvent&>(begin).get(),
                             static_cast<CudaEvent&>(end).get()),
        "cudaEventElapsedTime");
  return 1e-3 * milliseconds;
}

}  // namespace specdec::cuda
