#include "model/taps.h"

namespace specdec {

void store_layer_input(const Taps& taps, const BatchView& batch, int layer, const float* hidden,
                       int hidden_size, Backend& backend) {
  int column = 0;
  for (const int tapped : taps.spec.layer_inputs) {
    if (tapped == layer) {
      backend.store_rows({.x = hidden,
                          .slot_mapping = batch.slot_mapping,
                          .to = taps.features,
                          .column = column,
                          .dim = hidden_size,
                          .num_rows = batch.num_rows});
    }
    column += hidden_size;
  }
}

void store_final_hidden(const Taps& taps, const BatchView& batch, const float* hidden,
                        const NormParams* norm, int hidden_size, Backend& backend) {
  if (!taps.spec.final_hidden) return;
  backend.store_rows({.x = hidden,
                      .norm = norm,
                      .slot_mapping = batch.slot_mapping,
                      .to = taps.features,
                      .column = (taps.spec.num_taps() - 1) * hidden_size,
                      .dim = hidden_size,
                      .num_rows = batch.num_rows});
}

}  // namespace specdec
