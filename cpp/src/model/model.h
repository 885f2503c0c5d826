// A model that a ModelRunner runs: a transformer, or a draft head, which continues from a target's
// hidden states.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "backend/backend.h"
#include "model/config.h"
#include "model/taps.h"

namespace specdec {

// One pass over the rows of a batch.
struct ModelPass {
  const BatchView& batch;
  std::span<const PagedKvView> kv_layers = {};  // a view for each layer
  // A view for each layer, empty where it is not recurrent; none for models without such layers.
  std::span<const LayerStateView> states = {};
  const Taps& taps = kNoTaps;  // hidden states handed to a drafter
  // Draft heads only: the rows of features, which the target writes and the draft head reads.
  PagedRowsView features = {};
  // Draft heads only: 0 for rows of committed tokens, which read the target's states of the
  // previous tokens (or of their own, where these make keys and values: FeatureFusion); d for
  // drafts of depth d, which read the draft head's states of their parents, if any.
  int level = 0;
  // For a draft head that drafts all levels from committed tokens alone: the number of levels
  // wanted, from `level` on. Row r of the batch writes its result for level d at row d *
  // batch.num_rows + r.
  int num_levels = 1;
  // Only the KV of the rows is wanted; no one reads their outputs.
  bool kv_only = false;

  static const Taps kNoTaps;
};
inline const Taps ModelPass::kNoTaps = {};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  // Counts only the parts that were not borrowed from another model.
  virtual int64_t num_parameters() const = 0;
  virtual int64_t weight_bytes() const = 0;
  // Bytes of weights that a pass and its logits read, borrowed weights included.
  virtual int64_t pass_bytes() const = 0;
  // Formats of the packed matrices, and of the stored integers that they came from: "bfloat16",
  // "int8", "int4+int8, from gguf q4_k+q6_k".
  virtual std::string weight_format() const = 0;

  // Runs the rows of a staged batch: writes their KV, and keeps their last hidden states.
  virtual void forward(const ModelPass& pass) = 0;
  // Logits of rows of the last forward at `level`: [num_rows, config().vocab_size] float32.
  // `row_ids` must be memory that the backend's operations can read.
  virtual void compute_logits(const int32_t* row_ids, int num_rows, float* logits,
                              int level = 0) = 0;
  // The likeliest tokens of such rows, as in StepModel.
  virtual bool best_tokens(const int32_t* row_ids, int num_rows, int32_t* tokens) {
    static_cast<void>(row_ids), static_cast<void>(num_rows), static_cast<void>(tokens);
    return false;
  }
  virtual DraftVocabulary draft_vocabulary() const { return {}; }
  // Whether tokens drafted after a pass change its logits.
  virtual bool has_markov_head() const { return false; }
  // What the Markov head adds to logits of a token: of row i, where token_ids[i] comes before that
  // token. `token_ids` are in memory of the backend; out: [num_rows, config().vocab_size] float32.
  virtual void compute_markov_logits(const int32_t* token_ids, int num_rows, float* out) {
    static_cast<void>(token_ids), static_cast<void>(num_rows), static_cast<void>(out);
  }
  // False: one call of compute_logits() may ask for rows of all levels of a pass.
  virtual bool has_output_per_level() const { return false; }
  // Features that a row reads when the text at its position is not known yet, float32 in the
  // backend's memory; empty: the model runs no such rows.
  virtual std::span<const float> mask_features() const { return {}; }
};

}  // namespace specdec
