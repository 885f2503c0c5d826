// The draft models of an engine: loaded beside the target, with KV caches behind the same block
// ids. They come in the target's two phases, since the KV pool is sized once all weights are there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/model_drafter.h"
#include "runtime/model_runner.h"
#include "specdec/config.h"

namespace specdec {

class DraftModels {
 public:
  // Loads the model of every drafter that has one. The backend must outlive this object. Throws
  // InvalidArgument for a model with another vocabulary than the target's, and CheckpointError.
  DraftModels(const EngineConfig& config, Backend& backend, const ModelRunner& target,
              int max_model_len);

  int64_t cache_block_bytes(const KvFormat& format) const;
  int num_kv_heads() const;  // the most of one model; 0 without models
  void rehearse(const KvFormat& format);
  void allocate_caches(int num_blocks, const KvFormat& format);
  // Drafter `id` of the configuration, which has a model. Its cache must be allocated; the models
  // and the pool must outlive the drafter.
  std::unique_ptr<ModelDrafter> make_drafter(int id, const BlockPool& pool);

  // The model whose passes a device step can run: that of the only drafter, with the vocabulary and
  // the length of the target.
  struct DeviceDraft {
    ModelRunner* runner = nullptr;
    DraftSampling sampling = DraftSampling::kCoupled;
    DraftModelKind kind = DraftModelKind::kModel;
  };
  const std::optional<DeviceDraft>& device_draft() const { return device_draft_; }

  int64_t weight_bytes() const;
  int64_t kv_cache_bytes() const;

 private:
  struct Model {
    ModelDrafterOptions options;
    std::unique_ptr<ModelRunner> runner;
  };
  void load(int id, const EngineConfig& config, Backend& backend, const ModelRunner& target,
            int max_model_len);
  std::optional<DeviceDraft> find_device_draft(const SpeculativeConfig& config,
                                               int max_model_len) const;

  std::vector<Model> models_;
  std::optional<DeviceDraft> device_draft_;
};

}  // namespace specdec
