#include "pipewright/modules/contents.h"

#include "pipewright/modules/part_guard.h"

namespace pipewright::modules {

at::Tensor contents_of(const at::Tensor& registered) {
  return at::Tensor(registered.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

void set_contents(const at::Tensor& registered, const at::Tensor& contents) {
  registered.unsafeGetTensorImpl()->shallow_copy_from(contents.getIntrusivePtr());
}

bool has_contents(const at::Tensor& registered, const at::Tensor& contents) {
  return registered.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
             contents.storage().unsafeGetStorageImpl() &&
         registered.storage_offset() == contents.storage_offset() &&
         registered.sizes() == contents.sizes() &&
         registered.scalar_type() == contents.scalar_type() &&
         is_guarded(registered) == is_guarded(contents);
}

std::string describe_contents(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device());
}

}  // namespace pipewright::modules
