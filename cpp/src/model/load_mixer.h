// Loads what recurrent layers have in place of attention.
#pragma once

#include <string>

#include "model/parts.h"
#include "model/tensor_loader.h"

namespace specdec {

// `prefix`: of the names of the layer's tensors. Loads the mixer with its norm and its projections.
void load_mixer(TensorLoader& loader, const std::string& prefix, Layer& layer);

}  // namespace specdec
