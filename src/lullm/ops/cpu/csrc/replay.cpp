// Replay: many operations in one call. Python writes down the calls of a step as it makes them, each as the number of
// the operation and its arguments, a 64-bit word each; here they are made again, with the same addresses and numbers.

#include <cstring>
#include <iterator>
#include <type_traits>
#include <utility>

#include "operation.h"

namespace {

// A pointer, or a number in the lowest bytes of its word.
template <class T>
T from_word(uint64_t word) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(word);
  } else {
    static_assert(std::is_arithmetic_v<T> && sizeof(T) <= sizeof word);
    T value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
}

template <class... Arguments, size_t... index>
bool call(void (*function)(Arguments...), const uint64_t* words, std::index_sequence<index...>) {
  function(from_word<Arguments>(words[index])...);
  return true;
}

template <class... Arguments, size_t... index>
bool call(int (*function)(Arguments...), const uint64_t* words, std::index_sequence<index...>) {
  return function(from_word<Arguments>(words[index])...) != 0;
}

template <class Result, class... Arguments>
constexpr int64_t count_arguments(Result (*)(Arguments...)) {
  return sizeof...(Arguments);
}

struct Operation {
  const char* name;
  int64_t num_arguments;
  bool (*call)(const uint64_t* words);  // false: it could not do it
};

template <auto function>
constexpr Operation operation(const char* name) {
  constexpr int64_t count = count_arguments(function);
  return {name, count, [](const uint64_t* words) { return call(function, words, std::make_index_sequence<count>()); }};
}

constexpr Operation kOperations[] = {
    operation<lullm_linear>("lullm_linear"),
    operation<lullm_logits>("lullm_logits"),
    operation<lullm_gated_linear>("lullm_gated_linear"),
    operation<lullm_embedding>("lullm_embedding"),
    operation<lullm_rms_norm>("lullm_rms_norm"),
    operation<lullm_sum_squares>("lullm_sum_squares"),
    operation<lullm_norm_by_squares>("lullm_norm_by_squares"),
    operation<lullm_rope_and_cache>("lullm_rope_and_cache"),
    operation<lullm_write_cache>("lullm_write_cache"),
    operation<lullm_multiply_heads>("lullm_multiply_heads"),
    operation<lullm_layer_norm>("lullm_layer_norm"),
    operation<lullm_activate>("lullm_activate"),
    operation<lullm_add>("lullm_add"),
    operation<lullm_xielu>("lullm_xielu"),
    operation<lullm_join>("lullm_join"),
    operation<lullm_scale>("lullm_scale"),
    operation<lullm_soft_cap>("lullm_soft_cap"),
    operation<lullm_scale_by>("lullm_scale_by"),
    operation<lullm_rotate>("lullm_rotate"),
    operation<lullm_attention>("lullm_attention"),
    operation<lullm_draw_tokens>("lullm_draw_tokens"),
    operation<lullm_route>("lullm_route"),
    operation<lullm_sort_rows>("lullm_sort_rows"),
    operation<lullm_grouped_linear>("lullm_grouped_linear"),
    operation<lullm_clamped_gate>("lullm_clamped_gate"),
    operation<lullm_mix>("lullm_mix"),
    operation<lullm_quantized_linear>("lullm_quantized_linear"),
    operation<lullm_quantized_logits>("lullm_quantized_logits"),
    operation<lullm_quantized_embedding>("lullm_quantized_embedding"),
    operation<lullm_causal_convolution>("lullm_causal_convolution"),
    operation<lullm_recurrence>("lullm_recurrence"),
    operation<lullm_selective_scan>("lullm_selective_scan"),
    operation<lullm_rg_lru>("lullm_rg_lru"),
    operation<lullm_gated_rms_norm>("lullm_gated_rms_norm"),
    operation<lullm_multiply>("lullm_multiply"),
    operation<lullm_add_lora>("lullm_add_lora"),
    operation<lullm_all_reduce>("lullm_all_reduce"),
    operation<lullm_all_gather>("lullm_all_gather"),
    operation<lullm_deal_rows>("lullm_deal_rows"),
    operation<lullm_send>("lullm_send"),
    operation<lullm_receive>("lullm_receive"),
};
constexpr uint64_t kNumOperations = std::size(kOperations);

}  // namespace

// The number of an operation in a recording; -1: it cannot be in one.
LULLM_EXPORT int lullm_operation_number(const char* name) {
  for (uint64_t number = 0; number < kNumOperations; number++)
    if (std::strcmp(kOperations[number].name, name) == 0) return static_cast<int>(number);
  return -1;
}

// Makes the calls of `words`. 1 if all were made, 0 if one could not do its work (or is no call); none after it is made.
LULLM_EXPORT int lullm_replay(const uint64_t* words, int64_t num_words) {
  for (const uint64_t* end = words + num_words; words < end;) {
    if (*words >= kNumOperations) return 0;
    const Operation& operation = kOperations[*words];
    if (end - words <= operation.num_arguments || !operation.call(words + 1)) return 0;
    words += 1 + operation.num_arguments;
  }
  return 1;
}
