#include "specdec/prepared_request.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "specdec/engine.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

using testing::refused_field;

ModelInfo info() {
  ModelInfo info;
  info.vocab_size = 50;
  info.max_model_len = 20;
  return info;
}

TEST(PreparedRequestTest, MessagesCallThePromptByItsName) {
  try {
    const PreparedRequest request(PreparedParams(info(), {}), {1, 50}, {}, "prompts[3]");
    FAIL() << "50 is out of vocabulary";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.field(), "prompts[3]");
    EXPECT_STREQ(error.what(),
                 "prompts[3]: has the token id 50, which is out of vocabulary: ids are in [0, 50)");
  }
}

TEST(PreparedRequestTest, WhatTheEngineDoesNotAdmitIsRefused) {
  const std::vector<int32_t> prompt = {1, 2};
  SamplingParams drafting;
  drafting.num_speculative_tokens = 4;
  ModelInfo speculates = info();
  speculates.num_speculative_tokens = 3;
  EXPECT_EQ(refused_field([&] { PreparedRequest(speculates, prompt, drafting); }),
            "num_speculative_tokens");
  EXPECT_EQ(refused_field([&] { PreparedRequest(info(), prompt, {}, {.priority = 1}); }),
            "priority");
  EXPECT_EQ(refused_field([&] { PreparedRequest(info(), std::vector<int32_t>(20, 1), {}); }),
            "prompt");
  speculates.num_speculative_tokens = 4;
  speculates.has_priorities = true;
  const PreparedRequest request(speculates, prompt, drafting, {.priority = 1});
  request.check_for(speculates);
  EXPECT_EQ(refused_field([&] { request.check_for(info()); }), "request");
}

TEST(PreparedRequestTest, PartsSampleAsTheWholeDoes) {
  SamplingParams params;
  params.n = 9;
  params.seed = std::numeric_limits<uint64_t>::max() - 1;
  params.logprobs = 1;
  params.prompt_logprobs = 1;
  const PreparedRequest whole(info(), {1, 2, 3}, params, {.cache_salt = "salt"});
  const SamplingParams first = whole.part(0, 6).params();
  EXPECT_EQ(first.n, 6);
  EXPECT_EQ(first.seed, params.seed);
  EXPECT_EQ(first.prompt_logprobs, 1);
  const PreparedRequest rest = whole.part(6, 3);
  EXPECT_EQ(rest.params().n, 3);
  EXPECT_EQ(rest.params().seed, 4U) << "seeds begin again at 2^64";
  EXPECT_EQ(rest.params().prompt_logprobs, std::nullopt);
  EXPECT_EQ(rest.params().logprobs, 1);
  EXPECT_EQ(rest.options().cache_salt, "salt");
  EXPECT_EQ(rest.prompt_token_ids(), whole.prompt_token_ids());
}

}  // namespace
}  // namespace specdec
