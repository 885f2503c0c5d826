// Chooses the kernel or library for a projection of many rows: by its shape among our own kernels,
// whose results are the same. With deterministic=false the fastest of all, as timed at the first
// such projection; results may then depend on the choice.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cuda/backend/unpacked_gemm.h"
#include "cuda/backend/workspace.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_tuner.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

// Returns the seconds that `run`, which queues work, takes on the stream; `way` names it.
using ProjectionTimer = std::function<double(Device& device, Stream& stream, const std::string& way,
                                             const std::function<void()>& run)>;
// The least time of a few runs, after one to warm up. Waits for the stream.
double event_seconds(Device& device, Stream& stream, const std::string& way,
                     const std::function<void()>& run);

class ProjectionChooser {
 public:
  // Runs a projection by our own kernels with the tiling in `params`.
  using Launch = std::function<void(const ProjectionParams& params)>;

  ProjectionChooser(Device& device, Stream& stream, const ProjectionKernels& kernels,
                    GemmList gemms);

  // Without a timer, and in captures of work that was not timed before, the shape alone decides.
  // Forgets earlier choices.
  void set_timer(ProjectionTimer timer);

  // The tiling of our own kernel that suits the shape best; `params` has that of the others.
  ProjectionTiling own_tiling(const ProjectionParams& params) const;

  // Whether there is a choice.
  static bool serves(const ProjectionParams& params);
  // `params` has records, the tiling of many_rows, and the workspaces of heads. Timing leaves
  // inputs as they are, and outputs are as if written once.
  void run(const ProjectionParams& params, const Launch& launch);

 private:
  struct Way {
    std::string name;
    bool is_wide = false;  // project_wide
    Gemm* gemm = nullptr;  // instead of our own kernels
    int gemm_way = 0;
  };

  // Our own kernels; the one that suits the shape best is last.
  std::vector<Way> own_ways(const ProjectionParams& params) const;
  std::vector<Way> ways_for(const ProjectionParams& params);
  // The tiling of project_wide that keeps the GPU busy, where it serves the projection.
  std::optional<ProjectionTiling> wide_tiling(const ProjectionParams& params) const;
  void run_way(const Way& way, const ProjectionParams& params, const Launch& launch);
  // Allocates the memory of all ways that may be timed.
  void rehearse(const ProjectionParams& params, const Launch& launch);
  double seconds_of(const Way& way, ProjectionParams params, const Launch& launch);
  float* timed_out_for(const ProjectionParams& params);

  Device& device_;
  Stream& stream_;
  const ProjectionKernels& kernels_;
  GemmList gemms_;
  UnpackedGemm unpacked_gemm_;
  ProjectionTimer timer_;
  GemmTuner tuner_;
  std::map<GemmKey, Way> chosen_;
  Workspace timed_out_;
};

}  // namespace specdec::cuda
