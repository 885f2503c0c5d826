#include "c_api/c_client.h"

#include <string.h>

static void copy_text(char* out, size_t size, const char* text) {
  strncpy(out, text, size - 1);
  out[size - 1] = '\0';
}

int collect(const specdec_output* output, void* user_data) {
  collected* result = (collected*)user_data;
  size_t i;
  ++result->num_outputs;
  result->num_finished += output->request_finished;
  if (output->error != NULL) copy_text(result->error, sizeof result->error, output->error);
  if (output->index >= 0) {
    const int index = output->index;
    for (i = 0; i < output->num_token_ids; ++i) {
      const size_t at = result->num_token_ids[index]++;
      result->token_ids[index][at] = output->token_ids[i];
      if (output->logprobs.num_positions > 0) {
        result->logprobs[index][at] = output->logprobs.entries[i][0].logprob;
      }
    }
    result->finish_reason[index] = output->finish_reason;
    result->num_accepted_tokens = output->num_accepted_tokens;
  }
  return result->num_outputs == result->num_outputs_to_stop_at;
}

const char* generate_once(const char* options_json, const int32_t* prompt, size_t num_prompt_tokens,
                          const char* params_json, collected* result) {
  static char message[512];
  specdec_engine* engine = NULL;
  char* error = NULL;
  specdec_status status = specdec_engine_open(options_json, &engine, &error);
  if (status == SPECDEC_OK) {
    status =
        specdec_generate(engine, prompt, num_prompt_tokens, params_json, collect, result, &error);
  }
  specdec_engine_close(engine);
  if (status == SPECDEC_OK) return NULL;
  copy_text(message, sizeof message, error);
  specdec_free(error);
  return message;
}
