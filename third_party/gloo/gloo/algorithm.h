#pragma once

// Included by ProcessGroupGloo.hpp, which needs nothing of it: see context.h.
