#pragma once

/// Marks what stays visible when the library is built with -fvisibility=hidden.
#if defined(_WIN32)
#define DCP_API
#else
#define DCP_API __attribute__((visibility("default")))
#endif
