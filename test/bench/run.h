#pragma once

#include <ostream>

#include "test/bench/report.h"
#include "test/bench/settings.h"

namespace dcp::bench {

/// Measures the sections that the settings name, and prints and writes what came out.
Report run(const Settings& settings, std::ostream& out);

}  // namespace dcp::bench
