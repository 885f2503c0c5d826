// A target and its draft models by themselves, without requests: for the functions that show what
// is inside of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "runtime/draft_models.h"
#include "runtime/model_runner.h"
#include "specdec/config.h"

namespace specdec {

class ModelProbe {
 public:
  // Room for one text of up to num_tokens tokens and num_drafts drafts below it. `taps`: of the
  // target; empty: what its draft heads read. Throws InvalidArgument.
  ModelProbe(const EngineConfig& config, const std::vector<int32_t>& tokens, int num_drafts,
             TapSpec taps = {});

  Backend& backend() { return *backend_; }
  const EngineConfig& config() const { return config_; }
  const ModelConfig& model() const { return model_; }
  ModelRunner& target() { return *target_; }
  DraftModels& draft_models() { return *draft_models_; }
  const BlockPool& pool() const { return pool_; }
  const BlockTable& blocks() const { return blocks_; }

  // Runs the target over the text's first tokens.
  void run_target(std::span<const int32_t> tokens);
  // The rows of features at the slots of the first `num_tokens` tokens.
  std::vector<float> read_features(int num_tokens);

 private:
  EngineConfig config_;
  ModelConfig model_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DraftModels> draft_models_;
  std::unique_ptr<ModelRunner> target_;
  int max_rows_ = 0;
  BlockPool pool_;
  BlockTable blocks_;
};

}  // namespace specdec
