// The part of cuBLASLt's C interface that we use. The library is looked for at run time, and no
// build needs its headers. Names are those of cublasLt.h without their prefixes. These declarations
// have not changed since CUDA 11.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specdec::cuda::cublaslt {

using Status = int;  // cublasStatus_t
inline constexpr Status kSuccess = 0;

// cudaDataType_t, cublasComputeType_t, cublasOperation_t and the attributes, as far as used.
enum class DataType : int { kF32 = 0, kF16 = 2, kBF16 = 14 };
enum class ComputeType : int { kF32 = 68 };
enum class Operation : int32_t { kTranspose = 1 };
enum class DescAttribute : int { kTransA = 3 };
enum class PreferenceAttribute : int {
  kMaxWorkspaceBytes = 1,  // uint64_t
  kMinAlignmentA = 5,      // uint32_t, bytes; of C and D, too
  kMinAlignmentB = 6,
  kMinAlignmentC = 7,
  kMinAlignmentD = 8,
};

// Opaque.
struct Context;
struct MatmulDesc;
struct MatrixLayout;
struct Preference;

struct Algorithm {
  uint64_t data[8];
};
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status status;
  float waves;
  int reserved[4];
};

// The library's functions. Matrices are column-major. Streams are cudaStream_t.
struct Api {
  size_t (*GetVersion)() = nullptr;
  const char* (*GetStatusString)(Status status) = nullptr;
  Status (*Create)(Context** context) = nullptr;
  Status (*Destroy)(Context* context) = nullptr;
  Status (*MatmulDescCreate)(MatmulDesc** desc, ComputeType compute, DataType scale) = nullptr;
  Status (*MatmulDescDestroy)(MatmulDesc* desc) = nullptr;
  Status (*MatmulDescSetAttribute)(MatmulDesc* desc, DescAttribute attribute, const void* value,
                                   size_t size_bytes) = nullptr;
  Status (*MatrixLayoutCreate)(MatrixLayout** layout, DataType dtype, uint64_t rows,
                               uint64_t columns, int64_t ld) = nullptr;
  Status (*MatrixLayoutDestroy)(MatrixLayout* layout) = nullptr;
  Status (*MatmulPreferenceCreate)(Preference** preference) = nullptr;
  Status (*MatmulPreferenceDestroy)(Preference* preference) = nullptr;
  Status (*MatmulPreferenceSetAttribute)(Preference* preference, PreferenceAttribute attribute,
                                         const void* value, size_t size_bytes) = nullptr;
  Status (*MatmulAlgoGetHeuristic)(Context* context, MatmulDesc* desc, MatrixLayout* a,
                                   MatrixLayout* b, MatrixLayout* c, MatrixLayout* d,
                                   Preference* preference, int num_requested,
                                   HeuristicResult* results, int* num_results) = nullptr;
  Status (*MatmulAlgoCheck)(Context* context, MatmulDesc* desc, MatrixLayout* a, MatrixLayout* b,
                            MatrixLayout* c, MatrixLayout* d, const Algorithm* algorithm,
                            HeuristicResult* result) = nullptr;
  Status (*Matmul)(Context* context, MatmulDesc* desc, const void* alpha, const void* a,
                   MatrixLayout* a_layout, const void* b, MatrixLayout* b_layout, const void* beta,
                   const void* c, MatrixLayout* c_layout, void* d, MatrixLayout* d_layout,
                   const Algorithm* algorithm, void* workspace, size_t workspace_bytes,
                   void* stream) = nullptr;
};

}  // namespace specdec::cuda::cublaslt
