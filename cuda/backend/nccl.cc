#include "cuda/backend/nccl.h"

#include <utility>
#include <vector>

#include "core/byte_message.h"
#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "cuda/gpu/shared_library.h"

namespace specdec::cuda {
namespace {

class NcclCopies final : public PartCopies {
 public:
  NcclCopies(const nccl::Api& api, Stream& stream, Communicator& ranks)
      : api_(api), stream_(stream), ranks_(ranks) {
    nccl::UniqueId id = {};
    // If the rank that makes the id fails, all ranks learn of it.
    nccl::Result made = nccl::kSuccess;
    if (ranks.rank() == 0) made = api_.GetUniqueId(&id);
    std::vector<std::byte> message;
    MessageWriter writer(message);
    writer.put(made);
    writer.put(id);
    ranks.broadcast(message, 0);
    MessageReader reader(message);
    check(reader.get<nccl::Result>(), "GetUniqueId");
    id = reader.get<nccl::UniqueId>();
    stream_.call_library("nccl", [&](void*) {
      check(api_.CommInitRank(&comm_, ranks.size(), id, ranks.rank()), "CommInitRank");
    });
  }
  ~NcclCopies() override {
    if (comm_ != nullptr && api_.CommDestroy(comm_) != nccl::kSuccess) {
      log_warning("destroying a communicator of NCCL failed");
    }
  }
  NcclCopies(const NcclCopies&) = delete;
  NcclCopies& operator=(const NcclCopies&) = delete;

  void gather(const float* own, std::span<const int64_t> counts, float* all) override {
    stream_.call_library("nccl", [&](void* stream) {
      check(api_.GroupStart(), "GroupStart");
      float* to = all;
      for (int rank = 0; rank < ranks_.size(); ++rank) {
        const auto count = static_cast<size_t>(counts[rank]);
        if (count == 0) continue;
        const float* from = rank == ranks_.rank() ? own : to;
        check(api_.Broadcast(from, to, count, nccl::kFloat32, rank, comm_, stream), "Broadcast");
        to += count;
      }
      check(api_.GroupEnd(), "GroupEnd");
    });
  }
  bool can_be_recorded() const override { return true; }

  void end() override {
    if (comm_ == nullptr) return;
    if (api_.CommAbort(std::exchange(comm_, nullptr)) != nccl::kSuccess) {
      log_warning("ending NCCL's waits failed");
    }
  }

 private:
  void check(nccl::Result result, const char* what) const {
    if (result == nccl::kSuccess) return;
    throw DeviceError(str_cat("nccl", what, ": ", api_.GetErrorString(result)));
  }

  nccl::Api api_;
  Stream& stream_;
  Communicator& ranks_;
  nccl::Comm* comm_ = nullptr;
};

}  // namespace

NcclLibrary open_nccl(const std::vector<std::string>& names) {
  SharedLibrary library(names);
  NcclLibrary found;
  nccl::Api& api = found.api;
  library.bind(api.GetErrorString, "ncclGetErrorString");
  library.bind(api.GetUniqueId, "ncclGetUniqueId");
  library.bind(api.CommInitRank, "ncclCommInitRank");
  library.bind(api.CommDestroy, "ncclCommDestroy");
  library.bind(api.CommAbort, "ncclCommAbort");
  library.bind(api.GroupStart, "ncclGroupStart");
  library.bind(api.GroupEnd, "ncclGroupEnd");
  library.bind(api.Broadcast, "ncclBroadcast");
  found.problem = library.problem();
  return found;
}

std::unique_ptr<PartCopies> make_nccl_copies(const nccl::Api& api, Stream& stream,
                                             Communicator& ranks) {
  return std::make_unique<NcclCopies>(api, stream, ranks);
}

}  // namespace specdec::cuda
