/* A client of the C API in C99. Each function returns NULL, or what went wrong. */
#ifndef SPECDEC_TESTS_C_CLIENT_H_
#define SPECDEC_TESTS_C_CLIENT_H_

#include <stddef.h>
#include <stdint.h>

#include "specdec/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { kMostTokens = 256 };

/* What a request's outputs came to, by completion. */
typedef struct collected {
  int32_t token_ids[2][kMostTokens];
  float logprobs[2][kMostTokens];
  size_t num_token_ids[2];
  specdec_finish_reason finish_reason[2];
  int num_outputs;
  int num_finished;           /* outputs with request_finished */
  int num_outputs_to_stop_at; /* 0: never */
  int64_t num_accepted_tokens;
  char error[256];
} collected;

/* A specdec_output_callback; `user_data` is a `collected`. */
int collect(const specdec_output* output, void* user_data);

/* Opens, generates and closes. */
const char* generate_once(const char* options_json, const int32_t* prompt, size_t num_prompt_tokens,
                          const char* params_json, collected* result);

#ifdef __cplusplus
}
#endif

#endif
