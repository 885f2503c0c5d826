#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "bench/kernels/cuda_conditional.h"
#include "cuda/common/ptx.cuh"

namespace specdec::bench {
namespace {

namespace ptx = cuda::native::ptx;

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

__global__ void set_kernel(int* remaining, int value) { *remaining = value; }

__global__ void idle_kernel() { ptx::wait_for_previous(); }

// The last kernel of the body: another iteration while there are any.
__global__ void decide_kernel(int* remaining, cudaGraphConditionalHandle handle) {
  ptx::wait_for_previous();
  const int left = --*remaining;
  cudaGraphSetConditional(handle, left > 0);
}

template <class... Params, class... Args>
void launch(cudaStream_t stream, bool overlaps_previous, void (*kernel)(Params...), Args... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = overlaps_previous;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, Params(args)...));
}

// Owns what one measurement makes.
class WhileGraph {
 public:
  WhileGraph() = default;
  ~WhileGraph() {
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    if (remaining_ != nullptr) cudaFree(remaining_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  WhileGraph(const WhileGraph&) = delete;
  WhileGraph& operator=(const WhileGraph&) = delete;

  void build(int num_kernels, bool overlaps_previous, int num_iterations) {
    check(cudaStreamCreate(&stream_));
    check(cudaMalloc(&remaining_, sizeof(int)));
    check(cudaGraphCreate(&graph_, 0));
    cudaGraphConditionalHandle handle;
    check(cudaGraphConditionalHandleCreate(&handle, graph_, 1, cudaGraphCondAssignDefault));
    check(cudaStreamBeginCaptureToGraph(stream_, graph_, nullptr, nullptr, 0,
                                        cudaStreamCaptureModeRelaxed));
    launch(stream_, false, set_kernel, remaining_, num_iterations);
    check(cudaStreamEndCapture(stream_, nullptr));
    cudaGraphNode_t set_node;
    size_t num_nodes = 1;
    check(cudaGraphGetNodes(graph_, &set_node, &num_nodes));

    cudaGraphNodeParams params{};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = cudaGraphCondTypeWhile;
    params.conditional.size = 1;
    cudaGraphNode_t node;
    check(cudaGraphAddNode(&node, graph_, &set_node, nullptr, 1, &params));
    check(cudaStreamBeginCaptureToGraph(stream_, params.conditional.phGraph_out[0], nullptr,
                                        nullptr, 0, cudaStreamCaptureModeRelaxed));
    for (int i = 1; i < num_kernels; ++i) launch(stream_, overlaps_previous, idle_kernel);
    launch(stream_, overlaps_previous, decide_kernel, remaining_, handle);
    check(cudaStreamEndCapture(stream_, nullptr));
    check(cudaGraphInstantiate(&executable_, graph_, 0));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }

  double seconds() {
    check(cudaEventRecord(begin_, stream_));
    check(cudaGraphLaunch(executable_, stream_));
    check(cudaEventRecord(end_, stream_));
    check(cudaEventSynchronize(end_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return 1e-3 * milliseconds;
  }

 private:
  cudaStream_t stream_ = nullptr;
  int* remaining_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

WhileCost measure_while(int num_kernels, bool overlaps_previous, int num_iterations) {
  WhileCost cost{.num_kernels = num_kernels, .overlaps_previous = overlaps_previous};
  try {
    WhileGraph graph;
    graph.build(num_kernels, overlaps_previous, num_iterations);
    graph.seconds();
    std::vector<double> seconds;
    for (int i = 0; i < 9; ++i) seconds.push_back(graph.seconds());
    std::nth_element(seconds.begin(), seconds.begin() + 4, seconds.end());
    cost.iteration_seconds = seconds[4] / num_iterations;
  } catch (const std::runtime_error& error) {
    cost.refused = error.what();
  }
  return cost;
}

}  // namespace specdec::bench
