// States of a decoder that it hands to a drafter: which, and where the rows of a pass leave them.
#pragma once

#include <algorithm>
#include <vector>

#include "backend/backend.h"

namespace specdec {

struct TapSpec {
  // The residual stream as layer i reads it; the number of layers: as the last one leaves it.
  std::vector<int> layer_inputs = {};
  // What the head reads: the last layer's output after the final norm.
  bool final_hidden = false;

  bool reads_same(const TapSpec& other) const {
    return layer_inputs == other.layer_inputs && final_hidden == other.final_hidden;
  }
  int num_taps() const { return static_cast<int>(layer_inputs.size()) + (final_hidden ? 1 : 0); }
  // Elements of a row of features at least: the drafter leaves states of its own there, too, at the
  // slots of tokens that the target has not run yet.
  int least_width = 0;

  // Elements of a row of features: the taps side by side, in the order given, final_hidden last.
  int width(int hidden_size) const {
    return num_taps() == 0 ? 0 : std::max(num_taps() * hidden_size, least_width);
  }
};

// What is tapped and the rows it goes to, each to the slot of its token.
struct Taps {
  TapSpec spec = {};
  PagedRowsView features = {};  // of spec.width()
};

// Stores `hidden`, the residual stream of the batch's rows as `layer` reads it, to each tap of it.
// The number of layers stands for the last one's output.
void store_layer_input(const Taps& taps, const BatchView& batch, int layer, const float* hidden,
                       int hidden_size, Backend& backend);
// Stores the last layer's output after `norm` (null: none), where that is tapped.
void store_final_hidden(const Taps& taps, const BatchView& batch, const float* hidden,
                        const NormParams* norm, int hidden_size, Backend& backend);

}  // namespace specdec
