// What a draft head is: what it reads of its target, and the sizes that the engine needs before
// anything is loaded. A head has its own config.json, in the spelling of whoever trained it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/config.h"
#include "model/json_file.h"
#include "model/model.h"
#include "model/parts.h"
#include "model/taps.h"
#include "specdec/model_facts.h"
#include "specdec/quantization.h"
#include "specdec/speculative_config.h"

namespace specdec {

// The model that a head drafts for.
struct HeadTarget {
  const ModelConfig& config;
  std::string directory;
};

// EAGLE's choices, as the checkpoint was trained.
struct EagleConfig {
  // Features are normalised before they are fused: all of them as one vector, or each tap by
  // itself.
  enum class FeatureNorm : uint8_t { kNone, kWhole, kEachTap };
  FeatureNorm feature_norm = FeatureNorm::kNone;
  bool fuses_embedding = false;  // EAGLE-1: the token's embedding is fused with the features
  bool has_fusion_bias = false;
  bool normed_residual = false;     // the first layer adds to the normalised fused features
  bool feeds_back_normed = false;   // a drafted row leaves its state after the final norm
  bool has_embedding = false;       // a table of its own, else the target's
  bool has_head = false;            // a matrix of its own, else rows of the target's
  std::vector<std::string> layers;  // prefix of each layer's tensors: "midlayer."
  // P-EAGLE: the token and features of positions whose text is not known yet.
  int32_t mask_token = -1;  // -1: the head is not made for that
};

struct DraftHeadConfig {
  DraftMethod method = DraftMethod::kEagle;
  std::string directory = {};
  // Its layers (none: it has no KV, and nothing to catch up with) and sizes; vocab_size is that of
  // its logits.
  ModelConfig model = {};
  TapSpec taps = {};         // states of the target that it reads
  int max_depth = 0;         // of a draft; 0: any
  bool is_parallel = false;  // one pass drafts all levels
  // The tokens it scores, in the order of its logits, where they are not the target's whole
  // vocabulary.
  std::vector<int32_t> token_ids = {};
  // Without layers: weights that a pass multiplies each row by, before its logits and for them.
  double block_weights = 0;
  double output_weights = 0;
  EagleConfig eagle = {};  // of EAGLE's methods
};

// The token that stands for text that is not known yet, in the config.json of a model that drafts
// all levels in one pass (PARD, P-EAGLE). Throws CheckpointError where it names none.
int32_t load_mask_token(const std::string& directory, int vocab_size);

// Reads and checks config.json, and looks at which tensors there are and at their shapes; loads
// nothing. Throws CheckpointError and InvalidArgument naming the file and the field.
DraftHeadConfig load_head_config(const DrafterConfig& drafter, const HeadTarget& target);

// Of a head that is read already. See head_facts().
std::vector<ModelFacts> facts_of(const DraftHeadConfig& head, const ModelConfig& target,
                                 const FactsFormats& formats);

struct HeadLoadArgs {
  const HeadTarget& target;
  const ModelParts& target_parts;                   // what the head may borrow
  RankPlace place = {};                             // among the ranks that share the head
  Quantization quantization = Quantization::kInt8;  // of the head's own matrices
  Backend& backend;
  int max_model_len = 0;
  int max_rows = 0;  // of a pass
};
std::unique_ptr<Model> load_head(const DraftHeadConfig& config, const HeadLoadArgs& args);

// One method each; load_head_config() and load_head() choose.
DraftHeadConfig parse_eagle(const JsonFields& fields, const DrafterConfig& drafter,
                            const HeadTarget& target);
DraftHeadConfig parse_medusa(const JsonFields& fields, const DrafterConfig& drafter,
                             const HeadTarget& target);
DraftHeadConfig parse_mlp_speculator(const JsonFields& fields, const DrafterConfig& drafter,
                                     const HeadTarget& target);
std::unique_ptr<Model> load_eagle(const DraftHeadConfig& config, const HeadLoadArgs& args);
std::unique_ptr<Model> load_medusa(const JsonFields& fields, const DraftHeadConfig& config,
                                   const HeadLoadArgs& args);
std::unique_ptr<Model> load_mlp_speculator(const JsonFields& fields, const DraftHeadConfig& config,
                                           const HeadLoadArgs& args);

}  // namespace specdec
