// How likely a drafted token is accepted once the one before it was, learned from what became of
// earlier drafts. Pure.
#pragma once

#include <array>
#include <vector>

namespace specdec {

// What is known of a drafted token before it is verified.
struct DraftEvidence {
  int drafter = 0;
  // At least 1: tokens its prediction rests on, where the drafter continues a match; else its
  // depth.
  int strength = 1;
  // Probability by the drafter given the token before it; negative: not known.
  double confidence = -1;
  bool is_first = true;  // of the tokens drafted at its place
};

// What sets one request apart: log-odds beside those of all requests, by drafter.
struct RequestAcceptance {
  struct Offset {
    double mean = 0;
    double variance = 1;
  };
  std::vector<Offset> offsets;
};

// Shared by all requests: counts by drafter, strength and confidence, which fade as new ones come.
// A class with few counts leans on that of the next lower strength.
class AcceptanceModel {
 public:
  explicit AcceptanceModel(int num_drafters);

  RequestAcceptance new_request() const;
  double probability(const RequestAcceptance& request, const DraftEvidence& evidence) const;
  // The request went on by so many tokens: what was known of it counts less.
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
