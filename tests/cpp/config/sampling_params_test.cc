#include "specdec/sampling_params.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "specdec/error.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kVocabSize = 100;

using Edit = std::function<void(SamplingParams&)>;

// The field an edit of the default parameters is refused for; empty if it is accepted.
std::string refused_field(const Edit& edit, int vocab_size = kVocabSize) {
  SamplingParams params;
  edit(params);
  try {
    params.validate(vocab_size);
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(error.field()), std::string::npos);
    return error.field();
  }
  return "";
}

template <class Value>
void expect_range(const std::string& field, Value SamplingParams::* member,
                  const std::vector<Value>& accepted, const std::vector<Value>& refused) {
  for (const Value& value : accepted) {
    EXPECT_EQ(refused_field([&](SamplingParams& params) { params.*member = value; }), "")
        << field << " = " << ::testing::PrintToString(value);
  }
  for (const Value& value : refused) {
    EXPECT_EQ(refused_field([&](SamplingParams& params) { params.*member = value; }), field)
        << field << " = " << ::testing::PrintToString(value);
  }
}

TEST(SamplingParamsTest, DefaultsAreValid) {
  EXPECT_EQ(refused_field([](SamplingParams&) {}), "");
  EXPECT_EQ(refused_field([](SamplingParams&) {}, 0), "");
}

TEST(SamplingParamsTest, LogitsProcessorsAreNotNull) {
  EXPECT_EQ(refused_field([](SamplingParams& params) { params.logits_processors = {nullptr}; }),
            "logits_processors");
}

TEST(SamplingParamsTest, RangesOfNumbers) {
  using P = SamplingParams;
  expect_range<int>("n", &P::n, {1, 100}, {0, -1});
  expect_range<float>("temperature", &P::temperature, {0.0f, 0.01f, 5.0f},
                      {-0.1f, kNan, kInf, -kInf});
  expect_range<float>("top_p", &P::top_p, {0.001f, 1.0f}, {0.0f, -0.1f, 1.001f, kNan, kInf});
  expect_range<int>("top_k", &P::top_k, {-1, 0, 1, 1000000}, {-2, -100});
  expect_range<float>("min_p", &P::min_p, {0.0f, 0.5f, 1.0f}, {-0.001f, 1.001f, kNan, kInf});
  expect_range<float>("presence_penalty", &P::presence_penalty, {-2.0f, 0.0f, 2.0f},
                      {-2.01f, 2.01f, kNan, kInf, -kInf});
  expect_range<float>("frequency_penalty", &P::frequency_penalty, {-2.0f, 0.0f, 2.0f},
                      {-2.01f, 2.01f, kNan, kInf, -kInf});
  expect_range<float>("repetition_penalty", &P::repetition_penalty, {0.01f, 1.0f, 3.0f},
                      {0.0f, -1.0f, kNan, kInf});
  expect_range<int>("max_tokens", &P::max_tokens, {0, 1, 1 << 30}, {-1});
  expect_range<int>("min_tokens", &P::min_tokens, {0, 16}, {-1, 17});
  expect_range<std::optional<int>>("logprobs", &P::logprobs, {std::nullopt, -1, 0, 20}, {-2});
  expect_range<std::optional<int>>("prompt_logprobs", &P::prompt_logprobs,
                                   {std::nullopt, -1, 0, 20}, {-2});
}

TEST(SamplingParamsTest, MessageNamesRangeAndValue) {
  SamplingParams params;
  params.top_p = 1.5f;
  EXPECT_STREQ(testing::error_of<InvalidArgument>([&] { params.validate(); }).what(),
               "top_p: must be in (0, 1], got 1.5");
}

TEST(SamplingParamsTest, MinTokensIsUnboundedWhereMaxTokensIs) {
  const Edit edit = [](SamplingParams& params) {
    params.max_tokens = 0;
    params.min_tokens = 1000;
  };
  EXPECT_EQ(refused_field(edit), "");
}

TEST(SamplingParamsTest, TokenIdsLieInTheVocabulary) {
  const std::vector<std::pair<std::string, std::function<void(SamplingParams&, int32_t)>>> fields =
      {
          {"stop_token_ids", [](auto& params, int32_t id) { params.stop_token_ids = {1, id}; }},
          {"eos_token_ids", [](auto& params, int32_t id) { params.eos_token_ids = {1, id}; }},
          {"allowed_token_ids",
           [](auto& params, int32_t id) { params.allowed_token_ids = {1, id}; }},
          {"logit_bias",
           [](auto& params, int32_t id) { params.logit_bias = {{1, 0.5f}, {id, 1.0f}}; }},
  };
  for (const auto& [field, set] : fields) {
    const auto with = [&set = set](int32_t id) {
      return [&set, id](SamplingParams& params) { set(params, id); };
    };
    EXPECT_EQ(refused_field(with(0)), "");
    EXPECT_EQ(refused_field(with(kVocabSize - 1)), "");
    EXPECT_EQ(refused_field(with(kVocabSize)), field);
    EXPECT_EQ(refused_field(with(-1)), field);
    EXPECT_EQ(refused_field(with(kVocabSize), 0), "");  // vocabulary unknown
    EXPECT_EQ(refused_field(with(-1), 0), field);
  }
}

TEST(SamplingParamsTest, LogitBiasIsFinite) {
  for (const float bias : {kNan, kInf, -kInf}) {
    EXPECT_EQ(refused_field([&](SamplingParams& params) { params.logit_bias = {{1, bias}}; }),
              "logit_bias");
  }
}

TEST(SamplingParamsTest, SomeTokenIsLeftToSample) {
  const Edit only_stops = [](SamplingParams& params) {
    params.allowed_token_ids = {3, 4};
    params.stop_token_ids = {3};
    params.eos_token_ids = {4};
    params.min_tokens = 1;
  };
  EXPECT_EQ(refused_field(only_stops), "allowed_token_ids");
  const Edit all_stop = [](SamplingParams& params) {
    params.stop_token_ids = {0, 1, 1};
    params.min_tokens = 1;
  };
  EXPECT_EQ(refused_field(all_stop, 2), "min_tokens");
  EXPECT_EQ(refused_field(all_stop, 3), "");
}

}  // namespace
}  // namespace specdec
