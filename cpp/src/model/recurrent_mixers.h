// What recurrent layers have in place of attention: short convolutions, and linear recurrences over
// the outputs of such convolutions.
#pragma once

#include "backend/backend.h"
#include "model/config.h"
#include "model/parts.h"

namespace specdec {

class RecurrentMixers {
 public:
  // For passes of up to max_rows rows. The backend is borrowed.
  RecurrentMixers(const ModelConfig& config, Backend& backend, int max_rows);

  // Runs a layer's mixer on the batch's rows, up to the projection of its result: `out` [num_rows,
  // inputs of that projection] act.
  void run(const Layer& layer, const ProjectionInput& rows, const BatchView& batch,
           const LayerStateView& state, void* out);

 private:
  void run_short_conv(const RecurrentMixer& mixer, const BatchView& batch,
                      const LayerStateView& state, void* out);
  void run_delta(const RecurrentMixer& mixer, const ProjectionInput& rows, const BatchView& batch,
                 const LayerStateView& state, void* out);
  void run_mamba2(const RecurrentMixer& mixer, const BatchView& batch, const LayerStateView& state,
                  void* out);
  void convolve(const RecurrentMixer& mixer, const float* x, const BatchView& batch,
                const LayerStateView& state);
  RecurrenceArgs recurrence_args(const RecurrentMixer& mixer, const BatchView& batch,
                                 const LayerStateView& state);
  GatedNormArgs norm_args(const RecurrentMixer& mixer, const BatchView& batch, void* out) const;

  Backend& backend_;
  float norm_eps_;
  Buffer in_;      // [max_rows, widest] float32: outputs of RecurrentMixer::in
  Buffer gates_;   // [max_rows, 2 * heads] float32, of Gated DeltaNets
  Buffer conv_;    // [max_rows, conv_channels] float32, of linear recurrences
  Buffer result_;  // [max_rows, heads * value_dim] float32, likewise
};

}  // namespace specdec
