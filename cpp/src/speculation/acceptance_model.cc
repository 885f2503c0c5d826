#include "speculation/acceptance_model.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace specdec {
namespace {

constexpr std::array<int, 7> kLeastStrength = {1, 2, 3, 4, 6, 9, 16};
constexpr std::array<double, 5> kUpperConfidence = {0.2, 0.4, 0.6, 0.8, 0.92};  // class bounds
// Expected acceptance of each class of confidence before any draft was seen; the last is that of an
// unknown confidence.
constexpr std::array<double, 7> kPrior = {0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.6};
constexpr double kPriorWeight = 3;    // drafts
constexpr double kMemory = 200;       // drafts of a class that count; older ones fade
constexpr double kVariance = 0.5;     // prior variance of a request's offset
constexpr double kOffsetMemory = 64;  // tokens after which offsets are forgotten
constexpr double kLeast = 0.002;      // probabilities stay clear of 0 and 1
constexpr double kLongestOffset = 4;  // log-odds

int strength_class(int strength) {
  const auto next = std::upper_bound(kLeastStrength.begin(), kLeastStrength.end(), strength);
  return std::max(0, static_cast<int>(next - kLeastStrength.begin()) - 1);
}

int confidence_class(double confidence) {
  if (confidence < 0) return static_cast<int>(kPrior.size()) - 1;
  const auto at = std::lower_bound(kUpperConfidence.begin(), kUpperConfidence.end(), confidence);
  return static_cast<int>(at - kUpperConfidence.begin());
}

double log_odds(double probability) { return std::log(probability / (1.0 - probability)); }

}  // namespace

AcceptanceModel::AcceptanceModel(int num_drafters) : counts_(num_drafters) {}

RequestAcceptance AcceptanceModel::new_request() const {
  return {.offsets = std::vector<RequestAcceptance::Offset>(counts_.size(),
                                                            {.mean = 0, .variance = kVariance})};
}

double AcceptanceModel::shared_probability(const DraftEvidence& evidence) const {
  const int confidence = confidence_class(evidence.confidence);
  double expected = kPrior[confidence];
  for (int i = 0; i <= strength_class(evidence.strength); ++i) {
    const Count& count = counts_[evidence.drafter].classes[i][confidence];
    expected = (count.accepted + kPriorWeight * expected) / (count.all + kPriorWeight);
  }
  return std::clamp(expected, kLeast, 1.0 - kLeast);
}

double AcceptanceModel::probability(const RequestAcceptance& request,
                                    const DraftEvidence& evidence) const {
  const double odds =
      log_odds(shared_probability(evidence)) + request.offsets[evidence.drafter].mean;
  return 1.0 / (1.0 + std::exp(-odds));
}

void AcceptanceModel::forget(RequestAcceptance& request, int num_tokens) const {
  const double keep = std::exp(-num_tokens / kOffsetMemory);
  for (RequestAcceptance::Offset& offset : request.offsets) {
    offset.mean *= keep;
    offset.variance = keep * keep * offset.variance + (1.0 - keep * keep) * kVariance;
  }
}

void AcceptanceModel::add(Count& count, bool accepted) {
  const double keep = count.all >= kMemory ? (kMemory - 1) / count.all : 1.0;
  count.accepted = count.accepted * keep + (accepted ? 1.0 : 0.0);
  count.all = count.all * keep + 1.0;
}

// The request's offset is the mean of a Gaussian, corrected as in an extended Kalman filter.
void AcceptanceModel::record(RequestAcceptance& request, const DraftEvidence& evidence,
                             bool accepted) {
  const double expected = probability(request, evidence);
  RequestAcceptance::Offset& offset = request.offsets[evidence.drafter];
  const double information = std::max(expected * (1.0 - expected), 0.02);
  offset.variance /= 1.0 + offset.variance * information;
  offset.mean += offset.variance * ((accepted ? 1.0 : 0.0) - expected);
  offset.mean = std::clamp(offset.mean, -kLongestOffset, kLongestOffset);

  auto& classes = counts_[evidence.drafter].classes[strength_class(evidence.strength)];
  add(classes[confidence_class(evidence.confidence)], accepted);
  if (evidence.confidence >= 0 && evidence.is_first) add(classes.back(), accepted);
}

}  // namespace specdec
