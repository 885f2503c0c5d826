// What a ModelRunner runs: a transformer, or a draft head that continues what a target made of a
// text.
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
  const Taps& taps = kNoTaps;                   // states that are handed to a drafter
  // Of a draft head: the rows of features, which the target fills and the head reads.
  PagedRowsView features = {};
  // Of a draft head: 0 where the rows are committed tokens, which read what the target left at the
  // tokens before; d where they are drafts of depth d, which read what the head left at their
  // parents.
  int level = 0;
  // Of a head that drafts all levels from committed tokens alone: how many are wanted, from `level`
  // on. Row r of the batch leaves what level d makes of it at row d * batch.num_rows + r.
  int num_levels = 1;
  // Nobody reads what comes out: only the KV of the rows is wanted.
  bool kv_only = false;

  static const Taps kNoTaps;
};
inline const Taps ModelPass::kNoTaps = {};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  // Of the parts that were not borrowed from another model.
  virtual int64_t num_parameters() const = 0;
  virtual int64_t weight_bytes() const = 0;
  // What a pass and its logits read of weights, borrowed ones included.
  virtual int64_t pass_bytes() const = 0;
  // What the matrices are packed as, and what they came from where that was integers: "bfloat16",
  // "int8", "int4+int8, from gguf q4_k+q6_k".
  virtual std::string weight_format() const = 0;

  // Runs the rows of a staged batch: writes their KV, leaves their last hidden states inside.
  virtual void forward(const ModelPass& pass) = 0;
  // Logits of rows of the last forward, of this `level`: [num_rows, config().vocab_size] float32.
  // `row_ids` are where the backend's operations read them.
  virtual void compute_logits(const int32_t* row_ids, int num_rows, float* logits,
                              int level = 0) = 0;
  // The likeliest tokens of such rows, as StepModel has it.
  virtual bool best_tokens(const int32_t* row_ids, int num_rows, int32_t* tokens) {
    static_cast<void>(row_ids), static_cast<void>(num_rows), static_cast<void>(tokens);
    return false;
  }
  virtual DraftVocabulary draft_vocabulary() const { return {}; }
  // False: one call of compute_logits() may ask for rows of all levels of a pass.
  virtual bool has_output_per_level() const { return false; }
  // What a row whose text is not known yet reads as its features, float32 in the backend's memory;
  // empty: the model runs no such rows.
  virtual std::span<const float> mask_features() const { return {}; }
};

}  // namespace specdec
