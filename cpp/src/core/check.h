// SPECDEC_CHECK: for our own mistakes, never for the user's. Always on; throws InternalError with
// both operands. Errors that a user or a machine can cause are thrown as typed errors instead.
#pragma once

#include <string>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec::detail {

[[noreturn]] void check_failed(const char* file, int line, const std::string& what);

template <class A, class B>
[[noreturn]] void check_failed_op(const char* file, int line, const char* expression, const A& a,
                                  const B& b) {
  check_failed(file, line, str_cat(expression, " (", a, " vs ", b, ")"));
}

}  // namespace specdec::detail

#define SPECDEC_CHECK(condition) \
  ((condition) ? (void)0 : ::specdec::detail::check_failed(__FILE__, __LINE__, #condition))

#define SPECDEC_CHECK_OP_(op, a, b)                                                       \
  do {                                                                                    \
    const auto& check_a_ = (a);                                                           \
    const auto& check_b_ = (b);                                                           \
    if (!(check_a_ op check_b_))                                                          \
      ::specdec::detail::check_failed_op(__FILE__, __LINE__, #a " " #op " " #b, check_a_, \
                                         check_b_);                                       \
  } while (0)

#define SPECDEC_CHECK_EQ(a, b) SPECDEC_CHECK_OP_(==, a, b)
#define SPECDEC_CHECK_LE(a, b) SPECDEC_CHECK_OP_(<=, a, b)
#define SPECDEC_CHECK_LT(a, b) SPECDEC_CHECK_OP_(<, a, b)
#define SPECDEC_CHECK_GE(a, b) SPECDEC_CHECK_OP_(>=, a, b)
#define SPECDEC_CHECK_GT(a, b) SPECDEC_CHECK_OP_(>, a, b)
