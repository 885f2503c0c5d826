// Small random languages, and drafts and verifications over them that are simple enough to check by
// eye: what verification in the library is compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "speculation/draft_tree.h"
#include "speculation/verification.h"

namespace specdec::testing {

using Path = std::vector<int32_t>;

// Distributions of the next token after every path, fixed by the seed.
class ToyLanguage {
 public:
  // `scale`: standard deviation of the logits. A token is impossible with probability `zero_share`.
  ToyLanguage(int vocab_size, uint32_t seed, double scale = 1.2, double zero_share = 0.0)
      : vocab_size_(vocab_size), seed_(seed), scale_(scale), zero_share_(zero_share) {}

  int vocab_size() const { return vocab_size_; }

  const std::vector<float>& next(const Path& path) {
    const auto found = table_.find(path);
    return found != table_.end() ? found->second : table_.emplace(path, make(path)).first->second;
  }

  // Probability that the language goes on with `tokens`.
  double probability(const Path& tokens) {
    double result = 1.0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto& distribution = next({tokens.begin(), tokens.begin() + static_cast<int64_t>(i)});
      const double total = std::accumulate(distribution.begin(), distribution.end(), 0.0);
      result *= distribution[static_cast<size_t>(tokens[i])] / total;
    }
    return result;
  }

 private:
  std::vector<float> make(const Path& path) const {
    std::vector<uint32_t> words = {seed_};
    for (const int32_t token : path) words.push_back(static_cast<uint32_t>(token) + 1);
    std::seed_seq sequence(words.begin(), words.end());
    std::mt19937 random(sequence);
    std::normal_distribution<double> normal(0.0, scale_);
    std::vector<double> weights;
    for (int i = 0; i < vocab_size_; ++i) weights.push_back(std::exp(normal(random)));
    const size_t certain = random() % weights.size();
    for (size_t i = 0; i < weights.size(); ++i) {
      const bool is_zero = std::generate_canonical<double, 32>(random) < zero_share_;
      if (is_zero && i != certain) weights[i] = 0.0;
    }
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<float> result;
    for (const double weight : weights) result.push_back(static_cast<float>(weight / total));
    return result;
  }

  int vocab_size_;
  uint32_t seed_;
  double scale_;
  double zero_share_;
  std::map<Path, std::vector<float>> table_;
};

// Standard Gumbel noise of every token.
inline std::vector<double> gumbel_noise(int vocab_size, std::mt19937_64& random) {
  std::vector<double> noise;
  for (int i = 0; i < vocab_size; ++i) {
    const double v = (static_cast<double>(random() >> 12) + 0.5) * 0x1p-52;
    noise.push_back(-std::log(-std::log(v)));
  }
  return noise;
}

// Up to `count` draws without replacement: the tokens of the greatest log q + noise.
inline std::vector<int32_t> draw_distinct(std::span<const float> q, int count,
                                          std::span<const double> noise) {
  std::vector<std::pair<double, int32_t>> order;
  for (size_t i = 0; i < q.size(); ++i) {
    if (q[i] > 0.0f) order.push_back({-std::log(q[i]) - noise[i], static_cast<int32_t>(i)});
  }
  std::sort(order.begin(), order.end());
  std::vector<int32_t> tokens;
  for (const auto& [value, token] : order) {
    if (static_cast<int>(tokens.size()) < count) tokens.push_back(token);
  }
  return tokens;
}

// Tokens by falling probability.
inline std::vector<int32_t> most_likely(std::span<const float> q, int count) {
  return draw_distinct(q, count, std::vector<double>(q.size(), 0.0));
}

// Faults in the rules of speculative sampling.
enum class Fault {
  kNone,
  kInvertedRatio,        // accepts with min(1, q / p)
  kNotRenormalized,      // the residual's mass is left as it is for the next attempt
  kRejectedTokenStays,   // a rejected deterministic token is not taken out
  kDrawsFromTarget,      // draws from p, not from the residual
  kSharedCoin,           // draws with the last attempt's coin
  kWithReplacement,      // q still holds the tokens drawn before
  kStopsAtFirstRefusal,  // block: the first coin that fails ends it
  kTokenwiseResidual,    // block: draws from p - q, not from P p - q
  kTokenwiseChance,      // block: accepts each token with min(1, p / q)
};

using Probabilities = std::vector<double>;

inline void normalize(Probabilities& probs) {
  const double total = std::accumulate(probs.begin(), probs.end(), 0.0);
  if (total == 0.0) return;
  for (double& p : probs) p /= total;
}

inline Probabilities normalized(std::span<const float> weights) {
  Probabilities probs(weights.begin(), weights.end());
  normalize(probs);
  return probs;
}

inline Probabilities difference(const Probabilities& a, const Probabilities& b, double scale = 1) {
  Probabilities result;
  for (size_t i = 0; i < a.size(); ++i) result.push_back(std::max(scale * a[i] - b[i], 0.0));
  return result;
}

inline int32_t draw_from(const Probabilities& probs, double uniform) {
  const double total = std::accumulate(probs.begin(), probs.end(), 0.0);
  double sum = 0.0;
  for (size_t i = 0; i < probs.size(); ++i) {
    sum += probs[i];
    if (sum > uniform * total) return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(probs.size()) - 1;
}

// The distribution that attempt `index` at the node was drawn from.
inline Probabilities proposal_at(const DraftTree& tree, int node, size_t index, int vocab_size,
                                 Fault fault = Fault::kNone) {
  const auto attempts = tree.attempts(node);
  const int distribution = attempts[index].distribution;
  Probabilities q(static_cast<size_t>(vocab_size), 0.0);
  if (distribution < 0) {
    q[static_cast<size_t>(tree.tokens()[attempts[index].child])] = 1.0;
    return q;
  }
  q = normalized(tree.distribution(distribution));
  for (size_t i = 0; i < index && fault != Fault::kWithReplacement; ++i) {
    if (attempts[i].distribution != distribution) continue;
    q[static_cast<size_t>(tree.tokens()[attempts[i].child])] = 0.0;
  }
  normalize(q);
  return q;
}

// Recursive rejection in plain normalised vectors.
inline Accepted plain_rejection(const DraftTree& tree, const TargetSource& target,
                                const UniformSource& uniform, Fault fault = Fault::kNone) {
  Accepted result;
  for (int node = 0;;) {
    const int depth = tree.depth(node) + 1;
    Probabilities p = normalized(target(node));
    const auto attempts = tree.attempts(node);
    int accepted = -1;
    for (size_t i = 0; i < attempts.size() && accepted < 0; ++i) {
      const auto token = static_cast<size_t>(tree.tokens()[attempts[i].child]);
      const Probabilities q = proposal_at(tree, node, i, static_cast<int>(p.size()), fault);
      const double ratio =
          fault == Fault::kInvertedRatio ? q[token] / p[token] : p[token] / q[token];
      if (uniform(depth, static_cast<int>(i) + 1) < ratio) {
        accepted = attempts[i].child;
      } else if (fault != Fault::kRejectedTokenStays || attempts[i].distribution >= 0) {
        p = difference(p, q);
        if (fault != Fault::kNotRenormalized) normalize(p);
      }
    }
    if (accepted < 0) {
      if (fault == Fault::kDrawsFromTarget) p = normalized(target(node));
      const int index = fault == Fault::kSharedCoin ? static_cast<int>(attempts.size()) : 0;
      result.tokens.push_back(draw_from(p, uniform(depth, index)));
      return result;
    }
    node = accepted;
    result.nodes.push_back(node);
    result.tokens.push_back(tree.tokens()[node]);
  }
}

// Chances h_i of block verification and weights P_i, for i = 1 to the number of drafts.
struct BlockChances {
  std::vector<double> weights = {1.0};  // [num_drafts + 1]
  std::vector<double> chances = {1.0};  // [num_drafts + 1]
};

inline BlockChances block_chances(const DraftTree& tree, const TargetSource& target) {
  BlockChances block;
  for (int i = 1; i <= tree.num_drafts(); ++i) {
    const Probabilities p = normalized(target(i - 1));
    const int vocab_size = static_cast<int>(p.size());
    const Probabilities q = proposal_at(tree, i - 1, 0, vocab_size);
    const auto token = static_cast<size_t>(tree.tokens()[i]);
    const double weight = std::min(block.weights.back() * p[token] / q[token], 1.0);
    double chance = weight;
    if (i < tree.num_drafts()) {
      const Probabilities left =
          difference(normalized(target(i)), proposal_at(tree, i, 0, vocab_size), weight);
      const double mass = std::accumulate(left.begin(), left.end(), 0.0);
      chance = mass + 1.0 - weight > 0.0 ? mass / (mass + 1.0 - weight) : 1.0;
    }
    block.weights.push_back(weight);
    block.chances.push_back(chance);
  }
  return block;
}

// Block verification in plain normalised vectors.
inline Accepted plain_block(const DraftTree& tree, const TargetSource& target,
                            const UniformSource& uniform, Fault fault = Fault::kNone) {
  const BlockChances block = block_chances(tree, target);
  const int num_drafts = tree.num_drafts();
  int length = 0;
  for (int i = 1; i <= num_drafts; ++i) {
    double chance = block.chances[static_cast<size_t>(i)];
    if (fault == Fault::kTokenwiseChance) chance = block.weights[static_cast<size_t>(i)];
    if (uniform(i, 1) <= chance) {
      length = i;
    } else if (fault == Fault::kStopsAtFirstRefusal) {
      break;
    }
  }
  Accepted result;
  for (int node = 1; node <= length; ++node) {
    result.nodes.push_back(node);
    result.tokens.push_back(tree.tokens()[node]);
  }
  Probabilities p = normalized(target(length));
  if (length < num_drafts) {
    const double weight =
        fault == Fault::kTokenwiseResidual ? 1.0 : block.weights[static_cast<size_t>(length)];
    p = difference(p, proposal_at(tree, length, 0, static_cast<int>(p.size())), weight);
  }
  result.tokens.push_back(draw_from(p, uniform(length + 1, 0)));
  return result;
}

}  // namespace specdec::testing
