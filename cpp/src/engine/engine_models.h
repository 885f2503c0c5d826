// The models of an engine with their caches on one device: the part of the engine that every rank
// has a share of.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "engine/sizes.h"
#include "model/config.h"
#include "model/rank_coordinates.h"
#include "runtime/draft_models.h"
#include "runtime/kv_cache.h"
#include "runtime/model_runner.h"
#include "specdec/config.h"

namespace specdec {

using BackendMaker = std::function<std::unique_ptr<Backend>(const BackendConfig&)>;

class EngineModels {
 public:
  // Loads this rank's share of the weights; `ranks`: all of the engine's, null for one device.
  // `config` is valid; sizes that it leaves open are filled in. An error ends the group.
  EngineModels(const EngineConfig& config, const BackendMaker& make_backend,
               Communicator* ranks = nullptr);
  ~EngineModels();
  // Allocates the KV caches, `reserved_bytes` less than there is room for.
  void allocate_caches(int64_t reserved_bytes = 0);

  const EngineConfig& config() const { return config_; }
  // The whole target's.
  const ModelConfig& model() const { return model_; }
  int max_model_len() const { return max_model_len_; }
  const CacheSize& cache() const { return cache_; }
  const StateConfig& states() const { return states_; }
  Backend& backend() const { return *backend_; }
  ModelRunner& target() const { return *target_; }
  DraftModels& draft_models() const { return *draft_models_; }
  const RankCoordinates& coordinates() const { return coordinates_; }
  // The target's runner and the drafters', by RankCalls' ids; null where this rank has no share.
  std::vector<ModelRunner*> runners();

 private:
  void load(const BackendMaker& make_backend);
  RankCoordinates find_coordinates();
  // Of this rank's layers.
  StateBytes state_bytes() const;
  // Where the user left max_num_seqs open: to as many as have room for their states.
  void lower_num_seqs();
  MemoryInfo own_memory() const;
  // The smallest value of all ranks.
  int64_t agree(int64_t value);

  EngineConfig config_;
  ModelConfig model_;
  DeviceKind device_kind_ = DeviceKind::kCpu;
  Communicator* ranks_;
  std::unique_ptr<Communicator> stage_;  // the ranks of this one's stage, where there are several
  RankCoordinates coordinates_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DraftModels> draft_models_;
  std::unique_ptr<ModelRunner> target_;
  KvFormat kv_format_;
  int longest_ = 0;  // tokens of a sequence that the checkpoint, or the user, allows
  int max_model_len_ = 0;
  CacheSize cache_;
  StateConfig states_;
};

}  // namespace specdec
