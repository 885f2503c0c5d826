// The part of NCCL's C interface that we use, to copy between ranks. The library is looked for at
// run time, and no build needs its headers. Names are those of nccl.h without their prefixes; these
// declarations have not changed since NCCL 2.8.
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

// NCCL's functions. Streams are cudaStream_t.
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
  std::string problem;  // why NCCL cannot be used; empty if it can
};
NcclLibrary open_nccl(const std::vector<std::string>& names = {"libnccl.so.2"});

// Copies parts by NCCL, which graphs can record. All ranks of the group call this together. Throws
// DeviceError if NCCL refuses, for example because ranks share a GPU.
std::unique_ptr<PartCopies> make_nccl_copies(const nccl::Api& api, Stream& stream,
                                             Communicator& ranks);

}  // namespace specdec::cuda
