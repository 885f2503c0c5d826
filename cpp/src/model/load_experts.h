// Loads the experts of a layer.
#pragma once

#include <string>

#include "model/parts.h"
#include "model/tensor_loader.h"

namespace specdec {

// `layer`: prefix of the names of the layer's tensors. Two layouts are in use: one matrix per
// expert, with the family's names, or all experts stacked in one tensor under mlp.experts (the
// layout of transformers 5 in memory).
Experts load_experts(TensorLoader& loader, const std::string& layer, const LayerSpec& spec);

}  // namespace specdec
