// A device for tests, behind torch's key for other vendors' devices (PrivateUse1).
//
// Its memory is memory of this process, and its tensors are never the CPU's. It has one stream, which is always done.
// An operation without a kernel here runs on the CPU, on copies, and draws numbers from the device's own generator.
// https://docs.pytorch.org/tutorials/advanced/privateuseone.html

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kType, 0);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size_bytes) override {
    void* data = c10::alloc_cpu(size_bytes);
    return {data, data, &c10::free_cpu, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* target, const void* source, size_t size_bytes) const override {
    default_copy_data(target, source, size_bytes);
  }
} memory;
REGISTER_ALLOCATOR(kType, &memory);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream() noexcept { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size_bytes) const override {
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), size_bytes);
  }
} hooks;
const bool has_hooks = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

// The CPU's kernels know no generator but the CPU's: the two exchange their states for the time of an operation.
at::Generator generator = at::detail::createCPUGenerator();

struct DrawFromDevice {
  static void exchange() {
    at::Generator cpu = at::detail::getDefaultCPUGenerator();
    const at::Tensor state = cpu.get_state();
    cpu.set_state(generator.get_state());
    generator.set_state(state);
  }
  DrawFromDevice() { exchange(); }
  ~DrawFromDevice() { exchange(); }
};

void run_on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const DrawFromDevice draws;
  at::native::cpu_fallback(operation, stack);
}

at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::Tensor(at::detail::empty_generic(size, &memory, keys, c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::Tensor(at::detail::empty_strided_generic(size, stride, &memory, keys, c10::dtype_or_default(dtype)));
}

// A CPU tensor with the memory of a tensor on the device.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  on_cpu(target).copy_(on_cpu(source));
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  // These kernels of the CPU change sizes, strides and storages alone.
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("resize_", &at::native::resize_);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY(private_device, library) {
  library.def("get_rng_state() -> Tensor", [] { return generator.get_state(); });
  library.def("set_rng_state(Tensor state) -> ()", [](const at::Tensor& state) { generator.set_state(state); });
  library.def("manual_seed(int seed) -> ()", [](int64_t seed) { generator.set_current_seed(seed); });
}

}  // namespace
