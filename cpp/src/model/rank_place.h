#pragma once

#include "comm/communicator.h"

namespace specdec {

// Where a rank stands among those of a model. With several stages the layers are cut into as many
// runs of neighbours: the first stage has the embedding, the last one the final norm and the head.
struct RankPlace {
  Communicator* ranks = nullptr;   // of this stage, who share each layer; null: there is one
  Communicator* stages = nullptr;  // all ranks; null: there is one stage
  int stage = 0;
  int num_stages = 1;
  int previous_rank = -1;  // of `stages`: whom the rows come from, and go to
  int next_rank = -1;

  // Ranks of a stage.
  int stage_size() const { return ranks != nullptr ? ranks->size() : 1; }
  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage + 1 == num_stages; }
  // The layers of this stage.
  int first_layer(int num_layers) const { return num_layers * stage / num_stages; }
  int end_layer(int num_layers) const { return num_layers * (stage + 1) / num_stages; }
};

}  // namespace specdec
