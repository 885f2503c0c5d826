// Layers of the KV cache that one launch can move.
#pragma once

#include <span>
#include <vector>

#include "backend/op_args.h"

namespace specdec::cuda {

// The layers in order, cut where the shape changes.
std::vector<std::span<const PagedKvView>> runs_of_one_shape(std::span<const PagedKvView> layers);

}  // namespace specdec::cuda
