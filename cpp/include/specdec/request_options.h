// How one request is served, which changes no token of its answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec {

struct RequestOptions {
  // Requests share cached beginnings of prompts only with requests of the same salt, so that no
  // other user can tell from the time of a first token what was asked before. Likewise a suffix
  // drafter drafts from finished outputs of the same salt alone.
  std::string cache_salt = {};
  // Lower goes first. Other than 0 only where the engine's scheduling_policy is "priority".
  int64_t priority = 0;
  // The first tokens of the answer, where another engine has generated them from the same prompt,
  // parameters and seed. This engine computes them with the prompt and reports the tokens after
  // them: the answer is the same as if one engine had generated all of it. Requires n = 1.
  std::vector<int32_t> resumed_token_ids = {};
};

}  // namespace specdec
