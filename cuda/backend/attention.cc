#include "cuda/backend/cuda_backend.h"
#include "specdec/error.h"

namespace specdec::cuda {

size_t CudaBackend::kv_layer_bytes(const PagedKvView&) const { throw Unavailable("not built yet"); }

void CudaBackend::tree_attention(const TreeAttentionArgs&) { throw Unavailable("not built yet"); }

void CudaBackend::copy_kv(const CopyKvArgs&) { throw Unavailable("not built yet"); }

}  // namespace specdec::cuda
