#include "model/stage_link.h"

#include <algorithm>
#include <span>

#include "model/taps.h"

namespace specdec {

void StageLink::receive(const ModelPass& pass, float* hidden) {
  const std::vector<int>& tapped = pass.taps.spec.layer_inputs;
  const auto num_before =
      std::ranges::count_if(tapped, [&](int layer) { return layer < first_layer_; });
  const size_t count = num_values(pass);
  kept_.resize(count * (static_cast<size_t>(num_before) + 1));
  coordinates_.stages->receive(coordinates_.previous_rank,
                               std::as_writable_bytes(std::span(kept_)));
  const auto take = [&](size_t index) {
    backend_.write(std::as_bytes(std::span(kept_).subspan(index * count, count)), hidden);
  };
  for (int layer = 0, index = 0; is_last() && index < num_before; ++layer) {
    const auto taps_of_layer = std::ranges::count(tapped, layer);
    if (taps_of_layer == 0) continue;
    take(static_cast<size_t>(index));  // the same for all taps of a layer
    store_layer_input(pass.taps, pass.batch, layer, hidden, hidden_size_, backend_);
    index += static_cast<int>(taps_of_layer);
  }
  take(static_cast<size_t>(num_before));
  kept_.resize(count * static_cast<size_t>(num_before));
}

void StageLink::tap_layer_input(const ModelPass& pass, int layer, const float* hidden) {
  if (is_last()) {
    store_layer_input(pass.taps, pass.batch, layer, hidden, hidden_size_, backend_);
    return;
  }
  for (const int tapped : pass.taps.spec.layer_inputs) {
    if (tapped == layer) keep(pass, hidden);
  }
}

void StageLink::send(const ModelPass& pass, const float* hidden) {
  keep(pass, hidden);
  coordinates_.stages->send(coordinates_.next_rank, std::as_bytes(std::span(kept_)));
  kept_.clear();
}

void StageLink::keep(const ModelPass& pass, const float* hidden) {
  const size_t count = num_values(pass);
  kept_.resize(kept_.size() + count);
  backend_.read(hidden, std::span(kept_).last(count));
}

}  // namespace specdec
