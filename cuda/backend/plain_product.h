// Products through code that knows plain matrices alone (Gemm): weights are unpacked for it, a
// piece that the caches hold for the most part at a time, and what becomes of the sums is done
// after it.
#pragma once

#include <cstdint>

#include "cuda/backend/workspace.h"
#include "cuda/gemm/gemm.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

class PlainProduct {
 public:
  // A piece has so many bytes of unpacked weights at most, and of sums.
  PlainProduct(Device& device, Stream& stream, const ProjectionKernels& kernels,
               int64_t piece_bytes = int64_t{64} << 20);

  static bool serves(const ProductParams& params);
  // Of a Gemm, for such a product.
  int num_ways(Gemm& gemm, const ProductParams& params);
  // `params` has records and the workspaces of its finish; its plan is not looked at.
  void run(Gemm& gemm, int way, const ProductParams& params);
  // Takes the memory that run() would.
  void reserve(Gemm& gemm, const ProductParams& params) { scratch_for(gemm, params); }

 private:
  struct Scratch {
    char* weights;
    float* sums;  // null where they go where they belong at once
    char* library;
  };

  Scratch scratch_for(Gemm& gemm, const ProductParams& params);
  // Tiles of a piece: the same for all rows of a bucket.
  int piece_tiles(const ProductParams& params) const;

  Stream& stream_;
  const ProjectionKernels& kernels_;
  int64_t piece_bytes_;
  Workspace weights_;
  Workspace sums_;
  Workspace library_;
};

}  // namespace specdec::cuda
