// How much a pass of a model reads, computes and exchanges, from config.json alone; weights are not
// read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "specdec/speculative_config.h"

namespace specdec {

// A layer, or what comes before or after the layers. Weights are elements of matrices.
struct PartFacts {
  double weights = 0;          // multiplied by every row
  double expert_weights = 0;   // of each expert
  int sliding_window = 0;      // tokens that a row attends to; 0: all
  double query_elements = 0;   // of a row's queries
  double kv_bytes = 0;         // of a token's keys and values, as the KV cache holds them
  bool owns_kv = true;         // false: the keys and values are another layer's
  double state_bytes = 0;      // of a recurrent layer's state of a sequence
  double state_flops = 0;      // operations of a row with the state
  int num_exchanges = 0;       // between the ranks that share the part
  double received_floats = 0;  // that a rank receives per row in the exchanges
};

// A model as one of `num_ranks` ranks has it: for each part, the largest share of any rank, since
// the others wait for that rank.
struct ModelFacts {
  std::string architecture = {};  // the text model's, as in known_architectures()
  std::string dtype = {};         // of config.json: "float32", "bfloat16" or "float16"
  int max_position_embeddings = 0;
  int num_ranks = 1;
  int hidden_size = 0;  // of a row of the residual stream
  int num_experts = 0;  // of layers with experts
  int num_experts_per_token = 0;
  PartFacts input = {};  // projections from embeddings, or from a target's taps, to the layers
  std::vector<PartFacts> layers = {};
  PartFacts output = {};     // the LM head
  double table_weights = 0;  // an embedding stored apart from the LM head
  double layer_bytes = 0;    // bytes of a weight of input and layers
  double output_bytes = 0;   // bytes of a weight of LM head and embedding

  int num_layers() const { return static_cast<int>(layers.size()); }
  // The part of a pipeline stage, as RankCoordinates cuts the layers.
  ModelFacts stage(int index, int num_stages) const;

  // Weights and KV cache that a pass over `num_rows` rows of `batch` requests with `context` tokens
  // each reads, and states that it reads and writes. Experts count if some row needs them, assuming
  // that rows choose at random.
  double pass_bytes(double num_rows, double batch, double context) const;
  // A multiplication and an addition count as two operations. `num_scored` of the rows run the LM
  // head; all rows if omitted.
  double pass_flops(double num_rows, double context, std::optional<double> num_scored = {}) const;
  int num_exchanges() const;
  double received_bytes(double num_rows) const;
  // Memory of the weights, and of the keys and values of `num_tokens` tokens.
  double memory_bytes(double num_tokens) const;
};

// Storage formats of weights and KV cache, by the names of the engine's options.
struct FactsFormats {
  std::string dtype = "auto";  // that of config.json
  std::string quantization = "auto";
  std::string kv_cache_dtype = "auto";
};

// For each tensor-parallel size that can share the model in `directory`, the smallest first. Throws
// CheckpointError, and InvalidArgument of an unknown quantization.
std::vector<ModelFacts> model_facts(const std::string& directory, const FactsFormats& formats);
// The same of a draft head, whose quantization is the drafter's: a pass for one level, of Medusa's
// heads for all levels.
std::vector<ModelFacts> head_facts(const DrafterConfig& head, const std::string& target_directory,
                                   const FactsFormats& formats);

// Reads config.json and the shapes of the tensors of a draft head, as loading does first, and
// throws what loading would: CheckpointError and InvalidArgument. With `random_weights`
// (LoadFormat::kDummy) there are no tensors to read. Returns whether the head scores tokens with
// all rows of the target's LM head.
bool scores_with_target(const DrafterConfig& head, const std::string& target_directory,
                        bool random_weights);

}  // namespace specdec
