// How likely a drafted token is accepted once the token before it was, learned from the fate of
// earlier drafts. Pure.
#pragma once

#include <array>
#include <vector>

namespace specdec {

// What is known of a drafted token before it is verified.
struct DraftEvidence {
  int drafter = 0;
  // At least 1. Where the drafter continues a match: the tokens of the match and of the path above;
  // elsewhere the depth.
  int strength = 1;
  // The drafter's probability of the token given the one before it; negative: not known.
  double confidence = -1;
  bool is_first = true;  // of the tokens drafted after the same parent
};

// What sets one request apart: log-odds added to those of all requests, by drafter.
struct RequestAcceptance {
  struct Offset {
    double mean = 0;
    double variance = 1;
  };
  std::vector<Offset> offsets;
};

// The counts are shared by all requests: by drafter, strength and confidence. Old counts fade as
// new ones come, and a class with few counts leans on the class of the next lower strength.
class AcceptanceModel {
 public:
  explicit AcceptanceModel(int num_drafters);

  RequestAcceptance new_request() const;
  double probability(const RequestAcceptance& request, const DraftEvidence& evidence) const;
  // The request has got so many more tokens, so its offsets fade.
  void forget(RequestAcceptance& request, int num_tokens) const;
  void record(RequestAcceptance& request, const DraftEvidence& evidence, bool accepted);

 private:
  static constexpr int kStrengths = 7;
  static constexpr int kConfidences = 7;  // the last: first tokens of any confidence

  struct Count {
    double accepted = 0;
    double all = 0;
  };
  struct Counts {
    std::array<std::array<Count, kConfidences>, kStrengths> classes;
  };
  double shared_probability(const DraftEvidence& evidence) const;
  static void add(Count& count, bool accepted);

  std::vector<Counts> counts_;  // by drafter
};

}  // namespace specdec
