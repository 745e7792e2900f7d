// fmt's library, compiled here once: Debian has it as a shared library only, which a wheel cannot
// carry, and with FMT_HEADER_ONLY every file that formats anything compiles most of it again, which
// takes more than all the rest of such a file. The templates are those that fmt's own format.cc
// instantiates. Symbols are weak, so that a program may link fmt besides.
#define FMT_API __attribute__((weak))
#pragma GCC diagnostic ignored "-Wattributes"  // inline functions are weak anyway
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
#if FMT_VERSION >= 120000
template FMT_API locale_ref::locale_ref(const std::locale&);
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
#endif

namespace detail {

#if FMT_VERSION < 120000
template FMT_API locale_ref::locale_ref(const std::locale&);
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
#endif
template FMT_API auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);
#if FMT_VERSION >= 100000 && FMT_VERSION < 110200
template FMT_API void vformat_to(buffer<char>&, string_view, vformat_args<>::type, locale_ref);
#endif

}  // namespace detail
FMT_END_NAMESPACE
