// The C API, through a client in C, against the C++ API.
#include "specdec/c_api.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "c_api/c_client.h"
#include "specdec/error.h"
#include "testing/tiny_engine.h"

namespace specdec::testing {
namespace {

using Json = nlohmann::json;
using tiny_llama::prompt_of;

struct EngineCloser {
  void operator()(specdec_engine* engine) const { specdec_engine_close(engine); }
};
using OpenedEngine = std::unique_ptr<specdec_engine, EngineCloser>;

// A status with its message, which is freed.
struct Result {
  specdec_status status;
  std::string message;
};

template <class Call>
Result result_of(const Call& call) {
  char* error = nullptr;
  const specdec_status status = call(&error);
  EXPECT_EQ(error == nullptr, status == SPECDEC_OK);
  const std::string message = error == nullptr ? "" : error;
  specdec_free(error);
  return {status, message};
}

class CApiTest : public tiny_llama::EngineFixture {
 protected:
  Json options() const {
    return {{"model", target_.path()}, {"device", "cpu"}, {"dtype", "float32"}, {"num_threads", 2}};
  }
  Json options_with(const Json& speculative) const {
    Json with = options();
    with["speculative_config"] = speculative;
    return with;
  }
  Json ngram() const { return {{"method", "ngram"}, {"num_speculative_tokens", 4}}; }
  Json draft_model() const {
    return {{"method", "draft_model"},
            {"model", draft_.path()},
            {"num_speculative_tokens", 3},
            {"draft_length_policy", "fixed"}};
  }

  OpenedEngine open(const Json& options) const {
    specdec_engine* engine = nullptr;
    const Result result = result_of(
        [&](char** error) { return specdec_engine_open(options.dump().c_str(), &engine, error); });
    EXPECT_EQ(result.status, SPECDEC_OK) << result.message;
    return OpenedEngine(engine);
  }
  OpenedEngine open() const { return open(options()); }

  Result refusal_of(const std::string& options) const {
    specdec_engine* engine = reinterpret_cast<specdec_engine*>(8);
    const Result result = result_of(
        [&](char** error) { return specdec_engine_open(options.c_str(), &engine, error); });
    EXPECT_EQ(engine, nullptr);
    return result;
  }
};

std::vector<int32_t> tokens_of(const collected& result, int index = 0) {
  return {result.token_ids[index], result.token_ids[index] + result.num_token_ids[index]};
}

Result add(const OpenedEngine& engine, uint64_t id, const std::vector<int32_t>& prompt,
           const char* params) {
  return result_of([&](char** error) {
    return specdec_add_request(engine.get(), id, prompt.data(), prompt.size(), params, error);
  });
}

Result step(const OpenedEngine& engine, collected* result) {
  return result_of(
      [&](char** error) { return specdec_step(engine.get(), collect, result, error); });
}

Json json_of(const OpenedEngine& engine,
             specdec_status (*get)(const specdec_engine*, char**, char**)) {
  char* text = nullptr;
  EXPECT_EQ(get(engine.get(), &text, nullptr), SPECDEC_OK);
  Json parsed = Json::parse(text);
  specdec_free(text);
  return parsed;
}

TEST_F(CApiTest, ClientInCGetsTheTokensOfTheCppApiWithAndWithoutDrafts) {
  SamplingParams params;
  params.temperature = 0.8f;
  params.max_tokens = 40;
  params.seed = 7;
  params.logprobs = 0;
  params.ignore_eos = true;
  const std::vector<int32_t> prompt = prompt_of(3, 12);
  Engine engine(config());
  const Completion expected = engine.generate({prompt}, params)[0][0];
  const char* json =
      R"({"temperature": 0.8, "max_tokens": 40, "seed": 7, "logprobs": 0, "ignore_eos": true})";
  for (const Json& asked : {options(), options_with(ngram()), options_with(draft_model())}) {
    SCOPED_TRACE(asked.dump());
    collected result = {};
    const char* problem =
        generate_once(asked.dump().c_str(), prompt.data(), prompt.size(), json, &result);
    ASSERT_EQ(problem, nullptr) << problem;
    EXPECT_EQ(tokens_of(result), expected.token_ids);
    for (size_t i = 0; i < expected.logprobs.size(); ++i) {
      EXPECT_EQ(result.logprobs[0][i], expected.logprobs[i][0].logprob);
    }
    EXPECT_EQ(result.finish_reason[0], SPECDEC_FINISH_LENGTH);
    EXPECT_EQ(result.num_finished, 1);
    EXPECT_GT(result.num_outputs, 1);  // they came as they were generated
    if (asked.contains("speculative_config") &&
        asked["speculative_config"]["method"] == "draft_model") {
      EXPECT_GT(result.num_accepted_tokens, 0);
    }
  }
}

TEST_F(CApiTest, StepsRunRequestsTogether) {
  Engine reference(config());
  SamplingParams params;
  params.max_tokens = 9;
  params.seed = 5;
  params.n = 2;
  const auto expected = reference.generate({prompt_of(1), prompt_of(2)}, params);
  const OpenedEngine engine = open();
  collected results[2] = {};
  for (uint64_t id : {0, 1}) {
    EXPECT_EQ(add(engine, id, prompt_of(static_cast<int>(id) + 1),
                  R"({"max_tokens": 9, "seed": 5, "n": 2})")
                  .status,
              SPECDEC_OK);
  }
  const auto sort = [](const specdec_output* output, void* user_data) {
    return collect(output, static_cast<collected*>(user_data) + output->request_id);
  };
  EXPECT_EQ(specdec_has_unfinished_requests(engine.get()), 1);
  while (specdec_has_unfinished_requests(engine.get()) == 1) {
    ASSERT_EQ(specdec_step(engine.get(), sort, results, nullptr), SPECDEC_OK);
  }
  for (int request : {0, 1}) {
    for (int index : {0, 1}) {
      EXPECT_EQ(tokens_of(results[request], index), expected[request][index].token_ids);
    }
    EXPECT_EQ(results[request].num_finished, 1);
  }
  const Json stats = json_of(engine, specdec_engine_stats);
  EXPECT_EQ(stats["num_finished_requests"], 2);
  EXPECT_EQ(stats["num_generation_tokens"], 36);
}

TEST_F(CApiTest, CallbackAndAbortEndRequests) {
  const OpenedEngine engine = open();
  const std::vector<int32_t> prompt = prompt_of(1);
  const char* params = R"({"max_tokens": 200, "ignore_eos": true})";
  collected result = {};
  result.num_outputs_to_stop_at = 3;
  EXPECT_EQ(specdec_generate(engine.get(), prompt.data(), prompt.size(), params, collect, &result,
                             nullptr),
            SPECDEC_OK);
  EXPECT_EQ(result.num_outputs, 3);

  ASSERT_EQ(add(engine, 8, prompt, params).status, SPECDEC_OK);
  const Result again = add(engine, 8, prompt, params);
  EXPECT_EQ(again.status, SPECDEC_INVALID_ARGUMENT);
  const Result beside = result_of([&](char** error) {
    return specdec_generate(engine.get(), prompt.data(), prompt.size(), params, collect, &result,
                            error);
  });
  EXPECT_EQ(beside.status, SPECDEC_INVALID_ARGUMENT);
  EXPECT_NE(beside.message.find("runs alone"), std::string::npos) << beside.message;
  EXPECT_EQ(specdec_abort_request(engine.get(), 9), 0);
  EXPECT_EQ(specdec_abort_request(engine.get(), 8), 1);
  EXPECT_EQ(specdec_abort_request(engine.get(), 8), 0);
  EXPECT_EQ(specdec_has_unfinished_requests(engine.get()), 0);

  collected stopped = {};
  stopped.num_outputs_to_stop_at = 2;
  ASSERT_EQ(add(engine, 8, prompt, params).status, SPECDEC_OK);
  while (specdec_has_unfinished_requests(engine.get()) == 1) step(engine, &stopped);
  EXPECT_EQ(stopped.num_outputs, 2);

  ASSERT_EQ(add(engine, 8, prompt, R"({"n": 2, "max_tokens": 5, "ignore_eos": true})").status,
            SPECDEC_OK);
  collected half = {};
  step(engine, &half);
  EXPECT_EQ(specdec_stop_completion(engine.get(), 8, 1), 1);
  EXPECT_EQ(specdec_stop_completion(engine.get(), 8, 1), 0);
  while (specdec_has_unfinished_requests(engine.get()) == 1) step(engine, &half);
  EXPECT_EQ(half.num_token_ids[0], 5u);
  EXPECT_LT(half.num_token_ids[1], 5u);
}

TEST_F(CApiTest, TellsWhatWasLoadedAndCounted) {
  const OpenedEngine engine = open(options_with(draft_model()));
  const Json info = json_of(engine, specdec_engine_info);
  EXPECT_EQ(info["vocab_size"], tiny_llama::kVocab);
  EXPECT_EQ(info["dtype"], "float32");
  EXPECT_EQ(info["num_speculative_tokens"], 3);
  EXPECT_TRUE(info["eos_token_ids"].is_array());

  const std::vector<int32_t> prompt = prompt_of(2, 40);
  collected result = {};
  const char* params = R"({"max_tokens": 30, "temperature": 0, "ignore_eos": true})";
  ASSERT_EQ(specdec_generate(engine.get(), prompt.data(), prompt.size(), params, collect, &result,
                             nullptr),
            SPECDEC_OK);
  const Json stats = json_of(engine, specdec_engine_stats);
  EXPECT_EQ(stats["num_prompt_tokens"], 40);
  EXPECT_EQ(stats["num_generation_tokens"], 30);
  EXPECT_EQ(stats["acceptance"]["num_accepted_tokens"], result.num_accepted_tokens);
  EXPECT_EQ(stats["acceptance"]["accepted_per_position"].size(), 3u);
  EXPECT_EQ(stats["drafters"][0]["name"], "draft_model");
  EXPECT_GT(specdec_reset_prefix_cache(engine.get()), 0);
  EXPECT_EQ(specdec_reset_prefix_cache(engine.get()), 0);
}

TEST_F(CApiTest, BadOptionsAreRefusedByName) {
  struct Case {
    Json change;  // merged into the options
    specdec_status status;
    std::string part;  // of the message
  };
  const std::vector<Case> cases = {
      {{{"modle", "x"}}, SPECDEC_INVALID_ARGUMENT, "\"modle\""},
      {{{"model", nullptr}}, SPECDEC_INVALID_ARGUMENT, "model"},
      {{{"model", "/nowhere"}}, SPECDEC_CHECKPOINT_ERROR, "/nowhere"},
      {{{"model", 3}}, SPECDEC_INVALID_ARGUMENT, "model"},
      {{{"dtype", "bf16"}}, SPECDEC_INVALID_ARGUMENT, "dtype"},
      {{{"max_num_seqs", -1}}, SPECDEC_INVALID_ARGUMENT, "max_num_seqs"},
      {{{"max_num_seqs", 1.5}}, SPECDEC_INVALID_ARGUMENT, "max_num_seqs"},
      {{{"max_num_seqs", 1e30}}, SPECDEC_INVALID_ARGUMENT, "max_num_seqs"},
      {{{"max_num_seqs", 1ull << 40}}, SPECDEC_INVALID_ARGUMENT, "max_num_seqs"},
      {{{"seed", -1}}, SPECDEC_INVALID_ARGUMENT, "seed"},
      {{{"enforce_eager", 1}}, SPECDEC_INVALID_ARGUMENT, "enforce_eager"},
      {{{"hf_overrides", "x"}}, SPECDEC_INVALID_ARGUMENT, "hf_overrides"},
      {{{"device", "tpu"}}, SPECDEC_INVALID_ARGUMENT, "device"},
      {{{"speculative_config", "ngram"}}, SPECDEC_INVALID_ARGUMENT, "speculative_config"},
      {{{"speculative_config", {{"method", "ngram"}}}},
       SPECDEC_INVALID_ARGUMENT,
       "speculative_config.num_speculative_tokens"},
      {{{"speculative_config", {{"num_speculative_tokens", 4}}}},
       SPECDEC_INVALID_ARGUMENT,
       "speculative_config.method"},
      {{{"speculative_config", {{"method", "ngram"}, {"quantization", "int8"}}}},
       SPECDEC_INVALID_ARGUMENT,
       "speculative_config.quantization"},
      {{{"speculative_config",
         {{"method", "ngram"}, {"suffix_corpus", Json::array({Json::array({1})})}}}},
       SPECDEC_INVALID_ARGUMENT,
       "speculative_config.suffix_corpus"},
      {{{"speculative_config", {{"method", "custom_class"}, {"num_speculative_tokens", 4}}}},
       SPECDEC_INVALID_ARGUMENT,
       "speculative_config.method"},
      {{{"speculative_config",
         {{"num_speculative_tokens", 4}, {"drafters", Json::array({{{"methd", "ngram"}}})}}}},
       SPECDEC_INVALID_ARGUMENT,
       "speculative_config.drafters[0].method"},
      {{{"speculative_config",
         {{"method", "ngram"},
          {"num_speculative_tokens", 4},
          {"num_speculative_tokens_per_batch_size", Json::array({Json::array({1, 2})})}}}},
       SPECDEC_INVALID_ARGUMENT,
       "num_speculative_tokens_per_batch_size"},
  };
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.change.dump());
    Json asked = options();
    asked.update(bad.change);
    const Result result = refusal_of(asked.dump());
    EXPECT_EQ(result.status, bad.status) << result.message;
    EXPECT_NE(result.message.find(bad.part), std::string::npos) << result.message;
  }
}

TEST_F(CApiTest, BadJsonAndNullPointersAreRefused) {
  for (const std::string text : {"{", "[1]", "{\"model\": \"\xff\"}", "nul"}) {
    EXPECT_EQ(refusal_of(text).status, SPECDEC_INVALID_ARGUMENT) << text;
  }
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "[";
  EXPECT_EQ(refusal_of(deep).status, SPECDEC_INVALID_ARGUMENT);
  const Result no_options = result_of([](char** error) {
    specdec_engine* engine = nullptr;
    return specdec_engine_open(nullptr, &engine, error);
  });
  EXPECT_EQ(no_options.status, SPECDEC_INVALID_ARGUMENT);
  EXPECT_EQ(no_options.message, "options_json: must not be NULL");
  EXPECT_EQ(specdec_engine_open("{}", nullptr, nullptr), SPECDEC_INVALID_ARGUMENT);
  EXPECT_EQ(specdec_step(nullptr, nullptr, nullptr, nullptr), SPECDEC_INVALID_ARGUMENT);
  EXPECT_EQ(specdec_has_unfinished_requests(nullptr), 0);
  EXPECT_EQ(specdec_abort_request(nullptr, 1), 0);
  specdec_engine_close(nullptr);
  specdec_free(nullptr);
}

TEST_F(CApiTest, BadRequestsAreRefusedAndHarmNothing) {
  const OpenedEngine engine = open();
  const std::vector<int32_t> good = prompt_of(1);
  struct Case {
    std::vector<int32_t> prompt;
    const char* params;
    std::string part;
  };
  const std::vector<Case> cases = {
      {{}, "{}", "prompt"},
      {{1, 100000}, "{}", "prompt"},
      {good, R"({"max_tokens": -1})", "max_tokens"},
      {good, R"({"temperatur": 1})", "temperatur"},
      {good, R"({"logit_bias": {"a": 1}})", "logit_bias"},
      {good, R"({"logit_bias": [1]})", "logit_bias"},
      {good, R"({"stop_token_ids": [1, "2"]})", "stop_token_ids[1]"},
      {good, R"({"priority": 3})", "priority"},
      {good, R"({"temperature": "hot"})", "temperature"},
  };
  for (const Case& bad : cases) {
    const Result result = add(engine, 1, bad.prompt, bad.params);
    EXPECT_EQ(result.status, SPECDEC_INVALID_ARGUMENT) << bad.params;
    EXPECT_NE(result.message.find(bad.part), std::string::npos) << result.message;
  }
  EXPECT_EQ(specdec_add_request(engine.get(), 1, nullptr, 3, nullptr, nullptr),
            SPECDEC_INVALID_ARGUMENT);
  EXPECT_EQ(specdec_has_unfinished_requests(engine.get()), 0);
  ASSERT_EQ(add(engine, 1, good, R"({"max_tokens": 3, "logit_bias": {"7": 100}})").status,
            SPECDEC_OK);
  collected result = {};
  while (specdec_has_unfinished_requests(engine.get()) == 1) step(engine, &result);
  EXPECT_EQ(tokens_of(result), (std::vector<int32_t>{7, 7, 7}));
}

TEST_F(CApiTest, NullStandsForTheDefault) {
  const OpenedEngine engine = open();
  const std::vector<int32_t> prompt = prompt_of(1);
  collected without = {};
  collected with = {};
  const auto run = [&](const char* params, collected* result) {
    return specdec_generate(engine.get(), prompt.data(), prompt.size(), params, collect, result,
                            nullptr);
  };
  ASSERT_EQ(run(nullptr, &without), SPECDEC_OK);
  ASSERT_EQ(run(R"({"top_p": null, "logit_bias": null, "seed": null})", &with), SPECDEC_OK);
  EXPECT_EQ(without.num_token_ids[0], with.num_token_ids[0]);
  EXPECT_LE(without.num_token_ids[0], 16u);  // max_tokens
  collected longest = {};
  const char* to_the_end = R"({"max_tokens": null, "ignore_eos": true})";
  ASSERT_EQ(run(to_the_end, &longest), SPECDEC_OK);
  const Json info = json_of(engine, specdec_engine_info);
  EXPECT_EQ(longest.num_token_ids[0] + prompt.size(), info["max_model_len"]);
}

TEST_F(CApiTest, ExceptionsOfTheStreamingCallbackEndTheRequests) {
  Engine engine(config());
  SamplingParams params;
  params.max_tokens = 20;
  int num_calls = 0;
  const auto throws = [&](const RequestOutput&) -> bool {
    if (++num_calls == 3) throw Error("enough");
    return true;
  };
  EXPECT_THROW(engine.generate({prompt_of(1), prompt_of(2)}, params, throws), Error);
  EXPECT_FALSE(engine.has_unfinished_requests());
  const auto stops_first = [](const RequestOutput& output) { return output.request_id != 0; };
  const auto completions = engine.generate({prompt_of(1), prompt_of(2)}, params, stops_first);
  EXPECT_EQ(completions[0][0].finish_reason, FinishReason::kAbort);
  EXPECT_EQ(completions[0][0].token_ids.size(), 1u);
  EXPECT_EQ(completions[1][0].token_ids.size(), 20u);
}

TEST(CApiVersionTest, LibraryAndHeaderAgree) {
  EXPECT_EQ(specdec_api_version(), SPECDEC_API_VERSION);
  EXPECT_STREQ(specdec_status_name(SPECDEC_CHECKPOINT_ERROR), "checkpoint error");
  EXPECT_NE(std::strlen(specdec_version()), 0u);
}

}  // namespace
}  // namespace specdec::testing
