// Estimates how likely a drafted token is accepted once its parent was, learned from earlier
// drafts. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "speculation/logistic_regression.h"

namespace specdec {

// Everything known about a drafted token before it is verified.
struct DraftEvidence {
  int drafter = 0;
  // At least 1. For drafters that continue a match: the number of tokens in the match and in the
  // path above the token. For other drafters: the depth.
  int strength = 1;
  // The drafter's probability of the token given its parent; negative: not known.
  double confidence = -1;
  bool is_first = true;  // whether it is the drafter's first token after this parent
  // The proposals of other drafters after the same parent.
  enum class Others : uint8_t { kNothing, kSameToken, kOtherTokens };
  Others others = Others::kNothing;
};

// How one request differs from the others: log-odds added to the shared estimate, by drafter.
struct RequestAcceptance {
  std::vector<UncertainWeight> offsets;
};

// The log-odds of acceptance are a + b * logit(confidence) + the request's offset. `a` depends on
// the drafter, on the strength, on whether the token is the first one drafted after its parent, and
// on whether other drafters propose it, too; `b` on whether the confidence is below one half.
// Without a confidence, the log-odds are the average for a first token of that strength. Requests
// share everything but the offset. Old outcomes fade as new ones come, and a strength that was
// never seen takes its estimate from neighbouring ones.
class AcceptanceModel {
 public:
  explicit AcceptanceModel(int num_drafters);

  RequestAcceptance new_request() const;
  // A probability: the expected value, and a lower bound given the outcomes so far.
  struct Chance {
    double expected = 0;
    double least = 0;
  };
  Chance chance(const RequestAcceptance& request, const DraftEvidence& evidence) const;
  double probability(const RequestAcceptance& request, const DraftEvidence& evidence) const {
    return chance(request, evidence).expected;
  }
  // Fades the request's offsets after it has got `num_tokens` more tokens.
  void forget(RequestAcceptance& request, int num_tokens) const;
  void record(RequestAcceptance& request, const DraftEvidence& evidence, bool accepted);

 private:
  struct Regressions {
    LogisticRegression with_confidence;
    LogisticRegression without_confidence;
  };
  std::vector<Regressions> regressions_;  // by drafter
};

}  // namespace specdec
