// The transformer, written once over Backend for every family: families differ by data (ModelConfig
// and the parts loaded for it), not by code of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/backend.h"
#include "model/config.h"
#include "model/model.h"
#include "model/parts.h"
#include "specdec/quantization.h"

namespace specdec {

class Decoder final : public Model {
 public:
  // Loads and packs the checkpoint in `directory`, except for the parts that are `given`, which
  // must be of the same backend. Supports positions up to max_model_len and steps of up to max_rows
  // rows. The backend is borrowed and must outlive the decoder. The decoder is the share of the
  // rank at `place`: all ranks run its passes together.
  Decoder(const ModelConfig& config, const std::string& directory, Backend& backend,
          int max_model_len, int max_rows, Quantization quantization = Quantization::kAuto,
          ModelParts given = {}, const RankCoordinates& coordinates = {});
  // The same from loaded parts, which may be a draft head's.
  Decoder(const ModelConfig& config, LoadedParts parts, Backend& backend, int max_model_len,
          int max_rows, const RankCoordinates& coordinates = {});
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder() override;

  // Layers, heads and inner sizes are those of this rank's share.
  const ModelConfig& config() const override;
  // For sharing with other decoders.
  const ModelParts& parts() const;
  int64_t num_parameters() const override;
  int64_t weight_bytes() const override;
  int64_t pass_bytes() const override;
  std::string weight_format() const override;

  void forward(const ModelPass& pass) override;
  // Final norm and LM head.
  void compute_logits(const int32_t* row_ids, int num_rows, float* logits, int level = 0) override;
  bool best_tokens(const int32_t* row_ids, int num_rows, int32_t* tokens) override;
  DraftVocabulary draft_vocabulary() const override;
  bool has_markov_head() const override;
  void compute_markov_logits(const int32_t* token_ids, int num_rows, float* out) override;
  std::span<const float> mask_features() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specdec
