// Stacks of fibres, and switching between them.
#pragma once

#include <cstddef>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace specdec::cuda::emulation {

// A suspended execution with its own stack. A default-made context is the thread's own.
struct Context {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t saved;
#endif
  const void* stack_begin = nullptr;  // for the address sanitizer
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;
};

struct Stack {
  unsigned char* begin = nullptr;
  size_t size_bytes = 0;
};

// Prepares `context` to run `entry` from the stack's top. `entry` must never return.
void prepare(Context& context, const Stack& stack, void (*entry)());

// Notes where the running thread's stack is, for a context without one of its own.
void describe_own_stack(Context& context);

// Saves the running context in `from` and continues `to`. A finished context is never continued.
void switch_context(Context& from, Context& to, bool from_is_finished = false);
// The first call of a new context.
void enter_context(Context& context);

// Stacks with a guard page below each, kept for reuse.
class StackPool {
 public:
  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  std::vector<Stack> take(size_t count);
  void give_back(std::vector<Stack> stacks);

 private:
  struct Mapping {
    void* begin;
    size_t size_bytes;
  };
  std::vector<Mapping> mappings_;
  std::vector<Stack> free_;
};

}  // namespace specdec::cuda::emulation
