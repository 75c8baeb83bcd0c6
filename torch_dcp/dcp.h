#pragma once

/// All that a program needs which saves and loads: includes the user-facing headers, declares nothing.

#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/model_state/random_state.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/flatten.h"
#include "torch_dcp/state_dict/per_rank.h"
#include "torch_dcp/state_dict/stateful.h"
#include "torch_dcp/state_dict/value.h"
#include "torch_dcp/storage/consolidate.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"
#include "torch_dcp/storage/safetensors_reader.h"
#include "torch_dcp/storage/safetensors_writer.h"
#include "torch_dcp/storage/torch_save.h"
#include "torch_dcp/storage/verify.h"
