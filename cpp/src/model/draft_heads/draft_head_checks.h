// Checks that the parsers of all draft heads make before anything is loaded.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/draft_heads/draft_head_config.h"
#include "model/json_file.h"
#include "model/tensor_loader.h"
#include "model/weight_format.h"
#include "model/weight_store.h"

namespace specdec {

// The tensors of a draft head's checkpoint by name. Stored names may lack a leading "model." or
// have an extra one.
class DraftHeadTensors {
 public:
  // With load_format="dummy" there are no files, and every tensor asked for exists.
  DraftHeadTensors(const std::string& directory, bool is_random);

  const std::string& source() const { return store_.source(); }
  bool is_random() const { return is_random_; }
  std::vector<std::string> names() const { return store_.unused(); }
  // Always false without files.
  bool contains(const std::string& name) const;
  // Throws CheckpointError where the tensor is missing or of another shape.
  void require(const std::string& name, std::span<const int64_t> shape) const;
  void require(const std::string& name, std::initializer_list<int64_t> shape) const {
    require(name, std::span<const int64_t>(shape.begin(), shape.size()));
  }
  const std::vector<int64_t>& shape(const std::string& name) const {
    return store_.shape(resolve(name));
  }
  std::vector<int64_t> integers(const std::string& name, int64_t size);

 private:
  std::string resolve(const std::string& name) const;

  WeightStore store_;
  bool is_random_;
};

// A draft head without transformer layers.
class LayerlessDraftHead : public Model {
 public:
  const ModelConfig& config() const override { return config_; }
  int64_t num_parameters() const override { return loaded_.num_parameters; }
  int64_t weight_bytes() const override { return loaded_.size_bytes; }
  std::string weight_format() const override {
    return describe_formats(loaded_.formats, backend_.act_dtype());
  }

 protected:
  LayerlessDraftHead(const DraftHeadConfig& config, const DraftHeadLoadArgs& args)
      : config_(config.model), backend_(args.backend), max_rows_(args.max_rows) {}
  // Rows for one pass: [max_rows, width].
  Buffer allocate_rows(int64_t width, DType dtype = DType::kF32) {
    const size_t num_elements = static_cast<size_t>(max_rows_) * static_cast<size_t>(width);
    return backend_.allocate(num_elements * size_of(dtype), "a draft head's workspace");
  }

  ModelConfig config_;
  Backend& backend_;
  int max_rows_;
  LoadedParts loaded_;  // counts what was loaded
};

// The ModelConfig of a draft head without layers, and so without KV.
ModelConfig model_without_layers(const std::string& architecture, std::string_view prefix,
                                 const DraftHeadTarget& target);

// Throws CheckpointError where the draft head's config.json names another target: other sizes or,
// in speculators' format, a verifier of another architecture.
void check_target(const JsonFields& fields, const DraftHeadTarget& target);
// Throws CheckpointError unless `key` equals the size of the target's hidden states.
void check_hidden_size(const JsonFields& fields, const char* key, const DraftHeadTarget& target);

// The ids that a draft head of `size` outputs scores: `token_ids`, which must be distinct and in
// the target's vocabulary. Throws CheckpointError naming `source` and `name`.
void check_token_ids(std::span<const int32_t> token_ids, const DraftHeadTarget& target,
                     const std::string& source, const std::string& name);

// A draft head's config.json. speculators puts the settings of the layers into an object of their
// own; a setting missing there may be at the top level.
struct DraftHeadFields {
  JsonFields root;
  JsonFields layers;
  bool is_speculators = false;
};
DraftHeadFields draft_head_fields(const JsonFields& root);

// The layers that a head with `layers.` or `midlayer.` has by its tensors: names, biases, norms of
// queries and keys.
void find_layers(const DraftHeadTensors& tensors, DraftHeadConfig& config);

// The tokens that such a head scores, by d2t or the user's token map; empty: the target's whole
// vocabulary. Throws CheckpointError and InvalidArgument.
std::vector<int32_t> scored_tokens(const DrafterConfig& drafter, const DraftHeadTarget& target,
                                   const JsonFields& root, DraftHeadTensors& tensors,
                                   const EagleConfig& eagle);

// Tensors of DSpark's Markov head, without ".weight".
inline constexpr const char* kMarkovTokens = "markov_head.markov_w1";
inline constexpr const char* kMarkovWeight = "markov_head.markov_w2";

// Throws CheckpointError where a tensor that load_eagle() reads is missing or has another shape,
// experts excepted.
void check_eagle_tensors(const DraftHeadTensors& tensors, const DraftHeadConfig& config,
                         const DraftHeadTarget& target);

// DrafterConfig::token_map, checked, for a draft head that scores the target's whole vocabulary.
// Throws InvalidArgument.
std::vector<int32_t> checked_token_map(const DrafterConfig& drafter, const DraftHeadTarget& target);
// For a draft head with its own output weights. Throws InvalidArgument where there is a token map.
void refuse_token_map(const DrafterConfig& drafter);

// Rows of the target's LM head, packed anew; `loader`, the head's own, counts their bytes. With
// `token_ids` empty, all rows: the matrix is shared.
std::shared_ptr<const LmHead> borrow_lm_head(TensorLoader& loader, const DraftHeadLoadArgs& args,
                                             const std::vector<int32_t>& token_ids);
// Puts the ids of an LM head where operations read them.
void set_token_ids(LmHead& lm_head, const std::vector<int32_t>& token_ids,
                   const DraftHeadLoadArgs& args);

}  // namespace specdec
