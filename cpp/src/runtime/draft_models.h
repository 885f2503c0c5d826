// The draft models and draft heads of an engine: loaded beside the target, with KV caches under the
// same block ids. The taps that draft heads need are known before anything is loaded. Weights are
// loaded next, and caches last, since the KV pool is sized once all weights are loaded.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "model/draft_heads/draft_head_config.h"
#include "runtime/model_drafter.h"
#include "runtime/model_runner.h"
#include "specdec/config.h"

namespace specdec {

class DraftModels {
 public:
  // Reads and checks the config of every draft head. `place`: this rank among the target's. Throws
  // CheckpointError and InvalidArgument.
  DraftModels(const EngineConfig& config, const ModelConfig& target,
              const RankCoordinates& coordinates = {});
  // States that the target hands to heads.
  const TapSpec& taps() const { return taps_; }

  // Loads the model of every drafter that has one, or this rank's share of it. The backend must
  // outlive this object. Throws InvalidArgument for a model with another vocabulary than the
  // target's, and CheckpointError.
  void load(Backend& backend, const ModelRunner& target, int max_model_len);

  int64_t cache_block_bytes(const KvFormat& format) const;
  // Of blocks that caches have beside the pool's.
  int64_t spare_cache_bytes(const KvFormat& format) const;
  int num_kv_heads() const;  // the most of one model; 0 without models
  void rehearse(const KvFormat& format);
  // The target's cache must be allocated.
  void allocate_caches(int num_blocks, const KvFormat& format, const ModelRunner& target);
  // Drafter `id` of the configuration, which has a model. Its cache must be allocated; the models
  // and the pool must outlive the drafter.
  std::unique_ptr<ModelDrafter> make_drafter(int id, const BlockPool& pool);

  // The model of drafter `id`, which has one.
  ModelRunner& runner(int id) const;
  // The models in order of their drafters; null where this rank has no share of one.
  std::vector<ModelRunner*> runners() const;

  // The model whose passes a device step can run: the only drafter's, if its vocabulary and length
  // equal the target's.
  struct DeviceDraft {
    ModelRunner* runner = nullptr;
    DraftSampling sampling = DraftSampling::kCoupled;
    DraftModelKind kind = DraftModelKind::kModel;
    SpanConfig span = {};
  };
  const std::optional<DeviceDraft>& device_draft() const { return device_draft_; }

  int64_t weight_bytes() const;
  int64_t kv_cache_bytes() const;

 private:
  struct Model {
    ModelDrafterOptions options;
    std::unique_ptr<ModelRunner> runner;
  };
  const Model& find(int id) const;
  int num_spare_blocks(const ModelDrafterOptions& options, const KvFormat& format) const;
  // A drafter's loaded model, the number of positions it supports, and how it drafts.
  struct Loading {
    ModelRunner::ModelMaker make;
    int longest = 0;
    int max_depth = 0;
    bool is_parallel = false;
    int32_t mask_token = -1;
    SpanConfig span = {};
  };
  Loading draft_model_loading(int id, Backend& backend, int max_model_len) const;
  Loading draft_head_loading(int id, Backend& backend, const ModelRunner& target,
                             int max_model_len);
  // Fills in draft_tensor_parallel_size where it is left open.
  void choose_sizes(Backend& backend);
  // Whether every rank of the last stage has the whole draft model and drafts the same, rather than
  // one rank drafting.
  bool is_replicated(int id) const;
  // The group that shares the model of a drafter; null where it is one rank.
  Communicator* ranks_of(int id) const;
  void load(int id, Backend& backend, const ModelRunner& target, int max_model_len);
  std::optional<DeviceDraft> find_device_draft(int max_model_len) const;

  EngineConfig config_;
  const ModelConfig target_;  // the whole one
  RankCoordinates
      coordinates_;  // among the target's ranks, of whose last stage the first ones draft
  std::map<int, std::unique_ptr<Communicator>> subgroups_;  // by drafter, of fewer ranks than that
  std::map<int, DraftHeadConfig> heads_;                    // by drafter
  // The target's embedding and head for heads on fewer ranks than the target, by their number.
  std::map<int, ModelParts> borrowed_;
  TapSpec taps_;
  std::vector<Model> models_;
  std::optional<DeviceDraft> device_draft_;
};

}  // namespace specdec
