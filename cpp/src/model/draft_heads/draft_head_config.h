// Describes a draft head: which states of its target it reads, and the sizes that the engine needs
// before anything is loaded. A draft head has its own config.json, in the format of whoever trained
// it, or is a part of its target's checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/step_rules.h"
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
struct DraftHeadTarget {
  const ModelConfig& config;
  std::string directory;
};

// Names of an EAGLE head's tensors, without ".weight" and ".bias".
struct EagleNames {
  std::string fusion = "fc";
  std::string embedding_norm = {};  // of the embedding that is fused; empty: none
  std::string feature_norm = "input_norm";
  std::string context_norm = {};  // of fused features that make keys and values; empty: none do
  std::string embedding = "embed_tokens";
  std::string final_norm = "norm";
  std::string lm_head = "lm_head";
};

// Settings of an EAGLE head, as it was trained. An MTP layer is described as one, too.
struct EagleConfig {
  EagleNames names;
  // How features are normalised before they are fused: all taps as one vector, or each tap by
  // itself.
  enum class FeatureNorm : uint8_t { kNone, kWhole, kEachTap };
  FeatureNorm feature_norm = FeatureNorm::kNone;
  bool fuses_embedding = false;  // EAGLE-1: the token's embedding is fused with the features
  bool features_first = false;   // columns of the features precede the embedding's
  bool has_fusion_bias = false;
  bool normed_residual = false;     // the first layer adds to the normalised fused features
  bool feeds_back_normed = false;   // a drafted row passes on its state after the final norm
  bool has_embedding = false;       // its own embedding table, else the target's
  bool scales_embedding = false;    // the target's with the factor of its rows
  bool has_lm_head = false;         // its own output matrix, else rows of the target's
  std::vector<std::string> layers;  // prefix of each layer's tensors: "midlayer."
  int markov_rank = 0;              // of DSpark's Markov head; 0: none
  // P-EAGLE: the token and features at positions whose text is not known yet.
  int32_t mask_token = -1;  // -1: the head is not made for that
};

struct DraftHeadConfig {
  DraftMethod method = DraftMethod::kEagle;
  std::string directory = {};
  // The head's layers and sizes. Without layers it has no KV and no tokens to catch up with.
  // vocab_size is the number of its logits.
  ModelConfig model = {};
  TapSpec taps = {};         // states of the target that the head reads
  int max_depth = 0;         // of a draft; 0: any
  bool is_parallel = false;  // one pass drafts all levels
  // The tokens that the head scores, in the order of its logits, unless they are the target's whole
  // vocabulary.
  std::vector<int32_t> token_ids = {};
  // Without layers: number of weights multiplied per row, before the logits and for the logits.
  double block_weights = 0;
  double output_weights = 0;
  // Clusters of tokens, and how many of them are scored for a row (TokenClusters); 0: none.
  int num_clusters = 0;
  int num_kept_clusters = 0;
  EagleConfig eagle = {};  // of heads with layers
  SpanConfig span = {};    // of kDflash and kDspark
};

// Mask token for text that is not known yet, from the config.json of a model that drafts all levels
// in one pass (PARD, P-EAGLE). Throws CheckpointError where there is none.
int32_t load_mask_token(const std::string& directory, int vocab_size);

// Reads and checks config.json and the names and shapes of the tensors; loads nothing. Throws
// CheckpointError and InvalidArgument naming the file and the field.
DraftHeadConfig load_draft_head_config(const DrafterConfig& drafter, const DraftHeadTarget& target);

// For a draft head whose config was read. See head_facts().
std::vector<ModelFacts> facts_of(const DraftHeadConfig& head, const ModelConfig& target,
                                 const FactsFormats& formats);

struct DraftHeadLoadArgs {
  const DraftHeadTarget& target;
  const ModelParts& target_parts;                   // parts that the draft head may borrow
  RankCoordinates coordinates = {};                 // among the ranks that share the draft head
  Quantization quantization = Quantization::kInt8;  // of the head's own matrices
  Backend& backend;
  int max_model_len = 0;
  int max_rows = 0;  // of a pass
};
std::unique_ptr<Model> load_draft_head(const DraftHeadConfig& config,
                                       const DraftHeadLoadArgs& args);

// One per method; load_draft_head_config() and load_draft_head() choose.
DraftHeadConfig parse_eagle(const JsonFields& fields, const DrafterConfig& drafter,
                            const DraftHeadTarget& target);
DraftHeadConfig parse_medusa(const JsonFields& fields, const DrafterConfig& drafter,
                             const DraftHeadTarget& target);
DraftHeadConfig parse_mlp_speculator(const JsonFields& fields, const DrafterConfig& drafter,
                                     const DraftHeadTarget& target);
// DFlash and DSpark.
DraftHeadConfig parse_dflash(const JsonFields& fields, const DrafterConfig& drafter,
                             const DraftHeadTarget& target);
// For a head in the target's checkpoint: the target's config describes it.
DraftHeadConfig parse_mtp(const DrafterConfig& drafter, const DraftHeadTarget& target);
// For a checkpoint of Gemma 4's assistants, which is_gemma4_assistant() tells by its config.json.
bool is_gemma4_assistant(const JsonFields& fields);
DraftHeadConfig parse_gemma4_assistant(const JsonFields& fields, const DrafterConfig& drafter,
                                       const DraftHeadTarget& target);
std::unique_ptr<Model> load_gemma4_assistant(const DraftHeadConfig& config,
                                             const DraftHeadLoadArgs& args);
// Loads what parse_eagle(), parse_dflash() or parse_mtp() describes.
std::unique_ptr<Model> load_eagle(const DraftHeadConfig& config, const DraftHeadLoadArgs& args);
std::unique_ptr<Model> load_medusa(const JsonFields& fields, const DraftHeadConfig& config,
                                   const DraftHeadLoadArgs& args);
std::unique_ptr<Model> load_mlp_speculator(const JsonFields& fields, const DraftHeadConfig& config,
                                           const DraftHeadLoadArgs& args);

}  // namespace specdec
