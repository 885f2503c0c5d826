// Projections by a library's GEMM, which knows plain matrices only: weights are unpacked, a piece
// at a time that mostly fits the caches, multiplied, and finished by our own epilogue.
#pragma once

#include <cstdint>

#include "cuda/backend/workspace.h"
#include "cuda/gemm/gemm.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

class UnpackedGemm {
 public:
  // A piece has at most piece_bytes of unpacked weights, and of sums.
  UnpackedGemm(Device& device, Stream& stream, const ProjectionKernels& kernels,
               int64_t piece_bytes = int64_t{64} << 20);

  static bool serves(const ProjectionParams& params);
  // How many ways `gemm` has for this projection.
  int num_ways(Gemm& gemm, const ProjectionParams& params);
  // `params` has records and the workspaces of its epilogue; its tiling is ignored.
  void run(Gemm& gemm, int way, const ProjectionParams& params);
  // Allocates the memory that run() needs.
  void reserve(Gemm& gemm, const ProjectionParams& params) { scratch_for(gemm, params); }

 private:
  struct Scratch {
    char* weights;
    float* sums;  // null if the GEMM writes to the output itself
    char* library;
  };

  Scratch scratch_for(Gemm& gemm, const ProjectionParams& params);
  // Tiles per piece: the same for all row counts of a bucket.
  int piece_tiles(const ProjectionParams& params) const;

  Stream& stream_;
  const ProjectionKernels& kernels_;
  int64_t piece_bytes_;
  Workspace weights_;
  Workspace sums_;
  Workspace library_;
};

}  // namespace specdec::cuda
