// The operations a transformer and its sampler are made of, once per device kind. The model is
// written over this interface; a backend owns the layouts of weights and cache.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "backend/device_step.h"
#include "backend/op_args.h"
#include "core/buffer.h"
#include "core/tensor_view.h"
#include "core/thread_pool.h"
#include "specdec/device.h"

namespace specdec {

struct MemoryInfo {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // 0 when it cannot be told
};

// Names a piece of work whose launches are always the same.
struct RecordKey {
  const void* owner = nullptr;
  std::array<int64_t, 9> shape = {};
  auto operator<=>(const RecordKey&) const = default;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual DeviceInfo device_info() const = 0;
  virtual std::string isa() const = 0;  // kernel set in use
  virtual int num_threads() const = 0;
  // Threads of the host, for other work between the operations.
  virtual ThreadPool& thread_pool() = 0;
  virtual DType act_dtype() const = 0;    // fixed when the backend is made
  virtual MemoryInfo memory() const = 0;  // that allocate() takes from

  // Zeroed memory the backend's operations can use. Throws OutOfMemory naming `purpose`.
  virtual Buffer allocate(size_t size_bytes, const char* purpose) = 0;

  // Whether it multiplies with weights held so.
  virtual bool supports(WeightFormat format) const = 0;
  // Whether it packs matrices that are only a RandomSource, and makes them up where they will be.
  virtual bool makes_random_weights() const { return false; }

  // Packs weights into the backend's layout. The parts are not referenced afterwards.
  virtual std::unique_ptr<PackedLinear> pack_linear(const PackArgs& args) = 0;
  // A lookup table over `weight`, which must be packed by this backend, not gated, and outlive the
  // table.
  virtual std::unique_ptr<EmbeddingTable> embedding_from(const PackedLinear& weight) = 0;
  // A lookup table [num_embeddings, dim] with its own storage.
  virtual std::unique_ptr<EmbeddingTable> make_embedding(const WeightView& table,
                                                         WeightFormat format) = 0;
  // A float32 copy of a vector (norm weights, biases); parts are concatenated.
  virtual Buffer make_vector(std::span<const TensorView> parts) = 0;
  // A copy of token ids where the operations can read them.
  virtual Buffer make_ids(std::span<const int32_t> ids) = 0;

  // Bytes of one layer's keys, or of its values: the size of PagedKvView::keys and of ::values.
  virtual size_t kv_layer_bytes(const PagedKvView& shape) const = 0;

  // Copies the arrays of a batch, or row ids, to memory that operations can read; pass the result
  // to the operations. It stays valid until the step after the next begins.
  virtual BatchView stage(const BatchView& batch) = 0;
  virtual const int32_t* stage_ids(std::span<const int32_t> ids) = 0;

  // Copies what operations wrote to the host, once it is there.
  virtual void read(const void* values, std::span<std::byte> out) = 0;
  void read(const float* values, std::span<float> out) {
    read(static_cast<const void*>(values), std::as_writable_bytes(out));
  }

  // Copies from the host to where operations read it.
  virtual void write(std::span<const std::byte> values, void* to) = 0;

  virtual void embed(const EmbedArgs& args) = 0;
  virtual void norm(const NormArgs& args) = 0;
  virtual void linear(const LinearArgs& args) = 0;
  // False: the backend needs the outputs in memory for this, and has done nothing.
  virtual bool best_tokens(const BestTokensArgs& args) {
    static_cast<void>(args);
    return false;
  }
  virtual void cluster_logits(const ClusterLogitsArgs& args) = 0;
  virtual void activated_linear(const ActivatedLinearArgs& args) = 0;
  virtual void project_qkv(const QkvArgs& args) = 0;
  virtual void tree_attention(const TreeAttentionArgs& args) = 0;
  virtual void moe(const MoeArgs& args) = 0;
  virtual void scale_rows(const ScaleRowsArgs& args) = 0;
  virtual void sparse_gates(const SparseGatesArgs& args) = 0;
  virtual void predict_streams(const PredictStreamsArgs& args) = 0;
  virtual void correct_streams(const CorrectStreamsArgs& args) = 0;
  virtual void match_magnitude(const MatchMagnitudeArgs& args) = 0;
  virtual void short_conv(const ShortConvArgs& args) = 0;
  virtual void recurrence(const RecurrenceArgs& args) = 0;
  virtual void gated_norm(const GatedNormArgs& args) = 0;
  virtual void store_rows(const StoreRowsArgs& args) = 0;
  virtual void load_rows(const LoadRowsArgs& args) = 0;
  virtual void gather_rows(const GatherRowsArgs& args) = 0;
  virtual void copy_kv(const CopyKvArgs& args) = 0;
  virtual void sample(const SampleArgs& args) = 0;

  // Runs `work`: operations whose arguments follow from `key`, whatever the memory they point to
  // holds. A backend may record them and from then on launch the record instead of calling `work`.
  virtual void run_recorded(const RecordKey& key, const std::function<void()>& work) {
    static_cast<void>(key);
    work();
  }

  // Whether work that ranks exchange in can be recorded, and be a part of device steps: for the
  // groups of ranks that there was such work in, or a rehearsal of it.
  virtual bool can_record_ranks() const { return false; }

  // Called before the host waits for another rank, since that rank may wait for work queued here.
  virtual void flush() {}

  // Runs `work` without computing or waiting for anything, for the memory that a backend's
  // operations take for themselves the first time: the same work takes none later. A backend whose
  // operations take little need not run it.
  virtual void rehearse(const std::function<void()>& work) { static_cast<void>(work); }

  // The owner of recorded work is going.
  virtual void forget_recorded(const void* owner) { static_cast<void>(owner); }

  // Steps that need no host, over this backend's memory; null where the backend has none.
  virtual std::unique_ptr<DeviceStep> make_device_step(const DeviceStepConfig&) { return nullptr; }

  // Brackets one engine step (a CPU backend keeps its threads hot inside).
  virtual void begin_step() = 0;
  virtual void end_step() = 0;
};

enum class DeviceKind : uint8_t { kCpu, kGpu };

struct DeviceChoice {
  std::string name;  // "cpu", "cuda:N", or "emulated": the GPU kernels on the CPU, for development
  DeviceKind kind = DeviceKind::kCpu;
};

// The device that EngineConfig::device names: "cuda" is the first GPU, "auto" the first that this
// build has kernels for, or else the CPU. Rank r of an engine has the r-th GPU from there on.
// Throws InvalidArgument for an unknown name.
DeviceChoice resolve_device(std::string_view device, int rank = 0);

struct BackendConfig {
  std::string device = "cpu";  // DeviceChoice::name
  std::string cpu_isa = "auto";
  int num_threads = 0;
  int num_sharers = 1;  // backends that share the machine's cores where num_threads is 0
  DType act_dtype = DType::kF32;
  bool enforce_eager = false;  // GPU: no captured graphs
  bool deterministic = true;   // GPU: false allows kernels that are not row-invariant
};

// Makes the backend for a device. Throws InvalidArgument for an unknown device or ISA name and
// Unavailable for one this build or machine does not have.
std::unique_ptr<Backend> make_backend(const BackendConfig& config);

}  // namespace specdec
