// Which part of a model each of several ranks holds. All ranks of a stage have its layers: some
// heads of the attention, or of what is in its place, some inputs of the projections after the
// attention and inside the MLP, some tokens of the vocabulary. Norms, routers, untied and per-layer
// embeddings, biases of sums, and what AltUp, LAuReL and sparse gates add are on every rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/shared_heads.h"
#include "core/k_slices.h"
#include "model/config.h"
#include "model/rank_coordinates.h"

namespace specdec {

// The heads by which ranks share a layer: of attention, or of a linear recurrence, where a rank has
// the values of its heads and the queries and keys that these read, as with KV heads. None: of a
// short convolution ranks share the channels, as the inner values of an MLP.
AttentionHeads shared_heads_of(const LayerSpec& layer);

class ModelShard {
 public:
  // Throws InvalidArgument(`field`) where the layers cannot be split over this many ranks, listing
  // the sizes that can; and InvalidArgument("pipeline_parallel_size") where there are fewer layers
  // than stages.
  ModelShard(const ModelConfig& whole, const RankCoordinates& coordinates,
             const std::string& field = "tensor_parallel_size");
  // The share of the first of `size` ranks, which need not exist.
  ModelShard(const ModelConfig& whole, int size);

  const RankCoordinates& coordinates() const { return coordinates_; }

  // How each layer is shared.
  bool is_whole() const { return size_ == 1; }
  int size() const { return size_; }
  Communicator* ranks() const { return ranks_; }

  struct Attention {
    AttentionHeads heads;        // of the whole model
    SharedHeads all_heads = {};  // of all ranks; for a whole model, one rank without a communicator
    // The sums over the inputs of the projection after the attention: the slices of this rank, and
    // every rank's run.
    KSlices slices;
    std::vector<SliceRun> runs = {};
  };
  // Of a layer with these heads.
  const Attention& attention(const AttentionHeads& heads) const;
  const HeadShare& share_of(const AttentionHeads& heads) const {
    return attention(heads).all_heads.by_rank[static_cast<size_t>(rank())];
  }
  // The part of a recurrent layer's state that this rank has.
  StateShape state_of(const LayerSpec& layer) const;
  // Whether some of `num_groups` equal runs of these heads, which are normalised by themselves, are
  // on several ranks.
  bool shares_norms(const AttentionHeads& heads, int num_groups) const;
  // The sums over the inputs of an MLP's second projection: slices and runs as above.
  KSlices inner_slices(int inner_size) const;
  std::vector<SliceRun> inner_runs(int inner_size) const;
  // The largest share of any rank.
  int64_t largest_inner(int inner_size) const;
  // By rank, the first of its tokens of the vocabulary, then the number of tokens: [size + 1].
  // Empty for a whole model.
  std::vector<int64_t> vocabulary(int64_t num_tokens) const;

  // `whole` reduced to this rank's layers, heads and inner sizes.
  ModelConfig config_of_share(const ModelConfig& whole) const;

 private:
  ModelShard(const ModelConfig& whole, const RankCoordinates& coordinates, int size,
             const std::string& field);

  int rank() const { return ranks_ != nullptr ? ranks_->rank() : 0; }
  Attention share(const AttentionHeads& heads) const;

  RankCoordinates coordinates_;
  Communicator* ranks_ = nullptr;  // of the place; null for one rank
  int size_ = 1;
  std::vector<Attention> attentions_;  // one for each shape of heads
};

// The sizes 1 .. kMaxTensorParallel that can share the model.
std::vector<int> tensor_parallel_sizes(const ModelConfig& config);

}  // namespace specdec
