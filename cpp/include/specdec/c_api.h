/* The engine for programs in C, and for languages that call C: Rust, Go, Swift, Python's ctypes.
 *
 *   specdec_engine* engine = NULL;
 *   char* error = NULL;
 *   if (specdec_engine_open("{\"model\": \"/path/to/checkpoint\"}", &engine, &error) != SPECDEC_OK)
 * { fprintf(stderr, "%s\n", error); specdec_free(error); return 1;
 *   }
 *   int32_t prompt[] = {1, 2, 3};
 *   specdec_generate(engine, prompt, 3, "{\"max_tokens\": 64}", on_output, NULL, &error);
 *   specdec_engine_close(engine);
 *
 * Token ids go in and token ids come out: tokenizing is up to the program.
 *
 * Options are JSON objects with the names of docs/options.md, whose defaults are those of the C++
 * API. An unknown name, a value of another type or out of range is SPECDEC_INVALID_ARGUMENT with a
 * message that names it. null, as the pointer or as a value, stands for the default.
 *
 * Threads: one thread at a time may call functions of an engine. Different engines are independent.
 * Callbacks run in the thread that made the call, before the call returns, and must neither throw,
 * longjmp, nor call functions of the same engine.
 *
 * Errors: functions that can fail return a specdec_status. Where that is not SPECDEC_OK and `error`
 * is not NULL, *error is a message in UTF-8 that the caller frees with specdec_free(). On success
 * *error is NULL. A failed call changes nothing, unless the engine itself has failed.
 *
 * Compatibility: within a SPECDEC_API_VERSION functions, values and members keep their meaning, and
 * members are only added to the end of structs, all of which the library makes.
 */
#ifndef SPECDEC_C_API_H_
#define SPECDEC_C_API_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SPECDEC_API __attribute__((visibility("default")))
#else
#define SPECDEC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define SPECDEC_API_VERSION 1

typedef enum specdec_status {
  SPECDEC_OK = 0,
  SPECDEC_INVALID_ARGUMENT = 1, /* an option, a prompt or a NULL pointer; the message names it */
  SPECDEC_CHECKPOINT_ERROR = 2, /* a file is missing or malformed, or the model is unknown */
  SPECDEC_OUT_OF_MEMORY = 3,    /* the message says which option to lower */
  SPECDEC_UNAVAILABLE = 4,      /* a device or mode that this build or machine does not have */
  SPECDEC_ENGINE_FAILED = 5,    /* the engine has ended: close it and open another */
  SPECDEC_RANK_FAILURE = 6,     /* the same, because one of its devices is gone */
  SPECDEC_INTERNAL_ERROR = 7    /* a bug in this library */
} specdec_status;

typedef enum specdec_finish_reason {
  SPECDEC_NOT_FINISHED = 0,
  SPECDEC_FINISH_STOP = 1,   /* an end-of-sequence or stop token, or specdec_stop_completion() */
  SPECDEC_FINISH_LENGTH = 2, /* max_tokens or max_model_len */
  SPECDEC_FINISH_ABORT = 3,
  SPECDEC_FINISH_ERROR = 4 /* specdec_output.error says why */
} specdec_finish_reason;

typedef enum specdec_log_level {
  SPECDEC_LOG_DEBUG = 0,
  SPECDEC_LOG_INFO = 1,
  SPECDEC_LOG_WARNING = 2,
  SPECDEC_LOG_ERROR = 3
} specdec_log_level;

/* A loaded model with its KV cache, its drafters and its requests. */
typedef struct specdec_engine specdec_engine;

typedef struct specdec_logprob {
  int32_t token_id;
  float logprob;
  int32_t rank; /* 1: the most likely token of its position */
} specdec_logprob;

/* Logprobs of `num_positions` tokens. entries[i] has counts[i] entries: the token itself, then the
 * most likely ones in falling order. */
typedef struct specdec_logprobs {
  size_t num_positions;
  const size_t* counts;                  /* [num_positions] */
  const specdec_logprob* const* entries; /* [num_positions][counts[i]] */
} specdec_logprobs;

/* Progress of one completion. Everything it points to is valid until the callback returns. */
typedef struct specdec_output {
  uint64_t request_id;
  int32_t index; /* which of the request's n completions; -1: news of the request as a whole */
  size_t num_token_ids;
  const int32_t* token_ids;         /* [num_token_ids], generated since the last output */
  specdec_logprobs logprobs;        /* of token_ids, where "logprobs" asks for them; else empty */
  specdec_logprobs prompt_logprobs; /* of prompt tokens, first one excluded, likewise */
  specdec_finish_reason finish_reason;
  int32_t stop_token_id;       /* the entry of stop_token_ids that ended the completion, or -1 */
  int32_t request_finished;    /* 1: this is the last output of the request */
  const char* error;           /* why the request has failed, or NULL */
  int64_t num_steps;           /* of this completion so far: steps that verified drafts, */
  int64_t num_draft_tokens;    /* drafts that they verified */
  int64_t num_accepted_tokens; /* and drafts that were accepted */
} specdec_output;

/* Called for each output. Any value but 0 ends the request, of which nothing more is reported. */
typedef int (*specdec_output_callback)(const specdec_output* output, void* user_data);

typedef void (*specdec_log_callback)(specdec_log_level level, const char* message, void* user_data);

/* Version of the library, such as "0.1.0". Static. */
SPECDEC_API const char* specdec_version(void);

/* The SPECDEC_API_VERSION of the library, to compare with that of the header. */
SPECDEC_API int specdec_api_version(void);

/* "invalid argument" for SPECDEC_INVALID_ARGUMENT, and so on. Static. */
SPECDEC_API const char* specdec_status_name(specdec_status status);

/* Frees a string that the library has made. NULL is allowed. */
SPECDEC_API void specdec_free(char* text);

/* Sends the library's messages, from any of its threads, to `callback`; NULL restores the default,
 * which writes warnings and errors to stderr. */
SPECDEC_API void specdec_set_log_callback(specdec_log_callback callback, void* user_data);

/* Loads a model. Options: "model", the directory of a checkpoint (config.json and *.safetensors),
 * the engine's options of docs/options.md, and "speculative_config", an object of its options of
 * speculation, for example {"method": "ngram", "num_speculative_tokens": 8}; both of these are
 * needed. Several drafters are a list, "drafters". The "model" of a drafter is a directory, too.
 * Sets *engine, to be closed with specdec_engine_close(), or to NULL on an error. */
SPECDEC_API specdec_status specdec_engine_open(const char* options_json, specdec_engine** engine,
                                               char** error);

/* Ends all requests and frees the engine. NULL is allowed. */
SPECDEC_API void specdec_engine_close(specdec_engine* engine);

/* What was loaded, as a JSON object: "architecture", "dtype", "device", "vocab_size",
 * "max_model_len", "eos_token_ids" and so on. The caller frees *json with specdec_free(). */
SPECDEC_API specdec_status specdec_engine_info(const specdec_engine* engine, char** json,
                                               char** error);

/* Runs one prompt, as request 0, to its end and reports its tokens as they come. `params_json` has
 * the sampling options of docs/options.md, "cache_salt" and "priority". Without "eos_token_ids"
 * those of the checkpoint end the text. The engine must have no unfinished requests. An error that
 * ends the request is in its last output and returned, as SPECDEC_INTERNAL_ERROR where only the
 * request has failed. `callback` may be NULL. */
SPECDEC_API specdec_status specdec_generate(specdec_engine* engine, const int32_t* prompt,
                                            size_t num_prompt_tokens, const char* params_json,
                                            specdec_output_callback callback, void* user_data,
                                            char** error);

/* Queues a request, with the options of specdec_generate(), under a number that no unfinished
 * request of the engine has. Copies the prompt. */
SPECDEC_API specdec_status specdec_add_request(specdec_engine* engine, uint64_t request_id,
                                               const int32_t* prompt, size_t num_prompt_tokens,
                                               const char* params_json, char** error);

/* Runs one step of all requests together, and reports those that progressed or finished. Where the
 * engine fails, first every request is reported with its error. */
SPECDEC_API specdec_status specdec_step(specdec_engine* engine, specdec_output_callback callback,
                                        void* user_data, char** error);

/* 1 while there is something for specdec_step() to do, else 0. */
SPECDEC_API int specdec_has_unfinished_requests(const specdec_engine* engine);

/* Ends a request, of which nothing more is reported. 0 if it is unknown or finished, else 1. */
SPECDEC_API int specdec_abort_request(specdec_engine* engine, uint64_t request_id);

/* Ends one of a request's completions, because the program saw a stop string in its text, say; it
 * is not reported again. 0 if it is unknown or finished, else 1. */
SPECDEC_API int specdec_stop_completion(specdec_engine* engine, uint64_t request_id, int32_t index);

/* Counters since the engine was opened, as a JSON object: "num_generation_tokens",
 * "num_kv_blocks" and so on, and "acceptance": "num_steps", "num_draft_tokens",
 * "num_accepted_tokens", "accepted_per_position" ... The caller frees *json. */
SPECDEC_API specdec_status specdec_engine_stats(const specdec_engine* engine, char** json,
                                                char** error);

/* Drops the cached KV blocks, those of running requests for others alone. Returns how many were
 * dropped. */
SPECDEC_API int32_t specdec_reset_prefix_cache(specdec_engine* engine);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPECDEC_C_API_H_ */
