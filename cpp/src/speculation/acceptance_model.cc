#include "speculation/acceptance_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace specdec {
namespace {

constexpr std::array<int, 7> kLeastStrength = {1, 2, 3, 4, 6, 9, 16};
constexpr int kNumStrengths = static_cast<int>(kLeastStrength.size());

// Weights of a regression: an intercept per class of strength and, where a confidence is known, the
// following.
enum Weight : int {
  kFirst = kNumStrengths,  // for the first token after a parent
  kSameToken,              // for a token that another drafter proposes, too
  kOtherTokens,            // for a token whose parent has other proposals from other drafters
  kUnlikely,               // slope of confidences below one half
  kLikely,                 // slope of confidences from one half on
  kNumWeights
};

// Priors, used before any draft was seen: tokens are accepted slightly less often than their
// confidence says, and neighbouring strengths behave alike.
constexpr double kIntercept = -0.2;
constexpr double kAverage = 0.4;  // log-odds without a confidence
constexpr double kUnlikelySlope = 0.8;
constexpr double kLikelySlope = 0.5;
constexpr double kInterceptVariance = 2.0;
// Variance of the difference between neighbouring intercepts
constexpr double kStrengthVariance = 0.3;
constexpr double kFirstVariance = 0.5;
constexpr double kOthersVariance = 0.5;
constexpr double kSlopeVariance = 0.3;
// With these drifts, the last few hundred outcomes count, and twice as many for the weights that
// all strengths share.
constexpr double kInterceptDrift = 1.5e-4;
constexpr double kSharedDrift = 5e-5;

constexpr double kOffsetVariance = 0.5;
constexpr double kOffsetMemory = 256;  // tokens after which offsets are forgotten
constexpr double kMostLogOdds = 7;     // limit for confidences and for acceptance
constexpr double kDoubt = 1.0;  // standard deviations from the expected log-odds down to the least

int strength_class(int strength) {
  const auto next = std::upper_bound(kLeastStrength.begin(), kLeastStrength.end(), strength);
  return std::max(0, static_cast<int>(next - kLeastStrength.begin()) - 1);
}

double clamp_log_odds(double log_odds) { return std::clamp(log_odds, -kMostLogOdds, kMostLogOdds); }

double probability_of(double log_odds) { return 1.0 / (1.0 + std::exp(-clamp_log_odds(log_odds))); }

class Features {
 public:
  Features(const DraftEvidence& evidence, bool with_confidence) {
    add(strength_class(evidence.strength), 1.0);
    if (!with_confidence) return;
    if (evidence.is_first) add(kFirst, 1.0);
    if (evidence.others == DraftEvidence::Others::kSameToken) add(kSameToken, 1.0);
    if (evidence.others == DraftEvidence::Others::kOtherTokens) add(kOtherTokens, 1.0);
    const double confidence = std::min(evidence.confidence, 1.0);
    const double log_odds = clamp_log_odds(std::log(confidence / (1.0 - confidence)));
    add(log_odds < 0 ? kUnlikely : kLikely, log_odds);
  }
  std::span<const LogisticRegression::Feature> all() const {
    return std::span(features_).first(size_);
  }

 private:
  void add(int weight, double value) { features_[size_++] = {.weight = weight, .value = value}; }

  std::array<LogisticRegression::Feature, 4> features_;
  size_t size_ = 0;
};

LogisticRegression make_regression(bool with_confidence) {
  std::array<UncertainWeight, kNumWeights> weights;
  const auto covariance = [](int strength) {
    return kInterceptVariance + kStrengthVariance * strength;
  };
  for (int i = 0; i < kNumStrengths; ++i) {
    weights[i] = {.mean = with_confidence ? kIntercept : kAverage,
                  .variance = covariance(i),
                  .drift = kInterceptDrift};
  }
  weights[kFirst] = {.mean = 0, .variance = kFirstVariance, .drift = kSharedDrift};
  for (const int weight : {kSameToken, kOtherTokens}) {
    weights[weight] = {.mean = 0, .variance = kOthersVariance, .drift = kSharedDrift};
  }
  weights[kUnlikely] = {.mean = kUnlikelySlope, .variance = kSlopeVariance, .drift = kSharedDrift};
  weights[kLikely] = {.mean = kLikelySlope, .variance = kSlopeVariance, .drift = kSharedDrift};
  const std::span<const UncertainWeight> all = weights;
  LogisticRegression regression(with_confidence ? all : all.first(kNumStrengths));
  for (int i = 0; i < kNumStrengths; ++i) {
    for (int j = 0; j < i; ++j) regression.set_covariance(i, j, covariance(j));
  }
  return regression;
}

}  // namespace

AcceptanceModel::AcceptanceModel(int num_drafters)
    : regressions_(num_drafters, {.with_confidence = make_regression(true),
                                  .without_confidence = make_regression(false)}) {}

RequestAcceptance AcceptanceModel::new_request() const {
  return {.offsets = std::vector<UncertainWeight>(regressions_.size(),
                                                  {.mean = 0, .variance = kOffsetVariance})};
}

AcceptanceModel::Chance AcceptanceModel::chance(const RequestAcceptance& request,
                                                const DraftEvidence& evidence) const {
  const bool with_confidence = evidence.confidence >= 0;
  const auto& [known, unknown] = regressions_[evidence.drafter];
  const LogisticRegression& regression = with_confidence ? known : unknown;
  const Features features(evidence, with_confidence);
  const UncertainWeight& offset = request.offsets[evidence.drafter];
  const double log_odds = regression.log_odds(features.all()) + offset.mean;
  const double deviation = std::sqrt(regression.variance(features.all()) + offset.variance);
  return {.expected = probability_of(log_odds),
          .least = probability_of(log_odds - kDoubt * deviation)};
}

void AcceptanceModel::forget(RequestAcceptance& request, int num_tokens) const {
  const double keep = std::exp(-num_tokens / kOffsetMemory);
  for (UncertainWeight& offset : request.offsets) {
    offset.mean *= keep;
    offset.variance = keep * keep * offset.variance + (1.0 - keep * keep) * kOffsetVariance;
  }
}

void AcceptanceModel::record(RequestAcceptance& request, const DraftEvidence& evidence,
                             bool accepted) {
  auto& [known, unknown] = regressions_[evidence.drafter];
  UncertainWeight& offset = request.offsets[evidence.drafter];
  if (evidence.confidence < 0) {
    unknown.record(Features(evidence, false).all(), offset, accepted);
    return;
  }
  UncertainWeight before = offset;
  known.record(Features(evidence, true).all(), offset, accepted);
  if (evidence.is_first) unknown.record(Features(evidence, false).all(), before, accepted);
}

}  // namespace specdec
