#include "speculation/acceptance_model.h"

#include <gtest/gtest.h>

#include <random>

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
  model.forget(request, 500);
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

}  // namespace
}  // namespace specdec
