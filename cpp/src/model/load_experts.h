// Loads the experts of a layer.
#pragma once

#include <string>

#include "model/parts.h"
#include "model/tensor_loader.h"

namespace specdec {

// `layer`: what the names of the layer's tensors begin with. Two layouts are in use: a matrix an
// expert, as the family's names say, or all experts stacked in one tensor under mlp.experts (what
// transformers 5 holds in memory).
Experts load_experts(TensorLoader& loader, const std::string& layer, const LayerSpec& spec);

}  // namespace specdec
