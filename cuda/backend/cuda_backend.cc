#include "cuda/backend/cuda_backend.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "core/tensor_view.h"
#include "cuda/backend/device_step.h"
#include "specdec/error.h"

namespace specdec::cuda {
namespace {

constexpr size_t kAttentionWorkspaceBytes = size_t{1} << 20;  // per SM
constexpr int kMaxHostThreads = 8;

}  // namespace

CudaBackend::CudaBackend(std::unique_ptr<Device> device, const KernelTable& kernels,
                         DType act_dtype, const CudaOptions& options, GemmList gemms)
    : device_(std::move(device)),
      kernels_(kernels),
      act_dtype_(act_dtype),
      stream_(std::make_unique<RehearsalStream>(device_->make_stream())),
      staging_(*device_, *stream_),
      packer_(*device_, *stream_, kernels_.projection, kernels_.quantize, act_dtype),
      rank_exchange_(*device_, *stream_, kernels_.peers),
      projector_(*device_, *stream_, kernels_.projection, rank_exchange_, act_dtype,
                 options.deterministic, std::move(gemms)),
      mixer_(*device_, *stream_, kernels_.moe, kernels_.projection, rank_exchange_, act_dtype),
      recurrence_workspace_(*device_, *stream_, "workspace of recurrences"),
      sampler_(*device_, *stream_, kernels_.sampling),
      staged_batch_(*device_, staging_),
      recorder_(*stream_, !options.enforce_eager),
      attention_workspace_(
          device_->allocate(kAttentionWorkspaceBytes * device_->properties().num_multiprocessors,
                            "workspace of attention")),
      attention_work_lists_(*device_),
      thread_pool_(std::min(ThreadPool::default_num_threads(), kMaxHostThreads)) {
  if (act_dtype != DType::kBF16 && act_dtype != DType::kF16) {
    throw InvalidArgument("dtype", str_cat("'", name_of(act_dtype), "' is not computed in on ",
                                           device_->info().name, "; use 'bfloat16' or 'float16'"));
  }
}

CudaBackend::~CudaBackend() = default;

std::string CudaBackend::isa() const {
  const int capability = device_->properties().compute_capability;
  return str_cat("sm_", capability);
}

Buffer CudaBackend::allocate(size_t size_bytes, const char* purpose) {
  return device_->allocate(size_bytes, purpose);
}

Buffer CudaBackend::make_vector(std::span<const TensorView> parts) {
  std::vector<float> values;
  for (const TensorView& part : parts) {
    const size_t begin = values.size();
    values.resize(begin + static_cast<size_t>(part.num_elements()));
    to_floats(part.data, part.dtype, static_cast<size_t>(part.num_elements()),
              values.data() + begin);
  }
  const size_t size_bytes = values.size() * sizeof(float);
  Buffer vector = device_->allocate(size_bytes, "weights");
  stream_->copy_to_device(vector.data(), values.data(), size_bytes);
  stream_->synchronize();
  return vector;
}

Buffer CudaBackend::make_ids(std::span<const int32_t> ids) {
  Buffer copy = device_->allocate(ids.size_bytes(), "token ids");
  stream_->copy_to_device(copy.data(), ids.data(), ids.size_bytes());
  stream_->synchronize();
  return copy;
}

BatchView CudaBackend::stage(const BatchView& batch) {
  attention_work_lists_.begin_pass();
  if (StagedBatch::serves(batch)) {
    bool moved = false;
    const BatchView staged = staged_batch_.put(batch, &moved);
    if (moved) recorder_.forget_all();
    return staged;
  }
  const auto upload = [&]<class T>(const T* values, size_t count) {
    return staging_.upload(std::span<const T>(values, values != nullptr ? count : 0));
  };
  const size_t rows = static_cast<size_t>(batch.num_rows);
  const size_t requests = static_cast<size_t>(batch.num_requests);
  BatchView staged = batch;
  staged.token_ids = upload(batch.token_ids, rows);
  staged.positions = upload(batch.positions, rows);
  staged.slot_mapping = upload(batch.slot_mapping, rows);
  staged.cu_rows = upload(batch.cu_rows, requests + 1);
  staged.base_lens = upload(batch.base_lens, requests);
  staged.block_tables = upload(batch.block_tables, requests * batch.max_blocks_per_request);
  staged.is_tree = upload(batch.is_tree, requests);
  staged.ancestor_mask = upload(batch.ancestor_mask, rows * batch.mask_words);
  staged.num_tree_slots = upload(batch.num_tree_slots, requests);
  staged.feature_slots = upload(batch.feature_slots, rows);
  staged.state_slots = upload(batch.state_slots, rows);
  if (batch.recurrent.slots_in != nullptr) {
    const RecurrentRows& states = batch.recurrent;
    staged.recurrent = {
        .slots_in = upload(states.slots_in, requests),
        .cu_pending = upload(states.cu_pending, requests + 1),
        .pending = upload(states.pending, static_cast<size_t>(states.cu_pending[requests])),
        .cu_stores = upload(states.cu_stores, requests + 1),
        .stores = upload(states.stores, static_cast<size_t>(states.cu_stores[requests])),
        .parents = upload(states.parents, rows),
        .records = upload(states.records, rows)};
  }
  return staged;
}

const int32_t* CudaBackend::stage_ids(std::span<const int32_t> ids) { return staging_.upload(ids); }

void CudaBackend::read(const void* values, std::span<std::byte> out) {
  stream_->copy_to_host(out.data(), values, out.size_bytes());
  stream_->synchronize();
  rank_exchange_.check();
}

void CudaBackend::run_recorded(const RecordKey& key, const std::function<void()>& work) {
  // A graph must contain the launches that write the work lists it reads: none from before is used.
  attention_work_lists_.begin_pass();
  if (!rank_exchange_.can_be_recorded()) return work();
  recorder_.run(key, work);
  attention_work_lists_.begin_pass();
}

std::unique_ptr<DeviceStep> CudaBackend::make_device_step(const DeviceStepConfig& config) {
  if (config.tree.max_nodes > kMaxStepDrafts || config.num_seats > kMaxStepSeats) return nullptr;
  if (config.tree.width > kMaxTreeWidth || config.span.num_rows > kMaxStepDrafts) return nullptr;
  return std::make_unique<CudaDeviceStep>(*this, kernels_, config);
}

void CudaBackend::rehearse(const std::function<void()>& work) {
  stream_->set_rehearsing(true);
  try {
    work();
  } catch (...) {
    stream_->set_rehearsing(false);
    throw;
  }
  stream_->set_rehearsing(false);
  if (!std::exchange(has_noted_launches_, true)) {
    log_info(device_->info().name, ": ", device_->launch_note());
  }
}

void CudaBackend::begin_step() { staging_.begin_step(); }

}  // namespace specdec::cuda
