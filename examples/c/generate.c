/* Loads a checkpoint and continues a prompt of token ids, drafting ahead: by n-grams of the text,
 * or with a draft model if one is given. Prints tokens as they come, and how many drafts were
 * accepted.
 *
 *   generate /path/to/checkpoint 1 2 3
 *   generate --draft /path/to/draft_model /path/to/checkpoint 1 2 3
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specdec/c_api.h"

static int on_output(const specdec_output* output, void* user_data) {
  size_t i;
  (void)user_data;
  for (i = 0; i < output->num_token_ids; ++i) printf("%d ", (int)output->token_ids[i]);
  fflush(stdout);
  if (output->request_finished) {
    printf("\n%lld of %lld drafts were accepted\n", (long long)output->num_accepted_tokens,
           (long long)output->num_draft_tokens);
  }
  return 0; /* go on */
}

/* Appends `text` to a JSON document as a string. Paths with control characters are not escaped. */
static void append_string(char* json, size_t size, const char* text) {
  size_t at = strlen(json);
  if (at + 2 * strlen(text) + 3 > size) return;
  json[at++] = '"';
  for (; *text != '\0'; ++text) {
    if (*text == '"' || *text == '\\') json[at++] = '\\';
    json[at++] = *text;
  }
  json[at++] = '"';
  json[at] = '\0';
}

int main(int argc, char** argv) {
  const char* draft = NULL;
  char options[8192] = "{\"model\": ";
  int32_t prompt[1024];
  size_t num_tokens = 0;
  specdec_engine* engine = NULL;
  char* error = NULL;
  specdec_status status;

  if (argc > 2 && strcmp(argv[1], "--draft") == 0) {
    draft = argv[2];
    argv += 2;
    argc -= 2;
  }
  if (argc < 3) {
    fprintf(stderr, "usage: generate [--draft CHECKPOINT] CHECKPOINT TOKEN_ID ...\n");
    return 2;
  }
  for (int i = 2; i < argc && num_tokens < 1024; ++i) prompt[num_tokens++] = atoi(argv[i]);

  append_string(options, sizeof options, argv[1]);
  strcat(options, ", \"speculative_config\": {\"num_speculative_tokens\": 4, ");
  if (draft == NULL) {
    strcat(options, "\"method\": \"ngram\"}}");
  } else {
    strcat(options, "\"method\": \"draft_model\", \"model\": ");
    append_string(options, sizeof options, draft);
    strcat(options, "}}");
  }

  status = specdec_engine_open(options, &engine, &error);
  if (status == SPECDEC_OK) {
    status = specdec_generate(engine, prompt, num_tokens,
                              "{\"max_tokens\": 16, \"temperature\": 0}", on_output, NULL, &error);
  }
  specdec_engine_close(engine);
  if (status != SPECDEC_OK) {
    fprintf(stderr, "%s: %s\n", specdec_status_name(status), error);
    specdec_free(error);
    return 1;
  }
  return 0;
}
