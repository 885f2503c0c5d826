// Runs requests through an engine and keeps what each one got, comparable bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "specdec/engine.h"

namespace specdec::testing {

struct Asked {
  std::string id;  // what answers are found by
  std::vector<int32_t> prompt;
  SamplingParams params;
  int arrives = 0;  // before which step
  RequestOptions options = {};
};

struct Ended {
  struct Part {
    std::vector<std::string> tokens;  // each with its logprobs, in bits
    FinishReason reason = FinishReason::kNone;
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> completions;
  std::vector<std::string> prompt_logprobs;
  std::string error;
  int num_ends = 0;  // outputs that said it is over: one

  bool operator==(const Ended&) const = default;
};

inline std::string text_of(const PositionLogprobs& position) {
  std::string text;
  for (const Logprob& entry : position) {
    text +=
        str_cat(" ", entry.token_id, ":", std::bit_cast<uint32_t>(entry.logprob), ":", entry.rank);
  }
  return text;
}

inline std::ostream& operator<<(std::ostream& out, const Ended& ended) {
  for (const Ended::Part& part : ended.completions) {
    for (const std::string& token : part.tokens) out << token << "; ";
    out << "ended " << static_cast<int>(part.reason) << '\n';
  }
  for (const std::string& position : ended.prompt_logprobs) out << position << "; ";
  return out << ended.error << " " << ended.num_ends << '\n';
}

inline void read_output(const RequestOutput& output, Ended& ended) {
  for (const PositionLogprobs& position : output.new_prompt_logprobs) {
    ended.prompt_logprobs.push_back(text_of(position));
  }
  if (!output.error.empty()) ended.error = output.error;
  ended.num_ends += output.finished ? 1 : 0;
  for (const CompletionOutput& from : output.outputs) {
    if (from.index >= static_cast<int>(ended.completions.size())) {
      ended.completions.resize(from.index + 1);
    }
    Ended::Part& part = ended.completions[from.index];
    for (size_t i = 0; i < from.new_token_ids.size(); ++i) {
      part.tokens.push_back(str_cat(from.new_token_ids[i], i < from.new_logprobs.size()
                                                               ? text_of(from.new_logprobs[i])
                                                               : ""));
    }
    if (from.finish_reason != FinishReason::kNone) part.reason = from.finish_reason;
  }
}

// The tokens of its first completion, without their logprobs.
inline std::vector<int32_t> tokens_of(const Ended& ended) {
  std::vector<int32_t> tokens;
  for (const std::string& token : ended.completions[0].tokens) tokens.push_back(std::stoi(token));
  return tokens;
}

using Numbered = std::map<uint64_t, Ended>;    // by the engine's ids
using Answers = std::map<std::string, Ended>;  // by Asked::id

inline void step_once(Engine& engine, Numbered& answers) {
  for (const RequestOutput& output : engine.step()) read_output(output, answers[output.request_id]);
}

// Runs the engine's unfinished requests to their end; returns their outputs.
inline Numbered drain(Engine& engine) {
  Numbered answers;
  while (engine.has_unfinished_requests()) step_once(engine, answers);
  return answers;
}

// Fails the test when the requests do not end.
inline Answers run_to_end(Engine& engine, const std::vector<Asked>& requests) {
  constexpr int kMaxSteps = 2000;
  Numbered numbered;
  size_t next = 0;
  for (int step = 0; next < requests.size() || engine.has_unfinished_requests(); ++step) {
    if (step == kMaxSteps) {
      ADD_FAILURE() << "requests without an end";
      break;
    }
    for (; next < requests.size() && requests[next].arrives <= step; ++next) {
      const Asked& asked = requests[next];
      engine.add_request(next, asked.prompt, asked.params, asked.options);
    }
    step_once(engine, numbered);
  }
  Answers answers;
  for (auto& [number, answer] : numbered) answers[requests[number].id] = std::move(answer);
  return answers;
}

// Runs each request alone in the engine.
inline Answers run_alone(Engine& engine, const std::vector<Asked>& requests) {
  Answers ended;
  for (Asked request : requests) {
    request.arrives = 0;
    ended.merge(run_to_end(engine, {request}));
  }
  return ended;
}

}  // namespace specdec::testing
