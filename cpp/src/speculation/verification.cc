#include "speculation/verification.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/philox.h"
#include "core/str_cat.h"

namespace specdec {
namespace {

// NaN counts as probability 0.
double positive(double x) { return x > 0.0 ? x : 0.0; }

double probability_in(std::span<const float> distribution, int32_t token) {
  const bool inside = token >= 0 && static_cast<size_t>(token) < distribution.size();
  return inside ? positive(distribution[static_cast<size_t>(token)]) : 0.0;
}

// The distribution a drafted token was drawn from: weights / mass, or one-hot at the token.
struct Proposal {
  int32_t token = -1;
  std::span<const float> weights;  // empty: one-hot
  std::vector<int32_t> drawn;      // rising; tokens whose weight counts as 0
  double mass = 1.0;

  double probability() const {
    return weights.empty() ? 1.0 : probability_in(weights, token) / mass;
  }
};

double sum_without(std::span<const float> weights, std::span<const int32_t> drawn) {
  double sum = 0.0;
  size_t begin = 0;
  const auto add_until = [&](size_t end) {
    for (; begin < std::min(end, weights.size()); ++begin) sum += positive(weights[begin]);
  };
  for (const int32_t token : drawn) {
    add_until(static_cast<size_t>(token));
    begin = static_cast<size_t>(token) + 1;
  }
  add_until(weights.size());
  return sum;
}

// The proposal of the last of `attempts`, given that the attempts before it failed.
Proposal proposal_of(const DraftTree& tree, std::span<const DraftTree::Attempt> attempts) {
  const DraftTree::Attempt& last = attempts.back();
  Proposal proposal = {.token = tree.tokens()[last.child], .weights = {}, .drawn = {}};
  if (last.distribution < 0) return proposal;
  const std::span<const float> weights = tree.distribution(last.distribution);
  for (const DraftTree::Attempt& earlier : attempts.first(attempts.size() - 1)) {
    if (earlier.distribution != last.distribution) continue;
    const int32_t token = tree.tokens()[earlier.child];
    if (token >= 0) proposal.drawn.push_back(token);
  }
  const bool is_drawn_again = std::ranges::count(proposal.drawn, proposal.token) > 0;
  if (is_drawn_again || probability_in(weights, proposal.token) == 0.0) return proposal;
  proposal.weights = weights;
  std::ranges::sort(proposal.drawn);
  if (!proposal.drawn.empty()) proposal.mass = sum_without(weights, proposal.drawn);
  return proposal;
}

// The target's distribution after failed proposals were subtracted, stored as weights / mass.
class Remainder {
 public:
  explicit Remainder(std::span<const float> target) : target_(target) {}

  double probability(int32_t token) const {
    if (weights_.empty()) return probability_in(target_, token);
    const bool inside = token >= 0 && static_cast<size_t>(token) < weights_.size();
    return inside ? weights_[static_cast<size_t>(token)] / mass_ : 0.0;
  }

  // p becomes norm(max(scale * p - q, 0)). If nothing is left, which only rounding can cause, p
  // stays unchanged. Returns the remaining mass before normalising.
  double subtract(const Proposal& proposal, double scale = 1.0) {
    std::vector<double> left(target_.size());
    for (size_t i = 0; i < left.size(); ++i) {
      left[i] = scale * (weights_.empty() ? positive(target_[i]) : weights_[i] / mass_);
    }
    if (proposal.weights.empty()) {
      take(left, proposal.token, 1.0);
    } else {
      take_all(left, proposal);
    }
    const double mass = std::accumulate(left.begin(), left.end(), 0.0);
    if (mass > 0.0) {
      weights_ = std::move(left);
      mass_ = mass;
    }
    return mass;
  }

  // The token at which the cumulative distribution passes `uniform`.
  int32_t draw(double uniform) const {
    const auto weight = [&](size_t i) {
      return weights_.empty() ? positive(target_[i]) : weights_[i];
    };
    double total = 0.0;
    for (size_t i = 0; i < target_.size(); ++i) total += weight(i);
    double sum = 0.0;
    int32_t last = 0;
    for (size_t i = 0; i < target_.size(); ++i) {
      if (weight(i) == 0.0) continue;
      sum += weight(i);
      last = static_cast<int32_t>(i);
      if (sum > uniform * total) break;
    }
    return last;
  }

 private:
  static void take(std::vector<double>& left, int32_t token, double amount) {
    const bool inside = token >= 0 && static_cast<size_t>(token) < left.size();
    if (!inside) return;
    double& value = left[static_cast<size_t>(token)];
    value = positive(value - amount);
  }

  static void take_all(std::vector<double>& left, const Proposal& proposal) {
    const auto is_inside = [&](int32_t token) { return static_cast<size_t>(token) < left.size(); };
    std::vector<double> kept;
    for (const int32_t token : proposal.drawn) kept.push_back(is_inside(token) ? left[token] : 0.0);
    const size_t size = std::min(left.size(), proposal.weights.size());
    const double scale = 1.0 / proposal.mass;
    for (size_t i = 0; i < size; ++i) {
      left[i] = positive(left[i] - positive(proposal.weights[i]) * scale);
    }
    for (size_t i = 0; i < kept.size(); ++i) {
      if (is_inside(proposal.drawn[i])) left[proposal.drawn[i]] = kept[i];
    }
  }

  std::span<const float> target_;  // [vocab_size]
  std::vector<double> weights_;    // [vocab_size]; empty: the target itself
  double mass_ = 1.0;
};

void accept_node(const DraftTree& tree, int node, Accepted& result) {
  result.nodes.push_back(node);
  result.tokens.push_back(tree.tokens()[node]);
}

// The proposals of a chain's nodes after the root.
std::vector<Proposal> chain_proposals(const DraftTree& tree) {
  SPECDEC_CHECK(tree.is_chain());
  std::vector<Proposal> proposals;
  for (int node = 0; node < tree.num_drafts(); ++node) {
    const auto attempts = tree.attempts(node);
    SPECDEC_CHECK(!attempts.empty());
    for (size_t i = 1; i < attempts.size(); ++i) SPECDEC_CHECK_LT(attempts[i].distribution, 0);
    proposals.push_back(proposal_of(tree, attempts.first(1)));
  }
  return proposals;
}

}  // namespace

UniformSource step_uniforms(uint64_t seed, int64_t root_position) {
  return [seed, root_position](int depth, int index) {
    SPECDEC_CHECK(index >= 0 && index < kMaxUniformIndex);
    const auto position = static_cast<uint64_t>(root_position);
    const auto words =
        philox4x32_10({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                       uniform_counter(depth, index), kVerificationStream},
                      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    return uniform_of(static_cast<uint64_t>(words[1]) << 32 | words[0]);
  };
}

Accepted accept_exact(const DraftTree& tree, std::span<const int32_t> sampled) {
  SPECDEC_CHECK_EQ(static_cast<int>(sampled.size()), tree.num_nodes());
  Accepted result;
  for (int node = DraftTree::kRoot;;) {
    const int child = tree.find_child(node, sampled[node]);
    if (child < 0) {
      result.tokens.push_back(sampled[node]);
      return result;
    }
    accept_node(tree, child, result);
    node = child;
  }
}

Accepted accept_rejection(const DraftTree& tree, const TargetSource& target,
                          const UniformSource& uniform) {
  Accepted result;
  for (int node = DraftTree::kRoot;;) {
    const int depth = tree.depth(node) + 1;
    const auto attempts = tree.attempts(node);
    Remainder remainder(target(node));
    int accepted = -1;
    for (size_t i = 0; i < attempts.size(); ++i) {
      const Proposal proposal = proposal_of(tree, attempts.first(i + 1));
      const double coin = uniform(depth, coin_of(static_cast<int>(i)));
      if (coin * proposal.probability() < remainder.probability(proposal.token)) {
        accepted = attempts[i].child;
        break;
      }
      remainder.subtract(proposal);
    }
    if (accepted < 0) {
      result.tokens.push_back(remainder.draw(uniform(depth, kFinalDraw)));
      return result;
    }
    accept_node(tree, accepted, result);
    node = accepted;
  }
}

Accepted accept_block(const DraftTree& tree, const TargetSource& target,
                      const UniformSource& uniform) {
  const std::vector<Proposal> proposals = chain_proposals(tree);
  const int num_drafts = tree.num_drafts();
  double weight = 1.0;  // P_i: the share of the drafted path's probability that the target supports
  double accepted_weight = 1.0;
  int num_accepted = 0;
  for (int i = 1; i <= num_drafts; ++i) {
    const Proposal& proposal = proposals[i - 1];
    const double backed = weight * probability_in(target(i - 1), proposal.token);
    weight = std::min(backed / proposal.probability(), 1.0);
    double chance = weight;
    if (i < num_drafts) {
      const double residual = Remainder(target(i)).subtract(proposals[i], weight);
      const double both = residual + (1.0 - weight);
      chance = both > 0.0 ? residual / both : 1.0;
    }
    if (uniform(i, coin_of(0)) <= chance) {
      num_accepted = i;
      accepted_weight = weight;
    }
  }
  Accepted result;
  for (int node = 1; node <= num_accepted; ++node) accept_node(tree, node, result);
  Remainder remainder(target(num_accepted));
  if (num_accepted < num_drafts) remainder.subtract(proposals[num_accepted], accepted_weight);
  result.tokens.push_back(remainder.draw(uniform(num_accepted + 1, kFinalDraw)));
  return result;
}

Accepted accept_synthetic(const DraftTree& tree, std::span<const double> rates,
                          std::span<const int32_t> sampled, const UniformSource& uniform) {
  SPECDEC_CHECK_EQ(static_cast<int>(sampled.size()), tree.num_nodes());
  Accepted result;
  int node = DraftTree::kRoot;
  for (size_t i = 0; i < rates.size() && !tree.attempts(node).empty(); ++i) {
    if (!(uniform(tree.depth(node) + 1, coin_of(0)) < rates[i])) break;
    node = tree.attempts(node).front().child;
    accept_node(tree, node, result);
  }
  result.tokens.push_back(sampled[node]);
  return result;
}

}  // namespace specdec
