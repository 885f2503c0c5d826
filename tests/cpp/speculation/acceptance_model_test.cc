#include "speculation/acceptance_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace specdec {
namespace {

void feed(AcceptanceModel& model, RequestAcceptance& request, const DraftEvidence& evidence,
          double rate, int count, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform;
  for (int i = 0; i < count; ++i) {
    model.record(request, evidence, uniform(random) < rate);
    model.forget(request, 1);
  }
}

TEST(AcceptanceModel, WhatIsSureNearsWhatIsExpectedWithOutcomes) {
  AcceptanceModel model(1);
  RequestAcceptance request = model.new_request();
  const auto unsure = model.chance(request, {.confidence = 0.9});
  EXPECT_LT(unsure.least, 0.6 * unsure.expected);
  for (int i = 0; i < 200; ++i) model.record(request, {.confidence = 0.9}, i % 10 != 0);
  const auto sure = model.chance(request, {.confidence = 0.9});
  EXPECT_NEAR(sure.expected, 0.9, 0.05);
  EXPECT_LT(sure.least, sure.expected);
  EXPECT_GT(sure.least, 0.75);
  // Another request may be unlike it.
  const auto other = model.chance(model.new_request(), {.confidence = 0.9});
  EXPECT_LT(other.least, sure.least);
}

TEST(AcceptanceModel, ConvergesToTheRateOfEachClass) {
  AcceptanceModel model(1);
  RequestAcceptance request = model.new_request();
  const DraftEvidence sure{.strength = 8, .confidence = 0.95};
  const DraftEvidence unsure{.strength = 1, .confidence = 0.3};
  for (int i = 0; i < 20; ++i) {
    feed(model, request, sure, 0.9, 20, i);
    feed(model, request, unsure, 0.2, 20, i);
  }
  EXPECT_NEAR(model.probability(request, sure), 0.9, 0.1);
  EXPECT_NEAR(model.probability(request, unsure), 0.2, 0.1);
}

TEST(AcceptanceModel, ConfidenceMattersBeforeAnythingWasSeen) {
  const AcceptanceModel model(1);
  const RequestAcceptance request = model.new_request();
  double before = 0;
  for (const double confidence : {0.1, 0.3, 0.5, 0.7, 0.9, 1.0}) {
    const double now = model.probability(request, {.confidence = confidence});
    EXPECT_GT(now, before);
    before = now;
  }
}

TEST(AcceptanceModel, StrengthThatWasNeverSeenLeansOnTheNextLower) {
  AcceptanceModel model(1);
  RequestAcceptance request = model.new_request();
  feed(model, request, {.strength = 1}, 0.98, 200);
  const RequestAcceptance other = model.new_request();
  EXPECT_GT(model.probability(other, {.strength = 5}), 0.9);
}

TEST(AcceptanceModel, RequestsDifferAndLearnFromEachOther) {
  AcceptanceModel model(1);
  RequestAcceptance good = model.new_request();
  RequestAcceptance bad = model.new_request();
  for (int i = 0; i < 50; ++i) {
    feed(model, good, {}, 0.95, 2, i);
    feed(model, bad, {}, 0.2, 2, i + 1000);
  }
  EXPECT_GT(model.probability(good, {}), 0.8);
  EXPECT_LT(model.probability(bad, {}), 0.4);
  const double unknown = model.probability(model.new_request(), {});
  EXPECT_GT(unknown, 0.4);
  EXPECT_LT(unknown, 0.75);
}

TEST(AcceptanceModel, WhatWasKnownOfARequestIsForgotten) {
  AcceptanceModel model(1);
  RequestAcceptance request = model.new_request();
  RequestAcceptance others = model.new_request();
  feed(model, others, {}, 0.9, 400);
  feed(model, request, {}, 0.0, 8);
  EXPECT_LT(model.probability(request, {}), 0.6);
  model.forget(request, 1500);
  EXPECT_NEAR(model.probability(request, {}), model.probability(model.new_request(), {}), 0.01);
}

TEST(AcceptanceModel, AdaptsToAChange) {
  AcceptanceModel model(1);
  RequestAcceptance request = model.new_request();
  feed(model, request, {}, 0.05, 300);
  feed(model, request, {}, 0.95, 40);
  EXPECT_GT(model.probability(request, {}), 0.5);
}

TEST(AcceptanceModel, DraftersAreCountedApart) {
  AcceptanceModel model(2);
  RequestAcceptance request = model.new_request();
  feed(model, request, {.drafter = 0}, 1.0, 100);
  feed(model, request, {.drafter = 1}, 0.0, 100);
  EXPECT_GT(model.probability(request, {.drafter = 0}), 0.9);
  EXPECT_LT(model.probability(request, {.drafter = 1}), 0.1);
}

TEST(AcceptanceModel, LearnsWhatTheAgreementOfDraftersIsWorth) {
  using Others = DraftEvidence::Others;
  AcceptanceModel model(1);
  RequestAcceptance request = model.new_request();
  const DraftEvidence alone{.confidence = 0.6};
  const DraftEvidence agreed{.confidence = 0.6, .others = Others::kSameToken};
  const DraftEvidence contested{.confidence = 0.6, .others = Others::kOtherTokens};
  for (int i = 0; i < 100; ++i) {
    feed(model, request, alone, 0.6, 2, i);
    feed(model, request, agreed, 0.95, 2, i + 1000);
    feed(model, request, contested, 0.2, 2, i + 2000);
  }
  request = model.new_request();
  EXPECT_NEAR(model.probability(request, alone), 0.6, 0.1);
  EXPECT_NEAR(model.probability(request, agreed), 0.95, 0.05);
  EXPECT_NEAR(model.probability(request, contested), 0.2, 0.1);
}

// --- wide trees, whose confidences spread from 0.001 to 0.9

struct Head {
  double noise = 0.7;         // standard deviation of its log-probabilities' error
  double coverage = 1;        // share of the target's probability on tokens it knows
  double overconfidence = 0;  // by which a level more sharpens its distribution
  double request_spread = 0;  // standard deviation of log(noise) between requests
};

struct Child {
  double confidence = 0;
  double acceptance = 0;
};

// The ten likeliest children of a node, most likely first.
std::vector<Child> children_of(const Head& head, double noise, int depth, std::mt19937& random) {
  constexpr int kVocabSize = 60;
  constexpr int kWidth = 10;
  std::normal_distribution<double> normal;
  const double slope = 2.2 * std::exp(0.5 * normal(random));
  std::vector<Child> children(kVocabSize);
  Child total;
  for (int i = 0; i < kVocabSize; ++i) {
    const double log_probability = -slope * std::log(1 + i) + 0.3 * normal(random);
    children[i] = {.confidence = std::exp(log_probability * (1 + head.overconfidence * depth)),
                   .acceptance = std::exp(log_probability + noise * normal(random))};
    total.confidence += children[i].confidence;
    total.acceptance += children[i].acceptance / head.coverage;
  }
  std::ranges::sort(children, std::ranges::greater{}, &Child::confidence);
  children.resize(kWidth);
  for (Child& child : children) {
    child.confidence /= total.confidence;
    child.acceptance /= total.acceptance;
  }
  return children;
}

// Counts by depth and class of confidence: what a calibration without a formula would do.
class CountsByClass {
 public:
  double probability(int depth, double confidence) const {
    const auto it = counts_.find(class_of(depth, confidence));
    const auto [accepted, all] = it == counts_.end() ? std::pair(0.0, 0.0) : it->second;
    return (accepted + 0.5) / (all + 2);
  }
  void record(int depth, double confidence, bool accepted) {
    auto& [number, all] = counts_[class_of(depth, confidence)];
    number += accepted;
    all += 1;
  }

 private:
  static std::pair<int, int> class_of(int depth, double confidence) {
    constexpr std::array kBounds = {0.2, 0.4, 0.6, 0.8, 0.92};
    return {depth,
            static_cast<int>(std::ranges::lower_bound(kBounds, confidence) - kBounds.begin())};
  }
  std::map<std::pair<int, int>, std::pair<double, double>> counts_;
};

double log_loss(double probability, bool outcome) {
  return -std::log(outcome ? probability : 1.0 - probability);
}

struct Comparison {
  double log_loss = 0;  // per node
  double accepted = 0;  // of the 24 nodes that are rated best in a tree, on average
};
struct Comparisons {
  Comparison model, counts, confidence, truth;
};

constexpr int kDepth = 5;

class WideTrees {
 public:
  explicit WideTrees(const Head& head) : head_(head) {
    std::normal_distribution<double> normal;
    for (int i = 0; i < 4; ++i) {
      requests_.push_back({.acceptance = model_.new_request(),
                           .noise = head.noise * std::exp(head.request_spread * normal(random_))});
    }
  }

  Comparisons run() {
    Comparisons result;
    int num_nodes = 0;
    for (int step = 0; step < 800; ++step) num_nodes += verify(requests_[step % 4], result);
    for (Comparison* one : {&result.model, &result.counts, &result.confidence, &result.truth}) {
      one->log_loss /= num_nodes;
    }
    constexpr int kTrees = 200;
    for (int tree = 0; tree < kTrees; ++tree) choose(requests_[tree % 4], result, kTrees);
    return result;
  }

 private:
  struct Request {
    RequestAcceptance acceptance;
    double noise = 0;
  };

  // Levels of children until none of them is accepted. Returns how many there were.
  int verify(Request& request, Comparisons& result) {
    std::uniform_real_distribution<double> uniform;
    int num_nodes = 0;
    bool hit = true;
    for (int depth = 1; hit && depth <= kDepth; ++depth) {
      double coin = uniform(random_);
      hit = false;
      bool is_first = true;
      for (const Child& child : children_of(head_, request.noise, depth, random_)) {
        const bool accepted = coin >= 0 && coin < child.acceptance;
        coin -= child.acceptance;
        hit |= accepted;
        const DraftEvidence evidence{
            .strength = depth, .confidence = child.confidence, .is_first = is_first};
        is_first = false;
        const double expected = model_.probability(request.acceptance, evidence);
        const double counted = counts_.probability(depth, child.confidence);
        result.model.log_loss += log_loss(expected, accepted);
        result.counts.log_loss += log_loss(counted, accepted);
        result.confidence.log_loss += log_loss(std::min(child.confidence, 0.999), accepted);
        result.truth.log_loss += log_loss(std::min(child.acceptance, 0.999), accepted);
        model_.record(request.acceptance, evidence, accepted);
        counts_.record(depth, child.confidence, accepted);
        ++num_nodes;
      }
      model_.forget(request.acceptance, 1);
    }
    return num_nodes;
  }

  struct Node {
    double model = 1, counts = 1, confidence = 1, truth = 1;  // survivals
  };

  // Grows a tree ten wide by confidence, and adds what its best nodes by each rating would bring.
  void choose(const Request& request, Comparisons& result, int num_trees) {
    std::vector<Node> nodes;
    std::vector<Node> frontier(1);
    for (int depth = 1; depth <= kDepth; ++depth) {
      std::vector<Node> next;
      for (const Node& node : frontier) {
        bool is_first = true;
        for (const Child& child : children_of(head_, request.noise, depth, random_)) {
          const double expected = model_.probability(
              request.acceptance,
              {.strength = depth, .confidence = child.confidence, .is_first = is_first});
          is_first = false;
          next.push_back({.model = node.model * expected,
                          .counts = node.counts * counts_.probability(depth, child.confidence),
                          .confidence = node.confidence * child.confidence,
                          .truth = node.truth * child.acceptance});
        }
      }
      nodes.insert(nodes.end(), next.begin(), next.end());
      std::ranges::stable_sort(next, std::ranges::greater{}, &Node::confidence);
      next.resize(10);
      frontier = std::move(next);
    }
    const auto accepted_by = [&](double Node::* rating) {
      std::vector<Node> best = nodes;
      std::ranges::stable_sort(best, std::ranges::greater{}, rating);
      double sum = 0;
      for (int i = 0; i < 24; ++i) sum += best[i].truth;
      return sum / num_trees;
    };
    result.model.accepted += accepted_by(&Node::model);
    result.counts.accepted += accepted_by(&Node::counts);
    result.confidence.accepted += accepted_by(&Node::confidence);
    result.truth.accepted += accepted_by(&Node::truth);
  }

  Head head_;
  std::mt19937 random_{7};
  AcceptanceModel model_{1};
  CountsByClass counts_;
  std::vector<Request> requests_;
};

TEST(AcceptanceModel, CalibratesTheConfidencesOfWideTrees) {
  const std::vector<Head> heads = {{},
                                   {.noise = 0.3},
                                   {.coverage = 0.8},
                                   {.coverage = 0.5},
                                   {.overconfidence = 0.15},
                                   {.coverage = 0.8, .overconfidence = 0.15},
                                   {.overconfidence = -0.08},
                                   {.request_spread = 0.5}};
  for (const Head& head : heads) {
    const auto [model, counts, confidence, truth] = WideTrees(head).run();
    SCOPED_TRACE(::testing::Message()
                 << "noise " << head.noise << ", coverage " << head.coverage << ", overconfidence "
                 << head.overconfidence << ", spread of requests " << head.request_spread);
    EXPECT_LT(model.log_loss, counts.log_loss - 0.005);
    // Calibration loses little where none is needed.
    EXPECT_LT(model.log_loss, confidence.log_loss + 0.006);
    EXPECT_GT(model.accepted, 1.03 * counts.accepted);
    EXPECT_GT(model.accepted, 0.99 * confidence.accepted);
    EXPECT_GT(model.accepted, 0.85 * truth.accepted);
  }
}

}  // namespace
}  // namespace specdec
