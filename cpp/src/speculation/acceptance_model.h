// How likely a drafted token is accepted once the token before it was, learned from the fate of
// earlier drafts. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "speculation/logistic_regression.h"

namespace specdec {

// What is known of a drafted token before it is verified.
struct DraftEvidence {
  int drafter = 0;
  // At least 1. Where the drafter continues a match: the tokens of the match and of the path above;
  // elsewhere the depth.
  int strength = 1;
  // The drafter's probability of the token given the one before it; negative: not known.
  double confidence = -1;
  bool is_first = true;  // of the drafter's tokens after the same parent
  // What other drafters proposed after the same parent.
  enum class Others : uint8_t { kNothing, kSameToken, kOtherTokens };
  Others others = Others::kNothing;
};

// What sets one request apart: log-odds added to those of all requests, by drafter.
struct RequestAcceptance {
  std::vector<UncertainWeight> offsets;
};

// Acceptance has log-odds a + b * logit(confidence) + the request's offset. `a` depends on the
// drafter, on the strength, on whether the token is the first one drafted after its parent, and on
// whether other drafters propose it, too; `b` on whether the confidence is below one half. Without
// a confidence, log-odds are those of a first token of that strength on average. Requests share all
// but the offset. Old outcomes fade as new ones come, and what was never seen leans on neighbouring
// strengths.
class AcceptanceModel {
 public:
  explicit AcceptanceModel(int num_drafters);

  RequestAcceptance new_request() const;
  // A probability, and what it is at least by what was seen so far.
  struct Chance {
    double expected = 0;
    double least = 0;
  };
  Chance chance(const RequestAcceptance& request, const DraftEvidence& evidence) const;
  double probability(const RequestAcceptance& request, const DraftEvidence& evidence) const {
    return chance(request, evidence).expected;
  }
  // The request has got so many more tokens, so its offsets fade.
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
