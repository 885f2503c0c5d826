// Stacks, and switching between them.
#pragma once

#include <cstddef>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace specdec::cuda::emulation {

// Code that runs on a stack of its own or, for a default-made context, on the thread's own stack.
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

// Prepares `context` to run `entry`, which never returns, from the stack's top.
void prepare(Context& context, const Stack& stack, void (*entry)());

// For a context without a stack of its own: notes where the running thread's stack is.
void describe_own_stack(Context& context);

// Saves the running context in `from` and continues `to`. A finished context never continues.
void switch_context(Context& from, Context& to, bool from_is_finished = false);
// First thing a new context does.
void enter_context(Context& context);

// Stacks with a page that must not be touched below each; kept for reuse.
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
