#include "cuda/backend/cuda_backend.h"
#include "specdec/error.h"

namespace specdec::cuda {

std::unique_ptr<EmbeddingTable> CudaBackend::embedding_from(const PackedLinear&) {
  throw Unavailable("not built yet");
}

std::unique_ptr<EmbeddingTable> CudaBackend::make_embedding(const WeightView&, WeightFormat) {
  throw Unavailable("not built yet");
}

void CudaBackend::embed(const EmbedArgs&) { throw Unavailable("not built yet"); }

void CudaBackend::norm(const NormArgs&) { throw Unavailable("not built yet"); }

}  // namespace specdec::cuda
