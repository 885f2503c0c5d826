// The transformer, written once over Backend for every family: families differ by data (ModelConfig
// and the parts loaded for it), not by code of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/backend.h"
#include "model/config.h"
#include "model/parts.h"
#include "model/taps.h"
#include "specdec/quantization.h"

namespace specdec {

class Decoder {
 public:
  // Loads and packs the checkpoint in `directory`, but for the parts that are `given`, of the same
  // backend. Positions up to max_model_len; steps of up to max_rows rows. The backend is borrowed
  // and must outlive the decoder.
  Decoder(const ModelConfig& config, const std::string& directory, Backend& backend,
          int max_model_len, int max_rows, Quantization quantization = Quantization::kAuto,
          ModelParts given = {});
  ~Decoder();

  const ModelConfig& config() const;
  // For other decoders to share.
  const ModelParts& parts() const;
  // Of the parts that were not given.
  int64_t num_parameters() const;
  int64_t weight_bytes() const;
  // What the matrices are packed as, and what they came from where that was integers: "bfloat16",
  // "int8", "int4+int8, from gguf q4_k+q6_k".
  std::string weight_format() const;

  // Runs the rows of a staged batch through all layers: writes their KV, leaves their last hidden
  // states inside.
  // kv_layers has one view a layer. States that are tapped go to their rows' slots.
  void forward(const BatchView& batch, std::span<const PagedKvView> kv_layers,
               const Taps& taps = {});

  // Final norm and head on rows of the last forward: logits [row_ids.size(), vocab_size] float32.
  void compute_logits(std::span<const int32_t> row_ids, float* logits);
  // The same with row ids where the backend's operations read them.
  void compute_logits_staged(const int32_t* row_ids, int num_rows, float* logits);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specdec
