// Hidden states that a decoder hands to a drafter: which ones, and where a pass stores them.
#pragma once

#include <algorithm>
#include <vector>

#include "backend/backend.h"

namespace specdec {

struct TapSpec {
  // The residual stream at the input of layer i; i = the number of layers: the last layer's output.
  std::vector<int> layer_inputs = {};
  // The LM head's input: the last layer's output after the final norm.
  bool final_hidden = false;

  bool reads_same(const TapSpec& other) const {
    return layer_inputs == other.layer_inputs && final_hidden == other.final_hidden;
  }
  int num_taps() const { return static_cast<int>(layer_inputs.size()) + (final_hidden ? 1 : 0); }
  // Least number of elements in a row of features. The drafter also stores its own states there, at
  // the slots of tokens that the target has not run yet.
  int least_width = 0;

  // Elements of a row of features: the taps side by side, in the order given, final_hidden last.
  int width(int hidden_size) const {
    return num_taps() == 0 ? 0 : std::max(num_taps() * hidden_size, least_width);
  }
};

// Which states are tapped, and the rows of features, where each state goes to the slot of its
// token.
struct Taps {
  TapSpec spec = {};
  PagedRowsView features = {};  // of spec.width()
};

// Stores `hidden`, the residual stream at the input of `layer`, to each tap of that layer. `layer`
// = the number of layers means the last layer's output.
void store_layer_input(const Taps& taps, const BatchView& batch, int layer, const float* hidden,
                       int hidden_size, Backend& backend);
// Stores the last layer's output after `norm` (null: none), where that is tapped.
void store_final_hidden(const Taps& taps, const BatchView& batch, const float* hidden,
                        const NormParams* norm, int hidden_size, Backend& backend);

}  // namespace specdec
