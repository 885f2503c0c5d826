// NVIDIA's library for ranks of several GPUs, as far as used: it copies. A program looks for it
// when it runs, and no build needs its headers. Names are those of nccl.h without their prefixes;
// these declarations have not changed since NCCL 2.8.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/backend/part_copies.h"

namespace specdec::cuda {

namespace nccl {

using Result = int;  // ncclResult_t
inline constexpr Result kSuccess = 0;
inline constexpr int kFloat32 = 7;  // ncclDataType_t

struct UniqueId {
  char internal[128];
};
struct Comm;  // opaque

// Its functions. Streams are cudaStream_t.
struct Api {
  const char* (*GetErrorString)(Result result) = nullptr;
  Result (*GetUniqueId)(UniqueId* id) = nullptr;
  Result (*CommInitRank)(Comm** comm, int num_ranks, UniqueId id, int rank) = nullptr;
  Result (*CommDestroy)(Comm* comm) = nullptr;
  Result (*CommAbort)(Comm* comm) = nullptr;
  Result (*GroupStart)() = nullptr;
  Result (*GroupEnd)() = nullptr;
  Result (*Broadcast)(const void* from, void* to, size_t count, int dtype, int root, Comm* comm,
                      void* stream) = nullptr;
};

}  // namespace nccl

struct NcclLibrary {
  nccl::Api api;
  std::string problem;  // why it cannot be used; empty: it can
};
NcclLibrary open_nccl(const std::vector<std::string>& names = {"libnccl.so.2"});

// Copies of parts by NCCL, which graphs can record. All ranks of the group call it together. Throws
// DeviceError where NCCL refuses, such as for ranks that share a GPU.
std::unique_ptr<PartCopies> make_nccl_copies(const nccl::Api& api, Stream& stream,
                                             Communicator& ranks);

}  // namespace specdec::cuda
